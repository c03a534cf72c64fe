#include "base/fp_contract.hpp"

#include "sample/sampler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/math.hpp"
#include "base/random.hpp"
#include "base/result.hpp"

namespace decant::detail {

static constexpr double kSamplerInfinity = std::numeric_limits<double>::infinity();

static bool sampler_is_greedy(float temperature) {
  return temperature < std::numeric_limits<float>::min();
}

Status sampler_validate(const Sampler& s) {
  const auto outside = [](const char* field, float value, const char* range) {
    return make_error(ErrorCode::invalid_argument, "sampler: {} is {}, but must be {}", field,
                      value, range);
  };
  const auto is_probability = [](float value) { return value >= 0.0f && value <= 1.0f; };
  if (!(s.temperature >= 0.0f && std::isfinite(s.temperature)))
    return outside("temperature", s.temperature, "finite and not negative");
  if (!is_probability(s.top_p)) return outside("top_p", s.top_p, "in [0, 1]");
  if (!is_probability(s.min_p)) return outside("min_p", s.min_p, "in [0, 1]");
  if (!is_probability(s.typical_p)) return outside("typical_p", s.typical_p, "in [0, 1]");
  if (!(s.repetition_penalty > 0.0f && std::isfinite(s.repetition_penalty)))
    return outside("repetition_penalty", s.repetition_penalty, "finite and above 0");
  if (!std::isfinite(s.frequency_penalty))
    return outside("frequency_penalty", s.frequency_penalty, "finite");
  if (!std::isfinite(s.presence_penalty))
    return outside("presence_penalty", s.presence_penalty, "finite");
  unsigned seen = 0;
  for (const SamplerStep step : s.order) {
    const unsigned index = static_cast<unsigned>(step);
    if (index > static_cast<unsigned>(SamplerStep::temperature))
      return make_error(ErrorCode::invalid_argument, "sampler: order holds {}, which is no step",
                        index);
    if ((seen >> index & 1u) != 0)
      return make_error(ErrorCode::invalid_argument, "sampler: order names step {} twice", index);
    seen |= 1u << index;
  }
  return {};
}

/// Each lane adds the terms whose index is its own modulo 16, ascending; the lanes meet in a tree.
template <class Term>
static double sampler_sum(std::size_t n, Term term) {
  double lanes[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (std::size_t lane = 0; lane < 16; ++lane) lanes[lane] += term(i + lane);
  for (std::size_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (std::size_t width = 8; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

/// The largest of `start` and x [n], NaN left out. Sixteen running maxima are what compilers turn
/// into vector code.
template <class T>
static T sampler_highest(const T* x, std::size_t n, T start) {
  constexpr std::size_t n_lanes = 16;
  T lanes[n_lanes];
  for (T& lane : lanes) lane = start;
  for (; n >= n_lanes; n -= n_lanes, x += n_lanes)
    for (std::size_t l = 0; l < n_lanes; ++l) lanes[l] = x[l] > lanes[l] ? x[l] : lanes[l];
  for (std::size_t i = 0; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + n_lanes);
}

static double sampler_max(const SamplerWorkspace& w) {
  return sampler_highest(w.logits.data(), w.count, -kSamplerInfinity);
}

static void sampler_weigh(SamplerWorkspace& w) {
  if (w.weighed) return;
  const double max = sampler_max(w);
  for (std::size_t i = 0; i < w.count; ++i) w.weights[i] = w.logits[i] - max;
  exp_row(w.weights.data(), w.count);
  w.total = sampler_sum(w.count, [&](std::size_t i) { return w.weights[i]; });
  w.weighed = true;
}

/// Drops the candidates i without keep(i). What is left of a softmax needs only a new sum, as long
/// as the largest logit stays.
template <class Keep>
static void sampler_filter(SamplerWorkspace& w, Keep keep) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < w.count; ++i) {
    const bool keeps = keep(i);
    w.ids[kept] = w.ids[i];
    w.logits[kept] = w.logits[i];
    if (w.weighed) w.weights[kept] = w.weights[i];
    kept += keeps;
  }
  w.count = kept;
  if (w.weighed) w.total = sampler_sum(kept, [&](std::size_t i) { return w.weights[i]; });
}

/// Candidates by key descending, then in their own order.
template <class Key>
static auto sampler_before(Key key) {
  return [key](std::size_t a, std::size_t b) {
    const double of_a = key(a), of_b = key(b);
    return of_a > of_b || (of_a == of_b && a < b);
  };
}

struct SamplerPeak {
  float value = -std::numeric_limits<float>::infinity();
  std::size_t at = 0;
};

/// The largest logit, NaN left out, at the lowest of its ids.
static SamplerPeak sampler_peak(std::span<const float> logits) {
  constexpr std::size_t block = 1024;
  SamplerPeak peak;
  for (std::size_t begin = 0; begin < logits.size(); begin += block) {
    const std::size_t n = std::min(block, logits.size() - begin);
    const float highest = sampler_highest(logits.data() + begin, n, peak.value);
    if (highest > peak.value) peak = {highest, begin};
  }
  while (peak.at < logits.size() && logits[peak.at] != peak.value) ++peak.at;
  return peak;
}

/// The finite logits with their ids. +inf beats all others, so those that have it are candidates
/// alone; NaN is treated as -inf.
static void sampler_load(SamplerWorkspace& w, std::span<const float> logits, bool infinite) {
  constexpr std::size_t block = 64;  // loops over so many are what compilers turn into vector code
  const float limit =
      infinite ? std::numeric_limits<float>::max() : -std::numeric_limits<float>::infinity();
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += block) {
    const float* const x = logits.data() + begin;
    const std::size_t n = std::min(block, logits.size() - begin);
    int n_candidates = 0;
    if (n == block)
      for (std::size_t i = 0; i < block; ++i) n_candidates += x[i] > limit ? 1 : 0;
    if (n_candidates == block && !infinite) {
      for (std::size_t i = 0; i < block; ++i) w.ids[count + i] = static_cast<Token>(begin + i);
      for (std::size_t i = 0; i < block; ++i) w.logits[count + i] = static_cast<double>(x[i]);
      count += block;
      continue;
    }
    for (std::size_t i = 0; i < n; ++i) {
      w.ids[count] = static_cast<Token>(begin + i);
      w.logits[count] = infinite ? 0.0 : static_cast<double>(x[i]);
      count += x[i] > limit;
    }
  }
  w.count = count;
  w.weighed = false;
}

bool sampler_penalises(const Sampler& s) {
  return s.penalty_last > 0 && (s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f ||
                                s.presence_penalty != 0.0f);
}

static double sampler_penalised(const Sampler& s, double x, std::uint32_t occurs) {
  const double repetition = s.repetition_penalty;
  x = x > 0.0 ? x / repetition : x * repetition;
  return x - static_cast<double>(s.frequency_penalty) * occurs -
         static_cast<double>(s.presence_penalty);
}

/// The part of the history that counts, with w.occurs filled for it. The caller zeroes what it
/// reads.
static std::span<const Token> sampler_count(const Sampler& s, std::span<const Token> history,
                                            SamplerWorkspace& w) {
  const auto recent = history.last(std::min(history.size(), s.penalty_last));
  for (const Token id : recent) ++w.occurs[static_cast<std::size_t>(id)];
  return recent;
}

static void sampler_penalise(const Sampler& s, std::span<const Token> history,
                             SamplerWorkspace& w) {
  const auto begin = w.ids.begin(), end = begin + static_cast<std::ptrdiff_t>(w.count);
  for (const Token id : sampler_count(s, history, w)) {
    const std::uint32_t occurs = std::exchange(w.occurs[static_cast<std::size_t>(id)], 0);
    const auto at = std::lower_bound(begin, end, id);
    if (occurs == 0 || at == end || *at != id) continue;
    double& x = w.logits[static_cast<std::size_t>(at - begin)];
    x = sampler_penalised(s, x, occurs);
  }
  w.weighed = false;
}

static void sampler_keep_best(SamplerWorkspace& w) {
  const auto begin = w.logits.begin();
  const auto best = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(w.count));
  w.ids[0] = w.ids[static_cast<std::size_t>(best - begin)];  // max_element: the first of equals
  w.logits[0] = *best;
  w.count = 1;
  w.weighed = false;
}

static void sampler_temperature(SamplerWorkspace& w, float temperature) {
  if (temperature == 1.0f) return;
  if (sampler_is_greedy(temperature)) return sampler_keep_best(w);
  const double divisor = temperature;
  for (std::size_t i = 0; i < w.count; ++i) w.logits[i] /= divisor;
  w.weighed = false;
}

/// Finds the k-th best with a buffer of 2 k: when it is full, the better half stays, and from then
/// on only candidates better than the worst of these enter.
static void sampler_top_k(SamplerWorkspace& w, int top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= w.count) return;
  const std::size_t k = static_cast<std::size_t>(top_k);
  const std::size_t capacity = k > w.count / 2 ? w.count : 2 * k;
  const auto logit = [&](std::size_t i) { return w.logits[i]; };
  std::uint32_t* const best = w.ranked.data();
  double worst = -kSamplerInfinity;
  std::size_t n = 0;
  const auto halve = [&] {
    std::nth_element(best, best + k - 1, best + n, sampler_before(logit));
    worst = logit(best[k - 1]);
    n = k;
  };
  for (std::size_t i = 0; i < w.count; ++i) {
    if (!(w.logits[i] > worst)) continue;  // equal: its id is higher than all before it
    best[n++] = static_cast<std::uint32_t>(i);
    if (n == capacity) halve();
  }
  halve();
  std::sort(best, best + k);
  for (std::size_t i = 0; i < k; ++i) {
    w.ids[i] = w.ids[best[i]];
    w.logits[i] = w.logits[best[i]];
  }
  w.count = k;
  w.weighed = false;
}

/// Keeps the shortest prefix by key(i) descending whose weights sum to at least `target`. Instead
/// of sorting all, sums the weights in buckets of similar keys, ids ascending, and sorts only the
/// bucket in which the prefix ends.
template <class Key>
static void sampler_keep_mass(SamplerWorkspace& w, double target, Key key) {
  constexpr std::size_t n_buckets = 1024;
  double best = -kSamplerInfinity, worst = kSamplerInfinity;
  for (std::size_t i = 0; i < w.count; ++i) {
    best = std::max(best, key(i));
    worst = std::min(worst, key(i));
  }
  // Further below than e^-64 nothing weighs enough to need buckets of its own.
  const double range = std::min(best - worst, 64.0);
  const double scale = range > 1e-200 ? static_cast<double>(n_buckets) / range : 0.0;
  const auto bucket_of = [&](std::size_t i) {
    const double place = (best - key(i)) * scale;
    return place < static_cast<double>(n_buckets) ? static_cast<std::size_t>(place) : n_buckets - 1;
  };
  std::array<double, n_buckets> sums = {};
  for (std::size_t i = 0; i < w.count; ++i) sums[bucket_of(i)] += w.weights[i];
  double sum = 0.0;
  std::size_t bucket = 0;
  while (bucket < n_buckets && sum + sums[bucket] < target) sum += sums[bucket++];
  if (bucket == n_buckets) return;  // a target within rounding of everything

  std::uint32_t* const ranked = w.ranked.data();
  std::size_t n = 0;
  for (std::size_t i = 0; i < w.count; ++i) {
    ranked[n] = static_cast<std::uint32_t>(i);
    n += bucket_of(i) == bucket;
  }
  std::sort(ranked, ranked + n, sampler_before(key));
  std::size_t last = 0;
  while (last + 1 < n && (sum += w.weights[ranked[last]]) < target) ++last;
  const std::size_t end = ranked[last];
  const double end_key = key(end);  // before the filter moves what it is made of
  sampler_filter(w, [&](std::size_t i) {
    const double k = key(i);
    return k > end_key || (k == end_key && i <= end);
  });
}

static void sampler_top_p(SamplerWorkspace& w, float top_p) {
  if (top_p >= 1.0f) return;
  sampler_weigh(w);
  sampler_keep_mass(w, static_cast<double>(top_p) * w.total,
                    [&](std::size_t i) { return w.logits[i]; });
}

static void sampler_min_p(SamplerWorkspace& w, float min_p) {
  if (min_p <= 0.0f) return;
  const double least = min_p;
  if (!w.weighed) {  // spares the exponentials of what is clearly too small
    const double bound = sampler_max(w) + (log_d(least) - 0.01);
    sampler_filter(w, [&](std::size_t i) { return w.logits[i] >= bound; });
    sampler_weigh(w);
  }
  sampler_filter(w, [&](std::size_t i) { return w.weights[i] >= least; });  // the largest is 1
}

static void sampler_typical(SamplerWorkspace& w, float typical_p) {
  if (typical_p >= 1.0f) return;
  sampler_weigh(w);
  // -ln p = (max - x) + ln(total), so ln(total) cancels in |-ln p - H|.
  const double max = sampler_max(w);
  const double mean =
      sampler_sum(w.count, [&](std::size_t i) { return w.weights[i] * (max - w.logits[i]); }) /
      w.total;
  sampler_keep_mass(w, static_cast<double>(typical_p) * w.total, [&](std::size_t i) {
    const double deviation = (max - w.logits[i]) - mean;
    return deviation < 0.0 ? deviation : -deviation;
  });
  w.weighed = false;  // the largest logit may be gone
}

/// Whether the steps come down to the largest logit, before or after penalties: the ones before
/// the step that keeps a single candidate never drop the best, and penalties precede them.
SamplerGreedy sampler_greedy(const Sampler& s) {
  SamplerGreedy greedy = SamplerGreedy::logits;
  bool truncated = false;
  for (const SamplerStep step : s.order) {
    switch (step) {
      case SamplerStep::penalties:
        if (!sampler_penalises(s)) break;
        if (truncated) return SamplerGreedy::no;
        greedy = SamplerGreedy::penalised;
        break;
      case SamplerStep::top_k:
        if (s.top_k == 1) return greedy;
        truncated = truncated || s.top_k > 0;
        break;
      case SamplerStep::typical:
        if (s.typical_p < 1.0f) return SamplerGreedy::no;
        break;
      case SamplerStep::top_p: truncated = truncated || s.top_p < 1.0f; break;
      case SamplerStep::min_p: truncated = truncated || s.min_p > 0.0f; break;
      case SamplerStep::temperature:
        if (sampler_is_greedy(s.temperature)) return greedy;
        if (s.temperature != 1.0f) return SamplerGreedy::no;
        break;
    }
  }
  return SamplerGreedy::no;
}

/// The largest logit after penalties, the lowest id of equals.
static Token sampler_best_penalised(const Sampler& s, std::span<const float> logits,
                                    std::span<const Token> history, SamplerWorkspace& w) {
  const std::span<const Token> recent = sampler_count(s, history, w);
  double best = -kSamplerInfinity;
  Token id = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double x = logits[i];
    if (w.occurs[i] != 0) x = sampler_penalised(s, x, w.occurs[i]);
    if (x > best) {
      best = x;
      id = static_cast<Token>(i);
    }
  }
  for (const Token seen : recent) w.occurs[static_cast<std::size_t>(seen)] = 0;
  return id;
}

Error no_valid_token(std::size_t n) {
  return make_error(ErrorCode::no_valid_token,
                    "no token is left to choose from: all {} logits are -inf or NaN", n);
}

/// Checks everything, then applies the steps: afterwards `w` holds at least one candidate.
static Status sampler_apply(const Sampler& s, std::span<const float> logits,
                            std::span<const Token> history, SamplerWorkspace& w) {
  DECANT_TRY(sampler_validate(s));
  const std::size_t n = logits.size();
  if (n > static_cast<std::size_t>(std::numeric_limits<Token>::max()))
    return make_error(ErrorCode::invalid_argument, "sampler: {} logits are more than token ids", n);
  for (const Token id : history)
    if (id < 0 || static_cast<std::size_t>(id) >= n)
      return make_error(ErrorCode::invalid_argument,
                        "sampler: token {} in the history is outside the {} logits", id, n);
  const SamplerPeak peak = sampler_peak(logits);
  const bool infinite = peak.value > std::numeric_limits<float>::max();
  if (!(peak.value > -std::numeric_limits<float>::infinity())) return no_valid_token(n);
  w.fit(n);

  const bool penalise = !infinite && sampler_penalises(s);
  if (const SamplerGreedy greedy = sampler_greedy(s); greedy != SamplerGreedy::no) {
    w.ids[0] = penalise && greedy == SamplerGreedy::penalised
                   ? sampler_best_penalised(s, logits, history, w)
                   : static_cast<Token>(peak.at);
    w.logits[0] = 0.0;  // whatever it was, the candidate is alone
    w.count = 1;
    w.weighed = false;
    return {};
  }
  sampler_load(w, logits, infinite);
  for (const SamplerStep step : s.order) {
    if (w.count == 1) break;
    switch (step) {
      case SamplerStep::penalties:
        if (penalise) sampler_penalise(s, history, w);
        break;
      case SamplerStep::top_k: sampler_top_k(w, s.top_k); break;
      case SamplerStep::typical: sampler_typical(w, s.typical_p); break;
      case SamplerStep::top_p: sampler_top_p(w, s.top_p); break;
      case SamplerStep::min_p: sampler_min_p(w, s.min_p); break;
      case SamplerStep::temperature: sampler_temperature(w, s.temperature); break;
    }
  }
  return {};
}

Result<Token> sample_token(const Sampler& sampler, std::span<const float> logits,
                           std::span<const Token> history, std::uint64_t seed,
                           std::uint64_t position, SamplerWorkspace& w) {
  DECANT_TRY(sampler_apply(sampler, logits, history, w));
  if (w.count == 1) return w.ids[0];
  sampler_weigh(w);
  const double target = w.total * random_uniform({.seed = seed,
                                                  .position = position,
                                                  .sample_index = sampler.sample_index,
                                                  .purpose = RandomPurpose::sample});
  // The running sum and `total` are rounded differently: should it end below the target, the last
  // candidate that weighs anything is the one.
  double sum = 0.0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < w.count && !(sum > target); ++i) {
    sum += w.weights[i];
    if (w.weights[i] > 0.0) chosen = i;
  }
  return w.ids[chosen];
}

Status sampler_distribution(const Sampler& sampler, std::span<const float> logits,
                            std::span<const Token> history, SamplerWorkspace& w,
                            std::span<double> probabilities) {
  if (probabilities.size() != logits.size())
    return make_error(ErrorCode::invalid_argument,
                      "sampler: room for {} probabilities of {} logits", probabilities.size(),
                      logits.size());
  DECANT_TRY(sampler_apply(sampler, logits, history, w));
  sampler_weigh(w);
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
  for (std::size_t i = 0; i < w.count; ++i)
    probabilities[static_cast<std::size_t>(w.ids[i])] = w.weights[i] / w.total;
  return {};
}

}  // namespace decant::detail
