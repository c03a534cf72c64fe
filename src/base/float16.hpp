// IEEE binary16 and bfloat16 to float and back, in integer code: the same bits under any rounding
// mode and with flush-to-zero. Widening is exact; narrowing rounds to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace decant::detail {

/// NaNs keep their payload. Without branches, so that loops over it become vector code.
constexpr float f16_to_f32(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::int32_t magnitude = half & 0x7fff;
  // A subnormal is an integer times 2^-24: exact, and no float subnormal is touched on the way.
  const auto tiny = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const auto is_tiny = static_cast<std::uint32_t>((magnitude - 0x400) >> 31);  // all ones or 0
  const auto not_finite = static_cast<std::uint32_t>((0x7bff - magnitude) >> 31);
  constexpr std::uint32_t kRebias = 112u << 23;
  const std::uint32_t normal =
      (static_cast<std::uint32_t>(magnitude) << 13) + kRebias + (not_finite & kRebias);
  return std::bit_cast<float>(sign | (tiny & is_tiny) | (normal & ~is_tiny));
}

/// Values of 65520 and more become infinity; NaNs become quiet.
constexpr std::uint16_t f32_to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {  // NaN
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520: half way between the largest half and 2^16
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14: normal; a carry moves into the exponent
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {                   // 2^-25: subnormal, in units of 2^-24
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14..24
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t below_half = (1u << (shift - 1)) - 1u;
    half = (mantissa + below_half + ((mantissa >> shift) & 1u)) >> shift;
  }
  return static_cast<std::uint16_t>(sign | half);
}

constexpr float bf16_to_f32(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// NaNs become quiet.
constexpr std::uint16_t f32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace decant::detail
