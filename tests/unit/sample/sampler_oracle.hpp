// The sampler's definitions, written a second time as plainly as possible: long double, full sorts,
// the C library's exp and log. Tests compare the library with it on random input.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <decant/decant.hpp>
#include "base/random.hpp"

namespace decant_test {

using decant::Sampler;
using decant::SamplerStep;
using decant::Token;

struct OracleResult {
  std::vector<double> probabilities;
  /// How close a decision was, relative: below about 1e-12 another rounding may decide otherwise.
  double margin = 1.0;
};

class SamplerOracle {
 public:
  static OracleResult run(const Sampler& s, std::span<const float> logits,
                          std::span<const Token> history) {
    SamplerOracle o;
    bool infinite = false;
    for (const float x : logits) infinite = infinite || x == std::numeric_limits<float>::infinity();
    for (const float x : logits)
      o.x_.push_back(std::isnan(x) || (infinite && x != std::numeric_limits<float>::infinity())
                         ? kOut
                     : infinite ? 0.0L
                                : static_cast<long double>(x));
    for (const SamplerStep step : s.order) {
      if (step == SamplerStep::penalties && !infinite) o.penalties(s, history);
      if (step == SamplerStep::top_k && s.top_k > 0) o.top_k(static_cast<std::size_t>(s.top_k));
      if (step == SamplerStep::typical && s.typical_p < 1.0f) o.typical(s.typical_p);
      if (step == SamplerStep::top_p && s.top_p < 1.0f) o.top_p(s.top_p);
      if (step == SamplerStep::min_p && s.min_p > 0.0f) o.min_p(s.min_p);
      if (step == SamplerStep::temperature) o.temperature(s.temperature);
    }
    OracleResult result;
    for (const long double p : o.softmax()) result.probabilities.push_back(static_cast<double>(p));
    result.margin = static_cast<double>(o.margin_);
    return result;
  }

 private:
  static constexpr long double kOut = -std::numeric_limits<long double>::infinity();

  std::vector<long double> softmax() const {
    const long double max = *std::max_element(x_.begin(), x_.end());
    std::vector<long double> p;
    for (const long double x : x_) p.push_back(x == kOut ? 0.0L : std::exp(x - max));
    const long double sum = std::accumulate(p.begin(), p.end(), 0.0L);
    for (long double& v : p) v /= sum;
    return p;
  }

  /// Ids that are left, by key descending, ties by id.
  std::vector<std::size_t> ranked(const std::vector<long double>& key) const {
    std::vector<std::size_t> ids;
    for (std::size_t i = 0; i < x_.size(); ++i)
      if (x_[i] != kOut) ids.push_back(i);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](std::size_t a, std::size_t b) { return key[a] > key[b]; });
    return ids;
  }

  void keep(const std::vector<std::size_t>& ids) {
    std::vector<long double> x(x_.size(), kOut);
    for (const std::size_t i : ids) x[i] = x_[i];
    x_ = x;
  }

  void keep_mass(std::vector<std::size_t> ids, const std::vector<long double>& p,
                 const std::vector<long double>& key, long double mass) {
    long double sum = 0.0L;
    for (std::size_t n = 0; n < ids.size(); ++n) {
      sum += p[ids[n]];
      margin_ = std::min(margin_, std::abs(sum - mass));
      if (sum < mass) continue;
      if (n + 1 < ids.size() && key[ids[n]] != key[ids[n + 1]])
        margin_ = std::min(margin_, key[ids[n]] - key[ids[n + 1]]);
      ids.resize(n + 1);
      break;
    }
    keep(ids);
  }

  void penalties(const Sampler& s, std::span<const Token> history) {
    const auto recent = history.last(std::min(history.size(), s.penalty_last));
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const auto count = std::count(recent.begin(), recent.end(), static_cast<Token>(i));
      if (count == 0 || x_[i] == kOut) continue;
      x_[i] = x_[i] > 0 ? x_[i] / s.repetition_penalty : x_[i] * s.repetition_penalty;
      x_[i] -= static_cast<long double>(s.frequency_penalty) * static_cast<long double>(count) +
               static_cast<long double>(s.presence_penalty);
    }
  }

  void top_k(std::size_t k) {
    auto ids = ranked(x_);
    if (ids.size() > k) ids.resize(k);
    keep(ids);
  }

  void typical(float mass) {
    const auto p = softmax();
    const long double max = *std::max_element(x_.begin(), x_.end());
    long double sum = 0.0L, entropy = 0.0L;
    for (const long double x : x_) sum += x == kOut ? 0.0L : std::exp(x - max);
    const auto surprise = [&](std::size_t i) { return std::log(sum) - (x_[i] - max); };
    for (std::size_t i = 0; i < p.size(); ++i)
      if (p[i] > 0) entropy += p[i] * surprise(i);
    std::vector<long double> key(p.size(), kOut);
    for (std::size_t i = 0; i < p.size(); ++i)
      if (x_[i] != kOut) key[i] = -std::abs(surprise(i) - entropy);
    keep_mass(ranked(key), p, key, mass);
  }

  void top_p(float mass) { keep_mass(ranked(x_), softmax(), x_, mass); }

  void min_p(float least) {
    const auto p = softmax();
    const long double max = *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i] != max) margin_ = std::min(margin_, std::abs(p[i] / max - least));
      if (p[i] < least * max) x_[i] = kOut;
    }
  }

  void temperature(float t) {
    if (t < std::numeric_limits<float>::min()) return top_k(1);
    for (long double& x : x_) x /= t;
  }

  std::vector<long double> x_;
  long double margin_ = 1.0L;
};

/// Reproducible numbers for tests.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  double uniform(double low = 0.0, double high = 1.0) {
    return low +
           (high - low) * decant::detail::random_uniform({.seed = seed_, .position = next_++});
  }
  int below(int n) { return static_cast<int>(uniform(0.0, n)); }
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

}  // namespace decant_test
