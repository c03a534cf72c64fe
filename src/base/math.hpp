// exp, log, tanh, sin, cos and pow in double with the same bits on every system: nothing but
// + - * / of IEEE double, no fused operations, no call of the C library, whose functions differ
// from one version to the next. Errors in ulp, as tested: exp 1, log 1, sin and cos 1, pow 1.5,
// tanh 2.5.
//
// Argument reduction after Cody & Waite, Software Manual for the Elementary Functions (1980); the
// forms follow Muller, Elementary Functions (3rd ed., 2016). Polynomials are Taylor series, cut
// where the next term is below a tenth of an ulp, so every coefficient is a plain fraction.
// What is constexpr serves GPUs too, and gives the same bits there.
// Caller: FloatMode must hold; the file that includes this includes base/fp_contract.hpp first.
#pragma once

#include "base/fp_contract.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace decant::detail {

/// Adding 1.5 * 2^52 leaves the nearest integer (ties to even) in the low bits of the sum.
inline constexpr double kMathRound = 0x1.8p52;

/// The nearest integer, ties to even, for |x| < 2^51. Vectorises, unlike a call.
constexpr double math_rint(double x) { return (x + kMathRound) - kMathRound; }

/// 2^k for an integer k in [-1022, 1023].
constexpr double math_pow2(double k) {
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(k + kMathRound) + 1023) << 52);
}

/// x = k ln 2 + r with |r| <= ln(2) / 2; expm1 = exp(r) - 1.
struct MathExp {
  double k;
  double expm1;
};

/// |x| < 2^20.
constexpr MathExp math_exp_reduced(double x) {
  constexpr double log2e = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42fefa3800p-1;  // 42 bits: k * ln2_high is exact
  constexpr double ln2_low = 0x1.ef35793c76730p-45;
  const double k = math_rint(x * log2e);
  const double r = (x - k * ln2_high) - k * ln2_low;
  // exp(r) - 1 - r = r^2 q
  double q = 1.0 / 6227020800.0;
  q = q * r + 1.0 / 479001600.0;
  q = q * r + 1.0 / 39916800.0;
  q = q * r + 1.0 / 3628800.0;
  q = q * r + 1.0 / 362880.0;
  q = q * r + 1.0 / 40320.0;
  q = q * r + 1.0 / 5040.0;
  q = q * r + 1.0 / 720.0;
  q = q * r + 1.0 / 120.0;
  q = q * r + 1.0 / 24.0;
  q = q * r + 1.0 / 6.0;
  q = q * r + 0.5;
  return {k, r + r * r * q};
}

/// The range in which exp_d is neither 0 nor infinity lies inside; NaN stays.
constexpr double math_exp_clamp(double x) {
  x = x < -746.0 ? -746.0 : x;
  return x > 710.0 ? 710.0 : x;
}

/// x in [-746, 710] or NaN.
constexpr double math_exp_clamped(double x) {
  const MathExp e = math_exp_reduced(x);
  const double half = math_rint(0.5 * e.k);  // in two steps: k goes beyond the exponents of double
  return (1.0 + e.expm1) * math_pow2(half) * math_pow2(e.k - half);
}

/// e^x; 0 below about -745.13, infinity above about 709.78, NaN for NaN. Subnormal results are
/// rounded once.
constexpr double exp_d(double x) { return math_exp_clamped(math_exp_clamp(x)); }

/// x[i] = exp_d(x[i]), the same bits. In two loops of a fixed length, which g++ vectorises; it
/// would not do so with one, where it follows the clamped values as branches of their own.
inline void exp_row(double* x, std::size_t n) {  // x: [n]
  constexpr std::size_t block = 64;
  for (; n >= block; n -= block, x += block) {
    for (std::size_t i = 0; i < block; ++i) x[i] = math_exp_clamp(x[i]);
    for (std::size_t i = 0; i < block; ++i) x[i] = math_exp_clamped(x[i]);
  }
  for (std::size_t i = 0; i < n; ++i) x[i] = exp_d(x[i]);
}

/// (e^2x - 1) / (e^2x + 1); NaN for NaN, keeps the sign of zero.
inline double tanh_d(double x) {
  constexpr std::uint64_t sign_bit = 0x8000000000000000u;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const double magnitude = std::bit_cast<double>(bits & ~sign_bit);
  const MathExp e = math_exp_reduced(2.0 * (magnitude > 20.0 ? 20.0 : magnitude));
  const double scale = math_pow2(e.k);
  const double expm1 = scale * e.expm1 + (scale - 1.0);
  const double t = expm1 / (expm1 + 2.0);
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(t) | (bits & sign_bit));
}

/// cap tanh(x / cap), which stays below cap; cap 0: x.
inline double soft_cap_d(double x, double cap) { return cap == 0.0 ? x : cap * tanh_d(x / cap); }

/// The natural logarithm; -infinity for 0, NaN below 0 and for NaN.
double log_d(double x);

/// Sine and cosine in one, as RoPE wants them.
struct SinCos {
  double sin;
  double cos;
};

/// |x| <= 2^26 pi / 2, about 1e8; NaN beyond and for NaN.
SinCos sincos_d(double x);
inline double sin_d(double x) { return sincos_d(x).sin; }
inline double cos_d(double x) { return sincos_d(x).cos; }

/// x^y for x >= 0; NaN for x < 0 and where either is NaN, except x^0 = 1.
double pow_d(double x, double y);

}  // namespace decant::detail
