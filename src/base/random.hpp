// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers:
// as easy as 1, 2, 3; SC 2011). A number is a function of its key alone, so it depends neither on
// what was drawn before nor on the order in which sequences run.
#pragma once

#include <array>
#include <cstdint>

namespace decant::detail {

/// Ten rounds of Philox4x32.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// What a number is for; each purpose has its own stream. The values never change.
enum class RandomPurpose : std::uint32_t { sample = 0 };

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t position = 0;      ///< of the token that is chosen
  std::uint32_t sample_index = 0;  ///< tells parallel samples of one seed apart
  RandomPurpose purpose = RandomPurpose::sample;
};

/// 64 uniform bits.
constexpr std::uint64_t random_bits(const RandomKey& key) {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(key.position), static_cast<std::uint32_t>(key.position >> 32),
       key.sample_index, static_cast<std::uint32_t>(key.purpose)},
      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
  return std::uint64_t{words[1]} << 32 | words[0];
}

/// Uniform in [0, 1): a multiple of 2^-53.
constexpr double random_uniform(const RandomKey& key) {
  return static_cast<double>(random_bits(key) >> 11) * 0x1p-53;
}

}  // namespace decant::detail
