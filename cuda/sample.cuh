// A token for each row of logits, as Sampler chooses it (sample/sampler.hpp has the steps), without
// a sort and without the logits leaving the GPU. One block takes a row, of 512 threads: with more,
// what they hold in double precision would not fit the registers.
//
// A step keeps a prefix of the candidates in the order (x descending, id ascending), so that what
// is left is described by where it ends. The end is found by pivots: measure what lies above seven
// of them, go on between two, until one value is left. A draw is a search over ids.
//
// x and exp(x - max) are the host's doubles, bit by bit. Sums of weights are integers, in units of
// 2^-s with s = 62 - ceil(log2(n_vocab)), 44 for 2^18 tokens: their order does not matter, so that
// neither threads nor GPUs change a result. Each weight is rounded by at most half a unit, sums by
// n_vocab / 2 units = 2^-s' with s' = 63 - 2 ceil(log2(n_vocab)): candidates of top_k and min_p are
// those of the host, those of top_p and the token unless the threshold or the random number lies
// within so much of another outcome, 7e-9 at most of the largest weight for 2^18 tokens.
#pragma once

#include <algorithm>
#include <climits>
#include <decant/decant.hpp>

#include "base/math.hpp"
#include "base/random.hpp"
#include "cuda/device.cuh"
#include "sample/sampler.hpp"

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / kWarp;
inline constexpr int kListed = kSampleThreads;  // candidates that are listed when so few are left
inline constexpr int kPivots = 7;

/// How a row's token is chosen.
struct SampleRow {
  bool wanted = true;   // else the row has no token
  bool greedy = false;  // the largest logit, whatever the rest says
  SamplerOrder order;
  float temperature = 1.0f, top_p = 1.0f, min_p = 0.0f;
  float repetition = 1.0f, frequency = 0.0f, presence = 0.0f;
  std::int32_t top_k = 0;
  std::int32_t first_history = 0, n_history = 0;  // what the penalties look at; 0: no penalties
  std::int32_t mask = -1;                         // -1: every token may be chosen
  RandomKey random;
};

/// A sampler as the kernel wants it, of a row with so many tokens before; where they begin, the
/// mask and the random number's position are the caller's to fill in. Penalties see the last
/// n_history of them. False: only the host knows how, for penalties behind other steps and for
/// `typical`.
inline bool sample_row(const Sampler& from, std::size_t n_before, SampleRow& to) {
  bool knows = n_before <= INT_MAX;
  to.n_history = 0;
  for (const SamplerStep& step : from.order) {
    if (step == SamplerStep::typical) knows = knows && from.typical_p >= 1.0f;
    if (step != SamplerStep::penalties || !sampler_penalises(from)) continue;
    knows = knows && &step == from.order.begin();
    to.n_history = static_cast<std::int32_t>(std::min(n_before, from.penalty_last));
  }
  to.greedy = sampler_greedy(from) == SamplerGreedy::logits;
  to.order = from.order;
  to.temperature = from.temperature;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.repetition = from.repetition_penalty;
  to.frequency = from.frequency_penalty;
  to.presence = from.presence_penalty;
  to.top_k = from.top_k;
  to.random.seed = from.seed.value_or(0);
  to.random.sample_index = from.sample_index;
  return knows;
}

struct SampleArgs {
  const SampleRow* rows = nullptr;
  const float* logits = nullptr;         // [rows][stride]
  const Token* history = nullptr;        // of all rows, in [0, stride)
  const std::uint32_t* masks = nullptr;  // [masks][(n_vocab + 31) / 32]; bit i % 32 of word i / 32:
                                         // token i may be chosen
  int* occurs = nullptr;                 // [rows][stride], zeros between launches; of rows with a
                                         // history
  Token* chosen = nullptr;               // [rows]; -1: no token may be chosen, or has a logit
                                         // above -inf
  int n_vocab = 0, stride = 0;           // the first n_vocab of a row may be chosen
};

// ------------------------------------------------------------------------------ over all threads

/// Of all threads' values; the same in all of them.
template <class T, class Op>
DECANT_DEVICE T block_reduce(T value, Op op) {
  auto* const of_warps = reinterpret_cast<T*>(shared_memory());
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = op(value, shuffle_xor(value, mask));
  if (thread_index() % kWarp == 0) of_warps[thread_index() / kWarp] = value;
  sync_block();
  value = of_warps[0];
  for (int warp = 1; warp < kSampleWarps; ++warp) value = op(value, of_warps[warp]);
  sync_block();
  return value;
}
DECANT_DEVICE double block_max(double value) {
  return block_reduce(value, [](double a, double b) { return a > b ? a : b; });
}
DECANT_DEVICE double block_min(double value) {
  return block_reduce(value, [](double a, double b) { return a < b ? a : b; });
}
DECANT_DEVICE std::uint64_t block_total(std::uint64_t value) {
  return block_reduce(value, [](std::uint64_t a, std::uint64_t b) { return a + b; });
}

// ------------------------------------------------------------------------------- the candidates

/// Candidates that come before or at `last` of those whose x is `x`.
struct Cut {
  double x = -__builtin_huge_val();
  int last = INT_MAX;
  DECANT_DEVICE bool keeps(double other, int id) const {
    return other > x || (other == x && id <= last);
  }
};

/// What all threads know of a row.
struct Candidates {
  const SampleRow* row;
  const float* logits;
  const std::uint32_t* mask;  // null: none
  const int* occurs;          // null: no penalties
  int n_vocab;
  float above;            // candidates have larger logits than this
  bool infinite = false;  // some are +inf, and these are all
  double unit;            // a weight of 1
  // As in `sampler.hpp`; both may have an end.
  Cut cut, divided_cut;
  bool divided = false;  // by the temperature
  double max = 0.0;      // of x
  int n_listed = -1;     // -1: they are not listed
  double* x_list;        // shared, [kListed]
  int* id_list;

  DECANT_DEVICE bool allows(int id) const {
    return (mask == nullptr || (mask[id / 32] >> (id % 32) & 1u) != 0) && logits[id] > above;
  }
  /// Before the temperature.
  DECANT_DEVICE double undivided(int id) const {
    if (infinite) return 0.0;
    const double x = static_cast<double>(logits[id]);
    const int n = occurs == nullptr ? 0 : occurs[id];
    if (n == 0) return x;
    const double repetition = static_cast<double>(row->repetition);
    return (x > 0.0 ? x / repetition : x * repetition) - static_cast<double>(row->frequency) * n -
           static_cast<double>(row->presence);
  }
  /// Calls f(x, id) for this thread's part of the candidates with ids in [begin, end), which are
  /// shared out to `n` threads, this one being the i-th.
  template <class F>
  DECANT_DEVICE void each(int begin, int end, int i, int n, F f) const {
    if (n_listed >= 0) {
      for (int at = i; at < n_listed; at += n)
        if (id_list[at] >= begin && id_list[at] < end) f(x_list[at], id_list[at]);
      return;
    }
    for (std::int64_t at = begin + i; at < end; at += n) {
      const int id = static_cast<int>(at);
      if (!allows(id)) continue;
      double x = undivided(id);
      if (!cut.keeps(x, id)) continue;
      if (divided) x /= static_cast<double>(row->temperature);
      if (divided_cut.keeps(x, id)) f(x, id);
    }
  }
  template <class F>
  DECANT_DEVICE void each(F f) const {
    each(0, n_vocab, thread_index(), kSampleThreads, f);
  }

  /// Of candidates outside [first, last] 0.
  struct Measure {
    bool weighs = false;  // else it counts
    double first = -__builtin_huge_val(), last = __builtin_huge_val();
  };
  DECANT_DEVICE std::uint64_t measure(const Measure& m, double x) const {
    if (!(x >= m.first && x <= m.last)) return 0;
    return m.weighs ? static_cast<std::uint64_t>(exp_d(x - max) * unit + 0.5) : 1;
  }
  DECANT_DEVICE std::uint64_t total(const Measure& m) const {
    std::uint64_t sum = 0;
    each([&](double x, int) { sum += measure(m, x); });
    return block_total(sum);
  }
};

/// The smallest id such that the candidates up to it measure `target` or more, which all of them
/// do: warps measure a part each of where it may be.
DECANT_DEVICE int find_id(const Candidates& c, std::uint64_t target, const Candidates::Measure& m) {
  auto* const of_warps = reinterpret_cast<std::uint64_t*>(shared_memory());
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  int begin = 0, length = c.n_vocab;
  while (length > 1) {
    const int piece = (length - 1) / kSampleWarps + 1;
    const auto place = [&](int w) { return begin + (length < w * piece ? length : w * piece); };
    std::uint64_t sum = 0;
    c.each(place(warp), place(warp + 1), lane, kWarp,
           [&](double x, int) { sum += c.measure(m, x); });
    for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane == 0) of_warps[warp] = sum;
    sync_block();
    int found = 0;
    while (found < kSampleWarps - 1 && of_warps[found] < target) target -= of_warps[found++];
    sync_block();
    const int end = place(found + 1);
    begin = place(found);
    length = end - begin;
  }
  return begin;
}

/// The largest x such that the candidates that are not below it measure `target` or more, which all
/// of them do. `target` becomes what is missing of it in those above x.
DECANT_DEVICE double find_x(const Candidates& c, std::uint64_t& target,
                            const Candidates::Measure& m) {
  double low = c.max, high = c.max;
  if (target > 1) {
    c.each([&](double x, int) { low = x < low ? x : low; });
    low = block_min(low);
  }
  while (low < high) {
    // {x >= low} measures enough, {x > high} does not: target is what is missing there.
    const auto pivot = [&](int i) { return low + (high - low) * ((i + 1) / (kPivots + 1.0)); };
    std::uint64_t from[kPivots] = {};  // of candidates in [pivot, high]
    c.each([&](double x, int) {
      if (!(x >= pivot(0) && x <= high)) return;
      const std::uint64_t measure = c.measure(m, x);
      DECANT_UNROLL
      for (int i = 0; i < kPivots; ++i) from[i] += x >= pivot(i) ? measure : 0;
    });
    double least = low, below = __builtin_huge_val();  // x is in [least, below)
    std::uint64_t gone = 0;
    DECANT_UNROLL
    for (int i = kPivots - 1; i >= 0; --i) {
      const std::uint64_t sum = block_total(from[i]);
      if (sum >= target) {
        least = pivot(i);
        break;
      }
      below = pivot(i);
      gone = sum;
    }
    target -= gone;
    double first = __builtin_huge_val(), last = -__builtin_huge_val();
    c.each([&](double x, int) {
      if (!(x >= least && x <= high && x < below)) return;
      first = x < first ? x : first;
      last = x > last ? x : last;
    });
    low = block_min(first);
    high = block_max(last);
  }
  return low;
}

/// Drops what is behind the cut, and lists what is left if that is little.
DECANT_DEVICE void apply_cut(Candidates& c, const Cut& cut, int* n_shared) {
  (c.divided ? c.divided_cut : c.cut) = cut;
  if (c.n_listed < 0 && c.total({}) > kListed) return;
  // A list is read before it is written: what stays of it goes through a register of each thread.
  double x_kept = 0.0;
  int id_kept = -1;
  const auto add = [&](double x, int id) {
    const int at = atomic_add(n_shared, 1);
    c.x_list[at] = x;
    c.id_list[at] = id;
  };
  if (thread_index() == 0) *n_shared = 0;
  if (thread_index() < c.n_listed &&
      cut.keeps(c.x_list[thread_index()], c.id_list[thread_index()])) {
    x_kept = c.x_list[thread_index()];
    id_kept = c.id_list[thread_index()];
  }
  sync_block();
  if (c.n_listed < 0)
    c.each(add);
  else if (id_kept >= 0)
    add(x_kept, id_kept);
  sync_block();
  c.n_listed = *n_shared;
}

// ------------------------------------------------------------------------------------ the kernel

/// The steps in their order, and then a draw.
DECANT_DEVICE Token choose_token(Candidates& c, int* n_shared) {
  const SampleRow& row = *c.row;
  for (const SamplerStep* step = row.order.begin();; ++step) {
    const bool draws = step == row.order.end();
    const bool greedy = !draws && *step == SamplerStep::temperature && row.temperature < 0x1p-126f;
    Candidates::Measure m;
    if (!draws && !greedy) {
      if (*step == SamplerStep::temperature && row.temperature != 1.0f) {
        const double divisor = static_cast<double>(row.temperature);
        if (thread_index() < c.n_listed) c.x_list[thread_index()] /= divisor;
        sync_block();
        c.max /= divisor;
        c.divided = true;
      }
      if (*step == SamplerStep::min_p && row.min_p > 0.0f) {
        double least = c.max;
        c.each([&](double x, int) {
          if (x < least && exp_d(x - c.max) >= static_cast<double>(row.min_p)) least = x;
        });
        least = block_min(least);
        // Else it drops nothing, and the cut before may keep only the first of equal ones.
        if (least > (c.divided ? c.divided_cut : c.cut).x) apply_cut(c, {least, INT_MAX}, n_shared);
      }
      const bool top_k = *step == SamplerStep::top_k && row.top_k > 0;
      m.weighs = *step == SamplerStep::top_p && row.top_p < 1.0f;
      if (!top_k && !m.weighs) continue;
    }
    m.weighs = m.weighs || draws;
    const std::uint64_t total = c.total(m);
    // The first one whose running sum is above u times the sum.
    if (draws) return find_id(c, multiply_high(random_bits(row.random) >> 11 << 11, total) + 1, m);
    std::uint64_t target = 1;
    if (m.weighs)
      target =
          static_cast<std::uint64_t>(static_cast<double>(row.top_p) * static_cast<double>(total));
    else if (!greedy)
      target = static_cast<std::uint64_t>(row.top_k);
    if (target == 0) target = 1;
    if (target >= total && !m.weighs) continue;
    Cut cut;
    cut.x = find_x(c, target, m);
    // Of those that are equal, and measure the same, the first ones.
    target = (target - 1) / c.measure(m, cut.x) + 1;
    cut.last = find_id(c, target, {false, cut.x, cut.x});
    apply_cut(c, cut, n_shared);
  }
}

inline constexpr std::size_t kSampleSharedBytes =
    kSampleWarps * sizeof(std::uint64_t) + kListed * (sizeof(double) + sizeof(int)) + sizeof(int);

/// Grid: (rows).
DECANT_KERNEL(kSampleThreads) sample_rows(SampleArgs a) {
  wait_for_previous();
  const auto at = static_cast<std::size_t>(block_index().x);
  const SampleRow& row = a.rows[at];
  if (!row.wanted) return;
  Candidates c;
  c.row = &row;
  c.logits = a.logits + at * static_cast<std::size_t>(a.stride);
  c.mask = row.mask < 0 ? nullptr
                        : a.masks + static_cast<std::size_t>(row.mask) *
                                        static_cast<std::size_t>((a.n_vocab + 31) / 32);
  c.n_vocab = a.n_vocab;
  c.unit = 0x1p62;
  for (std::int64_t n = 1; n < a.n_vocab; n *= 2) c.unit *= 0.5;
  c.x_list = reinterpret_cast<double*>(shared_memory() + kSampleWarps * sizeof(std::uint64_t));
  c.id_list = reinterpret_cast<int*>(c.x_list + kListed);
  int* const n_shared = c.id_list + kListed;

  c.above = -__builtin_huge_valf();
  c.infinite = true;  // x is not needed yet
  c.occurs = nullptr;
  float highest = c.above;
  int first = INT_MAX;
  c.each([&](double, int id) {
    if (!(c.logits[id] > highest)) return;
    highest = c.logits[id];
    first = id;
  });
  const double peak = block_max(static_cast<double>(highest));
  const bool any = peak > -__builtin_huge_val();
  if (row.greedy) {
    const bool is_peak = static_cast<double>(highest) == peak;
    const double best = block_min(is_peak ? first : INT_MAX);
    if (thread_index() == 0) a.chosen[at] = any ? static_cast<Token>(best) : -1;
    return;
  }
  c.infinite = peak == __builtin_huge_val();
  if (c.infinite) c.above = 3.4028235e38f;
  int* const occurs = a.occurs + at * static_cast<std::size_t>(a.stride);
  const Token* const history = a.history + row.first_history;
  const bool penalises = row.n_history > 0 && !c.infinite;
  if (penalises) {
    for (int i = thread_index(); i < row.n_history; i += kSampleThreads)
      static_cast<void>(atomic_add(&occurs[history[i]], 1));
    sync_block();
    c.occurs = occurs;
  }
  c.max = -__builtin_huge_val();
  c.each([&](double x, int) { c.max = x > c.max ? x : c.max; });
  c.max = block_max(c.max);

  const Token chosen = any ? choose_token(c, n_shared) : -1;
  if (thread_index() == 0) a.chosen[at] = chosen;
  if (!penalises) return;
  sync_block();
  for (int i = thread_index(); i < row.n_history; i += kSampleThreads) occurs[history[i]] = 0;
}

}  // namespace decant::detail::DECANT_CUDA_SPACE
