#include "base/math.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/float_mode.hpp"
#include "base/random.hpp"
#include "math_table.hpp"
#include "support/catch.hpp"
#include "support/host_mode.hpp"

using namespace decant::detail;
using namespace decant_test;

static constexpr double kInf = std::numeric_limits<double>::infinity();
static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

namespace {

double math_ulp(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 53, -1074));
}

template <class F>
void check_table(const char* name, F f, const MathCase* begin, const MathCase* end, double bound) {
  double worst = 0.0, at = 0.0;
  for (const MathCase* c = begin; c != end; ++c) {
    const double error = std::abs((f(c->x) - c->nearest) / math_ulp(c->nearest) - c->rest);
    if (!(error <= worst)) worst = error, at = c->x;
  }
  INFO(name << ": worst error " << worst << " ulp at " << at);
  CHECK(worst <= bound);
  CHECK(worst > 0.0);
}

double uniform(std::uint64_t i, double low, double high) {
  return low + (high - low) * random_uniform({.seed = 99, .position = i});
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Everything in one row of numbers, for comparing bits. The arguments come from memory.
std::vector<double> evaluate(const std::vector<double>& x) {
  std::vector<double> y;
  for (const double v : x) {
    y.push_back(exp_d(v));
    y.push_back(tanh_d(v));
    y.push_back(log_d(v));
    y.push_back(sin_d(v));
    y.push_back(cos_d(v));
    y.push_back(pow_d(v, 0.37));
    y.push_back(pow_d(v, -1.9));
  }
  return y;
}

std::vector<double> interesting() {
  std::vector<double> x = {0.0,    -0.0,   5e-324, 1e-310, -1e-310, 1.0,   -1.0, 0.5,
                           -708.5, -744.0, -745.1, -746.0, 709.7,   710.0, kInf, -kInf,
                           kNan,   1e-17,  1e8,    1e9,    1048575, 355.0, 1e308};
  for (std::uint64_t i = 0; i < 500; ++i) x.push_back(uniform(i, -50.0, 50.0));
  return x;
}

}  // namespace

TEST_CASE("math functions agree with 70-digit values") {
  check_table("exp", exp_d, std::begin(kMathExp), std::end(kMathExp), 1.0);
  check_table("log", log_d, std::begin(kMathLog), std::end(kMathLog), 1.0);
  check_table("tanh", tanh_d, std::begin(kMathTanh), std::end(kMathTanh), 2.5);
  check_table("sin", sin_d, std::begin(kMathSin), std::end(kMathSin), 1.0);
  check_table("cos", cos_d, std::begin(kMathCos), std::end(kMathCos), 1.0);
  for (const MathPowCase& c : kMathPow) {
    const double error = std::abs((pow_d(c.x, c.y) - c.nearest) / math_ulp(c.nearest) - c.rest);
    INFO(c.x << " to the " << c.y);
    CHECK(error <= 1.5);
  }
}

// An independent library with 64 bits of mantissa; elsewhere the table alone has to do.
#if LDBL_MANT_DIG >= 64
TEST_CASE("math functions agree with the C library's long double on dense samples") {
  const auto check = [](const char* name, auto f, auto reference, double low, double high,
                        double bound) {
    double worst = 0.0, at = 0.0;
    for (std::uint64_t i = 0; i < 40000; ++i) {
      const double x = uniform(i, low, high);
      const long double expected = reference(static_cast<long double>(x));
      const double error =
          static_cast<double>(std::abs(f(x) - expected)) / math_ulp(static_cast<double>(expected));
      if (!(error <= worst)) worst = error, at = x;
    }
    INFO(name << " in [" << low << ", " << high << "]: " << worst << " ulp at " << at);
    CHECK(worst <= bound);
  };
  const auto exp_l = [](long double x) { return std::exp(x); };
  const auto log_l = [](long double x) { return std::log(x); };
  const auto tanh_l = [](long double x) { return std::tanh(x); };
  const auto sin_l = [](long double x) { return std::sin(x); };
  const auto cos_l = [](long double x) { return std::cos(x); };
  check("exp", exp_d, exp_l, -1.0, 1.0, 1.0);
  check("exp", exp_d, exp_l, -746.0, 709.7, 1.0);
  check("log", log_d, log_l, 0.5, 2.0, 1.0);
  check("log", log_d, log_l, 0.0, 1e6, 1.0);
  check("tanh", tanh_d, tanh_l, -1.0, 1.0, 2.5);
  check("tanh", tanh_d, tanh_l, -25.0, 25.0, 2.5);
  check("sin", sin_d, sin_l, -1048576.0, 1048576.0, 1.0);
  check("cos", cos_d, cos_l, -1048576.0, 1048576.0, 1.0);
  check("sin", sin_d, sin_l, -1e8, 1e8, 1.0);
  check(
      "pow", [](double x) { return pow_d(x, -0.6); },
      [](long double x) { return std::pow(x, static_cast<long double>(-0.6)); }, 1.0, 1e7, 1.5);
}
#endif

TEST_CASE("math functions at the edges") {
  CHECK(exp_d(0.0) == 1.0);
  CHECK(exp_d(kInf) == kInf);
  CHECK(exp_d(-kInf) == 0.0);
  CHECK(exp_d(1e308) == kInf);
  CHECK(exp_d(-1e308) == 0.0);
  CHECK(exp_d(709.782712893384) < kInf);
  CHECK(exp_d(709.7827128933841) == kInf);
  CHECK(exp_d(-745.1332191019411) == 5e-324);
  CHECK(exp_d(-745.1332191019412) == 0.0);
  CHECK(std::isnan(exp_d(kNan)));

  CHECK(log_d(1.0) == 0.0);
  CHECK(log_d(0.0) == -kInf);
  CHECK(log_d(-0.0) == -kInf);
  CHECK(log_d(kInf) == kInf);
  CHECK(std::isnan(log_d(-1.0)));
  CHECK(std::isnan(log_d(-kInf)));
  CHECK(std::isnan(log_d(kNan)));

  CHECK(same_bits(tanh_d(0.0), 0.0));
  CHECK(same_bits(tanh_d(-0.0), -0.0));
  CHECK(tanh_d(-5e-324) == -5e-324);
  CHECK(tanh_d(kInf) == 1.0);
  CHECK(tanh_d(-kInf) == -1.0);
  CHECK(std::isnan(tanh_d(kNan)));

  CHECK(same_bits(sin_d(-0.0), -0.0));
  CHECK(cos_d(0.0) == 1.0);
  for (const double x : {kInf, -kInf, kNan, 1.1e8, -1e300}) {
    CHECK(std::isnan(sin_d(x)));
    CHECK(std::isnan(cos_d(x)));
  }

  CHECK(pow_d(0.0, 2.0) == 0.0);
  CHECK(pow_d(0.0, -2.0) == kInf);
  CHECK(pow_d(kInf, 2.0) == kInf);
  CHECK(pow_d(kInf, -2.0) == 0.0);
  CHECK(pow_d(kNan, 0.0) == 1.0);
  CHECK(pow_d(1.0, kNan) == 1.0);
  CHECK(pow_d(2.0, kInf) == kInf);
  CHECK(pow_d(0.5, kInf) == 0.0);
  CHECK(pow_d(2.0, -kInf) == 0.0);
  CHECK(pow_d(2.0, 1024.0) == kInf);
  CHECK(pow_d(2.0, 10.0) == 1024.0);
  CHECK(pow_d(10000.0, 1.0) == 10000.0);
  CHECK(std::isnan(pow_d(-2.0, 2.0)));
  CHECK(std::isnan(pow_d(2.0, kNan)));
}

TEST_CASE("exp_row gives exp_d's bits at every length") {
  const std::vector<double> x = interesting();
  for (std::size_t n = 0; n < x.size(); n += n < 40 ? 1 : 97) {
    std::vector<double> row(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    exp_row(row.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      const double single = exp_d(x[i]);
      CHECK((same_bits(row[i], single) || (std::isnan(row[i]) && std::isnan(single))));
    }
  }
}

TEST_CASE("math results do not depend on the host's floating-point mode") {
  const std::vector<double> x = interesting();
  const std::vector<double> expected = evaluate(x);
  for (const auto kind : {HostMode::flush_to_zero, HostMode::toward_zero, HostMode::both}) {
    std::vector<double> guarded, bare;
    bool untouched = false;
    {
      const HostMode host(kind);
      bare = evaluate(x);
      {
        const FloatMode mode;
        guarded = evaluate(x);
      }
      untouched = host.untouched();
    }
    CHECK(untouched);
    REQUIRE(guarded.size() == expected.size());
    CHECK(std::memcmp(guarded.data(), expected.data(), expected.size() * sizeof(double)) == 0);
    // The mode was really set: without the guard bits change.
    if (HostMode::kAvailable)
      CHECK(std::memcmp(bare.data(), expected.data(), expected.size() * sizeof(double)) != 0);
  }
}

TEST_CASE("FloatMode nests and keeps the host's sticky flags") {
  const HostMode host(HostMode::both);
  const std::uint64_t before = float_mode_get();
  bool inner = false, outer = false;
  {
    const FloatMode mode;
    {
      const FloatMode again;
      inner = (float_mode_get() & ~kFloatModeFlags) == kFloatModeIeee;
    }
    outer = (float_mode_get() & ~kFloatModeFlags) == kFloatModeIeee;
  }
  const std::uint64_t after = float_mode_get();
  CHECK(inner);
  CHECK(outer);
  CHECK(after == before);
}
