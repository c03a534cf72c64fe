// a * b + c in single precision, rounded once, without hardware: the same bits as a fused
// instruction. After Boldo & Melquiond, "Emulation of FMA and correctly rounded sums: proved
// algorithms using rounding to odd" (2008).
#pragma once

#include <bit>
#include <cstdint>

namespace decant::detail {

inline float fma_f32(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);  // exact: 48 bits
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  // What the sum lost (Knuth's two-sum), exact.
  const double p = sum - addend;
  const double error = (product - p) + (addend - (sum - p));
  // Rounded to odd, the second rounding to float cannot meet a false tie.
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (error != 0.0 && (bits & 1) == 0)
    bits += ((error > 0.0) == (sum > 0.0)) ? 1 : ~std::uint64_t{0};
  return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace decant::detail
