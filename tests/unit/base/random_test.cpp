// Known answers: rows "philox4x32 10" of tests/kat_vectors in the Random123 distribution.
#include "base/random.hpp"

#include <set>

#include "support/catch.hpp"

using namespace decant::detail;

TEST_CASE("Philox4x32-10 gives Random123's known answers") {
  using Four = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("random numbers depend on every bit of their key") {
  std::set<std::uint64_t> seen = {random_bits({})};
  for (unsigned bit = 0; bit < 64; ++bit) {
    CHECK(seen.insert(random_bits({.seed = std::uint64_t{1} << bit})).second);
    CHECK(seen.insert(random_bits({.position = std::uint64_t{1} << bit})).second);
  }
  for (unsigned bit = 0; bit < 32; ++bit) {
    CHECK(seen.insert(random_bits({.sample_index = 1u << bit})).second);
    CHECK(seen.insert(random_bits({.purpose = static_cast<RandomPurpose>(1u << bit)})).second);
  }
  // By hand from the first known answer: words 1 and 0.
  CHECK(random_bits({}) == 0xe169c58d6627e8d5u);
  CHECK(random_uniform({}) == static_cast<double>(0xe169c58d6627e8d5u >> 11) / 9007199254740992.0);
}

TEST_CASE("uniform numbers fill the unit interval evenly") {
  constexpr int n = 200000;
  int bins[64] = {};
  double sum = 0.0;
  for (int i = 0; i < n; ++i) {
    const double u = random_uniform({.seed = 7, .position = static_cast<std::uint64_t>(i)});
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    ++bins[static_cast<int>(u * 64.0)];
    sum += u;
  }
  CHECK(sum / n == Approx(0.5).margin(4 * 0.2887 / 447.2));  // four standard errors
  double chi_square = 0.0;
  for (const int count : bins) chi_square += (count - n / 64.0) * (count - n / 64.0) / (n / 64.0);
  CHECK(chi_square > 63 - 4 * 11.2);  // 63 degrees of freedom, standard deviation sqrt(126)
  CHECK(chi_square < 63 + 4 * 11.2);
}
