// binary16 and bfloat16 against double arithmetic: every value one way, every boundary the other.
#include "base/float16.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/host_mode.hpp"

namespace decant::test {

using namespace decant_test;
using detail::bf16_to_f32;
using detail::f16_to_f32;
using detail::f32_to_bf16;
using detail::f32_to_f16;

// The value of a finite half by its definition.
static double half_by_definition(unsigned half) {
  const int exponent = static_cast<int>((half >> 10) & 31);
  const double mantissa = half & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

TEST_CASE("every binary16 widens to its defined value") {
  int wrong = 0;
  for (unsigned h = 0; h < 65536; ++h) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(h));
    const bool negative = (h & 0x8000) != 0;
    if ((h & 0x7fff) > 0x7c00) {
      wrong +=
          !std::isnan(value) || ((std::bit_cast<std::uint32_t>(value) >> 13) & 1023) != (h & 1023);
    } else if ((h & 0x7fff) == 0x7c00) {
      wrong += !std::isinf(value) || std::signbit(value) != negative;
    } else {
      wrong +=
          static_cast<double>(value) != half_by_definition(h) || std::signbit(value) != negative;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("binary16 survives the way to float and back") {
  int wrong = 0;
  for (unsigned h = 0; h < 65536; ++h) {
    const std::uint16_t back = f32_to_f16(f16_to_f32(static_cast<std::uint16_t>(h)));
    const bool nan = (h & 0x7fff) > 0x7c00;
    wrong += nan ? back != (h | 0x200) : back != h;  // NaNs become quiet
  }
  CHECK(wrong == 0);
}

TEST_CASE("narrowing to binary16 rounds to nearest, ties to even, at every boundary") {
  int wrong = 0;
  for (unsigned h = 0; h < 0x7c00; ++h) {
    // Half way to the next one; above the largest that is 65520, where infinity begins.
    const double next = h + 1 < 0x7c00 ? half_by_definition(h + 1) : 65536.0;
    const auto middle = static_cast<float>((half_by_definition(h) + next) / 2);  // exact
    const unsigned even = h % 2 == 0 ? h : h + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const unsigned bit = sign < 0 ? 0x8000 : 0;
      wrong += f32_to_f16(sign * middle) != (even | bit);
      wrong += f32_to_f16(sign * std::nextafter(middle, 0.0f)) != (h | bit);
      wrong += f32_to_f16(sign * std::nextafter(middle, 1e30f)) != ((h + 1) | bit);
    }
  }
  CHECK(wrong == 0);
  CHECK(f32_to_f16(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(f32_to_f16(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(f32_to_f16(std::numeric_limits<float>::max()) == 0x7c00);
  CHECK(f32_to_f16(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(f32_to_f16(-std::numeric_limits<float>::denorm_min()) == 0x8000);
  CHECK((f32_to_f16(std::bit_cast<float>(0x7f800001u)) & 0x7fff) > 0x7c00);  // payload in low bits
}

TEST_CASE("bfloat16 is the upper half of a float, rounded to nearest, ties to even") {
  int wrong = 0;
  for (unsigned b = 0; b < 65536; ++b) {
    const auto value = static_cast<std::uint16_t>(b);
    wrong += std::bit_cast<std::uint32_t>(bf16_to_f32(value)) != b << 16;
    const bool nan = (b & 0x7fff) > 0x7f80;
    wrong += f32_to_bf16(bf16_to_f32(value)) != (nan ? b | 0x40 : b);
    if (nan || (b & 0x7fff) == 0x7f80) continue;
    const std::uint32_t low = b << 16;
    const unsigned even = b % 2 == 0 ? b : b + 1;
    wrong += f32_to_bf16(std::bit_cast<float>(low | 0x7fffu)) != b;
    wrong += f32_to_bf16(std::bit_cast<float>(low | 0x8000u)) != even;
    wrong += f32_to_bf16(std::bit_cast<float>(low | 0x8001u)) != b + 1;
  }
  CHECK(wrong == 0);
  CHECK((f32_to_bf16(std::bit_cast<float>(0x7f800001u)) & 0x7fff) > 0x7f80);
}

TEST_CASE("conversions of 16-bit floats do not depend on the host's floating-point mode") {
  // 2^-24, -2^-24, the largest subnormal
  const volatile std::uint16_t halves[] = {0x0001, 0x8001, 0x03ff};
  const volatile float thirds[] = {1.0f / 3, 5.1e-7f, 65519.996f};
  float wide[3];
  std::uint16_t narrow[3];
  {
    HostMode mode(HostMode::both);
    for (int i = 0; i < 3; ++i) {
      wide[i] = f16_to_f32(halves[i]);
      narrow[i] = f32_to_f16(thirds[i]);
    }
  }
  CHECK(wide[0] == 0x1p-24f);
  CHECK(wide[1] == -0x1p-24f);
  CHECK(wide[2] == 0x1.ff8p-15f);
  CHECK(narrow[0] == 0x3555);  // numpy: np.float16(1/3)
  CHECK(narrow[1] == 0x0009);  // 5.1e-7 / 2^-24 = 8.556
  CHECK(narrow[2] == 0x7bff);
}

}  // namespace decant::test
