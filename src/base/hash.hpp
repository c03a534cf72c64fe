// 128-bit hashes of words and bytes, the same on every machine: two lanes mixed by the finaliser of
// SplitMix64 (Steele, Lea, Flood 2014, Stafford's variant 13). Not cryptographic: where two inputs
// with one hash would do harm, the inputs themselves are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace decant::detail {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

constexpr std::uint64_t hash_mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

/// `h` with one more word behind it.
constexpr Hash128 hash_word(Hash128 h, std::uint64_t word) {
  const std::uint64_t low = hash_mix((h.low ^ word) + 0x9E3779B97F4A7C15u);
  const std::uint64_t high = hash_mix(h.high + word * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u);
  return {low, high ^ (low << 1 | low >> 63)};
}

/// `h` with the bytes and their number behind it.
inline Hash128 hash_bytes(Hash128 h, std::span<const std::byte> bytes) {
  std::size_t at = 0;
  const auto word = [&](std::size_t n) {
    std::uint64_t w = 0;
    for (std::size_t i = 0; i < n; ++i) w |= static_cast<std::uint64_t>(bytes[at + i]) << (8 * i);
    return w;
  };
  for (; at + 8 <= bytes.size(); at += 8) h = hash_word(h, word(8));
  if (at < bytes.size()) h = hash_word(h, word(bytes.size() - at));
  return hash_word(h, bytes.size());
}

}  // namespace decant::detail
