#include "base/math.hpp"

namespace decant::detail {

static constexpr double kMathInfinity = std::numeric_limits<double>::infinity();
static constexpr double kMathNan = std::numeric_limits<double>::quiet_NaN();
static constexpr double kMathLn2High = 0x1.62e42fefa3800p-1;  // 42 bits
static constexpr double kMathLn2Low = 0x1.ef35793c76730p-45;

/// An unevaluated sum, |low| <= ulp(high) / 2: about 106 bits (Dekker 1971).
struct MathPair {
  double high;
  double low;
};

static MathPair math_two_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

/// Exact while |a|, |b| < 2^995 and the product is far from underflow.
static MathPair math_two_product(double a, double b) {
  constexpr double split = 134217729.0;  // 2^27 + 1, Veltkamp
  const double a_split = split * a, b_split = split * b;
  const double a_high = a_split - (a_split - a), b_high = b_split - (b_split - b);
  const double a_low = a - a_high, b_low = b - b_high;
  const double product = a * b;
  return {product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

static MathPair math_add(MathPair a, MathPair b) {
  const MathPair sum = math_two_sum(a.high, b.high);
  return math_two_sum(sum.high, sum.low + (a.low + b.low));
}

static MathPair math_multiply(MathPair a, MathPair b) {
  const MathPair product = math_two_product(a.high, b.high);
  return math_two_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

static MathPair math_divide(MathPair a, MathPair b) {
  const double quotient = a.high / b.high;
  const MathPair back = math_multiply(b, {quotient, 0.0});
  const double rest = (a.high - back.high) - back.low + a.low;
  return math_two_sum(quotient, rest / b.high);
}

/// x = 2^exponent * mantissa, mantissa in [sqrt(1/2), sqrt(2)); x is positive and finite.
struct MathBinary {
  double exponent;
  double mantissa;
};

static MathBinary math_binary(double x) {
  double exponent = 0.0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54.0;
  }
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
  exponent += static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
  const double mantissa = std::bit_cast<double>(fraction | 0x3FF0000000000000u);
  if (mantissa >= 0x1.6a09e667f3bcdp+0) return {exponent + 1.0, 0.5 * mantissa};
  return {exponent, mantissa};
}

// log(1 + f) = 2 atanh(s), s = f / (2 + f), and 2 atanh(s) = 2 s + s r(s^2). Since
// 2 s = f - s f, this equals f - (f^2/2 - s (f^2/2 + r)), where the largest term is exact.
double log_d(double x) {
  if (!(x > 0.0)) return x == 0.0 ? -kMathInfinity : kMathNan;
  if (x == kMathInfinity) return x;
  const MathBinary b = math_binary(x);
  const double f = b.mantissa - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double r = 2.0 / 23.0;
  for (int n = 21; n >= 3; n -= 2) r = r * z + 2.0 / n;
  r *= z;
  const double half = 0.5 * f * f;
  const double low = s * (half + r) + b.exponent * kMathLn2Low;
  return b.exponent * kMathLn2High - ((half - low) - f);
}

// x - n pi/2, n the nearest integer: pi/2 is cut into three parts of 27 bits, whose products with
// n < 2^27 are exact, and a rest. The remainder keeps a low part, so that it is accurate also
// where x lies close to a multiple of pi/2.
SinCos sincos_d(double x) {
  constexpr double limit = 0x1p26 * 0x1.921fb54442d18p+0;
  if (!(x >= -limit && x <= limit)) return {kMathNan, kMathNan};
  const double n = math_rint(x * 0x1.45f306dc9c883p-1);
  const double first = x - n * 0x1.921fb54000000p+0;
  const MathPair second = math_two_sum(first, -(n * 0x1.10b4610000000p-30));
  const MathPair third = math_two_sum(second.high, -(n * 0x1.a626330000000p-58));
  const MathPair rest =
      math_two_sum(third.high, (second.low + third.low) - n * 0x1.45c06e0e68948p-86);
  const double r = rest.high;
  const double z = r * r;

  double s = 1.0 / 355687428096000.0;
  s = s * z - 1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  // sin(r + low) = sin(r) + low cos(r)
  const double sine = r + (r * z * s + rest.low * (1.0 - 0.5 * z));

  double c = -1.0 / 6402373705728000.0;
  c = c * z + 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  // cos(r + low) = cos(r) - low sin(r); the rounding of 1 - z/2 is carried along.
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  const double cosine = head + (((1.0 - head) - half) + (z * z * c - r * rest.low));

  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: return {r == 0.0 ? x : sine, cosine};  // keeps the sign of zero
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

/// log(x) as a pair, for positive finite x: 2 atanh(s) term by term in pairs.
static MathPair math_log_pair(double x) {
  const MathBinary b = math_binary(x);
  const double f = b.mantissa - 1.0;
  const MathPair s = math_divide({f, 0.0}, math_two_sum(2.0, f));
  const MathPair z = math_multiply(s, s);
  MathPair sum = {0.0, 0.0};
  for (int n = 25; n >= 1; n -= 2)
    sum = math_add(math_multiply(sum, z), math_divide({2.0, 0.0}, {static_cast<double>(n), 0.0}));
  sum = math_multiply(sum, s);
  const MathPair scale = math_two_sum(b.exponent * kMathLn2High, b.exponent * kMathLn2Low);
  return math_add(scale, sum);
}

double pow_d(double x, double y) {
  if (y == 0.0 || x == 1.0) return 1.0;
  if (!(x >= 0.0) || y != y) return kMathNan;
  if (x == 0.0 || x == kMathInfinity) return (x == 0.0) == (y > 0.0) ? 0.0 : kMathInfinity;
  const MathPair log = math_log_pair(x);
  // Beyond +-2^11 the answer is 0 or infinity (or 1 for the tiniest); it also keeps y finite below.
  const double rough = y * log.high;
  if (!(rough > -2048.0 && rough < 2048.0)) return rough > 0.0 ? kMathInfinity : 0.0;
  const MathPair product = math_multiply(log, {y, 0.0});
  const double power = exp_d(product.high);
  return power == kMathInfinity ? power : power + power * product.low;
}

}  // namespace decant::detail
