// Tokens that the kernel chooses, against the sampler's definition with sorted candidates and sums
// in long double, and against the library's own sampler.
#include "cuda/sample.cuh"

#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/float_mode.hpp"
#include "cuda_host/support.hpp"
#include "sample/sampler.hpp"
#include "support/samplers.hpp"

using namespace decant_test;
using decant::Sampler;
using decant::SamplerStep;
using decant::Token;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  Sampler sampler;
  std::vector<float> logits;
  std::vector<Token> history = {};
  std::vector<bool> mask = {};  // empty: none
  std::uint64_t position = 0;
  bool wanted = true;
};

/// All cases in one launch; they have as many logits as each other.
std::vector<Token> choose(const std::vector<Case>& cases, const Schedule& schedule = {}) {
  const std::size_t n = cases[0].logits.size(), stride = n + 3, words = (n + 31) / 32;
  std::vector<SampleRow> rows(cases.size());
  std::vector<float> logits(cases.size() * stride, kInfinity);  // what is between rows is not read
  std::vector<Token> history, chosen(cases.size(), -2);
  std::vector<std::uint32_t> masks;
  std::vector<int> occurs(cases.size() * stride, 0);  // of rows without a history: anything
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    SampleRow& row = rows[i];
    REQUIRE(sample_row(c.sampler, c.history.size(), row));
    row.first_history = static_cast<int>(history.size() + c.history.size()) - row.n_history;
    row.random.position = c.position;
    row.wanted = c.wanted;
    if (row.n_history == 0)
      std::fill_n(occurs.begin() + static_cast<std::ptrdiff_t>(i * stride), stride, 3);
    history.insert(history.end(), c.history.begin(), c.history.end());
    std::copy(c.logits.begin(), c.logits.end(),
              logits.begin() + static_cast<std::ptrdiff_t>(i * stride));
    if (c.mask.empty()) continue;
    row.mask = static_cast<int>(masks.size() / words);
    masks.resize(masks.size() + words);
    for (std::size_t id = 0; id < n; ++id)
      if (c.mask[id]) masks[masks.size() - words + id / 32] |= 1u << id % 32;
  }
  SampleArgs a;
  a.rows = rows.data();
  a.logits = logits.data();
  a.history = history.data();
  a.masks = masks.data();
  a.occurs = occurs.data();
  a.chosen = chosen.data();
  a.n_vocab = static_cast<int>(n);
  a.stride = static_cast<int>(stride);
  const std::vector<int> occurs_before = occurs;
  Launcher launcher(schedule);
  launch(sample_rows, {static_cast<unsigned>(cases.size()), 1, 1}, kSampleThreads,
         kSampleSharedBytes, launcher.stream, a);
  CHECK(occurs == occurs_before);
  return chosen;
}

/// The steps as sampler.hpp states them: the candidates that are left, ids ascending, with their
/// probabilities. `margin` becomes the least distance from a sum to the threshold of top_p, as a
/// share of the whole.
struct Oracle {
  struct Candidate {
    long double x;
    Token id;
    long double p;
  };
  std::vector<Candidate> left;
  long double margin = 1;

  explicit Oracle(const Case& c) {
    const Sampler& s = c.sampler;
    for (std::size_t i = 0; i < c.logits.size(); ++i)
      if (c.logits[i] > -kInfinity && (c.mask.empty() || c.mask[i]))
        left.push_back({c.logits[i], static_cast<Token>(i), 0});
    const auto is_infinite = [](const Candidate& a) { return a.x > 1e300L; };
    const bool infinite = std::any_of(left.begin(), left.end(), is_infinite);
    if (infinite) {
      std::erase_if(left, [&](const Candidate& a) { return !is_infinite(a); });
      for (Candidate& a : left) a.x = 0;
    }
    for (const SamplerStep step : s.order) {
      std::stable_sort(left.begin(), left.end(),
                       [](const Candidate& a, const Candidate& b) { return a.x > b.x; });
      weigh();
      std::size_t keep = left.size();
      if (step == SamplerStep::penalties && !infinite) {
        const std::size_t first = c.history.size() - std::min(c.history.size(), s.penalty_last);
        for (Candidate& a : left) {
          const auto n = std::count(c.history.begin() + static_cast<std::ptrdiff_t>(first),
                                    c.history.end(), a.id);
          if (n == 0) continue;
          a.x = a.x > 0 ? a.x / s.repetition_penalty : a.x * s.repetition_penalty;
          a.x -= static_cast<long double>(s.frequency_penalty) * n + s.presence_penalty;
        }
      } else if (step == SamplerStep::top_k && s.top_k > 0) {
        keep = std::min(keep, static_cast<std::size_t>(s.top_k));
      } else if (step == SamplerStep::top_p && s.top_p < 1.0f) {
        long double sum = 0;
        keep = 0;
        while (keep < left.size() && (keep == 0 || sum < s.top_p)) {
          sum += left[keep++].p;
          margin = std::min(margin, std::abs(sum - s.top_p));
        }
      } else if (step == SamplerStep::min_p && s.min_p > 0.0f) {
        keep = 0;
        while (keep < left.size() && left[keep].p >= s.min_p * left[0].p) ++keep;
      } else if (step == SamplerStep::temperature) {
        if (s.temperature < std::numeric_limits<float>::min())
          keep = 1;
        else
          for (Candidate& a : left) a.x /= s.temperature;
      }
      left.resize(keep);
      std::sort(left.begin(), left.end(),
                [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    }
    weigh();
  }
  void weigh() {
    long double max = -std::numeric_limits<long double>::infinity(), sum = 0;
    for (const Candidate& a : left) max = std::max(max, a.x);
    for (Candidate& a : left) sum += a.p = std::exp(a.x - max);
    for (Candidate& a : left) a.p /= sum;
  }
  /// Whether the id is what u chooses, within so much of a probability.
  bool allows(Token id, double u, long double bound) const {
    long double before = 0;
    for (const Candidate& a : left) {
      if (a.id == id) return u >= before - bound && u < before + a.p + bound;
      before += a.p;
    }
    return false;
  }
};

double uniform(const Case& c) {
  return random_uniform({.seed = c.sampler.seed.value_or(0),
                         .position = c.position,
                         .sample_index = c.sampler.sample_index,
                         .purpose = RandomPurpose::sample});
}

/// What the head of sample.cuh states: half a unit for each token, in front and in the whole.
long double bound_of(std::size_t n_vocab) {
  int bits = 0;
  while (std::size_t{1} << bits < n_vocab) ++bits;
  return 2 * std::ldexp(1.0L, 2 * bits - 63) + 1e-13L;  // and rounding in double
}

Token host_choice(const Case& c) {
  std::vector<float> logits = c.logits;
  for (std::size_t i = 0; i < c.mask.size(); ++i)
    if (!c.mask[i]) logits[i] = -kInfinity;
  SamplerWorkspace workspace;
  const FloatMode mode;
  const auto token =
      sample_token(c.sampler, logits, c.history, c.sampler.seed.value_or(0), c.position, workspace);
  return token ? *token : -1;
}

std::vector<float> some_logits(std::size_t n, unsigned seed, float spread = 3.0f) {
  std::vector<float> logits = random_floats(n, seed);
  for (float& x : logits) x *= spread;
  return logits;
}

std::vector<Token> some_tokens(std::size_t seed, std::size_t n_vocab) {
  std::mt19937 dice(static_cast<unsigned>(seed));
  std::vector<Token> tokens(50);
  for (Token& token : tokens) token = static_cast<Token>(dice() % n_vocab);
  return tokens;
}

std::vector<Sampler> samplers() {
  return samplers_with(
      [](Sampler& s) { s.temperature = 0.7f; }, [](Sampler& s) { s.temperature = 1e-39f; },
      [](Sampler& s) { s.temperature = 30.0f; }, [](Sampler& s) { s.top_k = 1; },
      [](Sampler& s) { s.top_k = 7; }, [](Sampler& s) { s.top_k = 1 << 20; },
      [](Sampler& s) { s.top_p = 0.9f; }, [](Sampler& s) { s.top_p = 1e-30f; },
      [](Sampler& s) { s.top_p = 0.0f; }, [](Sampler& s) { s.top_p = 0.999999f; },
      [](Sampler& s) { s.min_p = 0.05f; }, [](Sampler& s) { s.min_p = 1.0f; },
      [](Sampler& s) { s.top_k = 40, s.top_p = 0.95f, s.min_p = 0.02f, s.temperature = 1.5f; },
      [](Sampler& s) {
        s.repetition_penalty = 1.3f, s.frequency_penalty = 0.25f, s.presence_penalty = 0.5f;
        s.top_k = 20;
      },
      [](Sampler& s) { s.repetition_penalty = 0.5f, s.penalty_last = 9, s.temperature = 0.0f; },
      [](Sampler& s) { s.presence_penalty = -2.0f, s.top_p = 0.5f; },
      [](Sampler& s) { s.top_k = 20, s.temperature = 0.0f; },
      [](Sampler& s) { s.top_k = 700, s.temperature = 30.0f; },  // more than are listed
      [](Sampler& s) {
        s.temperature = 2.5f, s.top_k = 30, s.top_p = 0.8f;
        s.order = {SamplerStep::temperature, SamplerStep::top_p, SamplerStep::top_k};
      },
      [](Sampler& s) {
        s.temperature = 0.3f, s.top_k = 11, s.min_p = 0.01f;
        s.order = {SamplerStep::min_p, SamplerStep::temperature, SamplerStep::top_k};
      });
}

}  // namespace

TEST_CASE("cuda sample: what the sampler's definition allows, and the host's own choice") {
  std::size_t n_drawn = 0, n_near = 0;
  for (const std::size_t n : {1, 2, 33, 97, 1001}) {
    unsigned seed = static_cast<unsigned>(n);
    for (const Sampler& sampler : samplers()) {
      std::vector<Case> cases;
      for (int i = 0; i < 9; ++i) {
        Case c{sampler, some_logits(n, ++seed)};
        c.sampler.seed = 1000003ull * seed;
        c.sampler.sample_index = static_cast<std::uint32_t>(i);
        c.position = (std::uint64_t{1} << 33) + seed;
        if (i % 4 != 0) c.history = some_tokens(seed, n);
        if (i % 3 == 1) {  // ties, and values that are no numbers
          for (float& x : c.logits) x = std::round(x);
          c.logits[n / 2] = NAN;
          c.logits[n - 1] = n == 1 ? 0.0f : -kInfinity;
          c.logits[0] = -0.0f;
          if (i == 7) c.logits[n / 4] = c.logits[n - n / 4 - 1] = kInfinity;
        } else if (i % 3 == 2) {
          std::mt19937 dice(seed);
          c.mask.resize(n);
          for (std::size_t id = 0; id < n; ++id) c.mask[id] = dice() % 3 != 0;
          c.mask[n / 3] = true;
        }
        cases.push_back(c);
      }
      const std::vector<Token> chosen = choose(cases);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const Oracle oracle(cases[i]);
        CAPTURE(n, seed, i, chosen[i], uniform(cases[i]), oracle.left.size());
        ++n_drawn;
        if (oracle.margin < bound_of(n)) {
          ++n_near;
          continue;
        }
        CHECK(oracle.allows(chosen[i], uniform(cases[i]), bound_of(n)));
        CHECK(chosen[i] == host_choice(cases[i]));
      }
    }
  }
  CHECK(n_near <= n_drawn / 20);  // thresholds that ties meet exactly
  CHECK(n_drawn >= 1000);
}

TEST_CASE("cuda sample: the same tokens in every order of threads, alone and among 64") {
  const std::size_t n = 601;
  std::vector<Case> cases;
  const std::vector<Sampler> all = samplers();
  for (std::size_t i = 0; i < 64; ++i) {
    Case c{all[i % all.size()], some_logits(n, static_cast<unsigned>(i)), some_tokens(i, n)};
    c.sampler.seed = i;
    c.position = 7 * i;
    if (i % 4 == 3) {
      c.mask.assign(n, true);
      for (std::size_t id = 0; id < n; id += 2) c.mask[id] = false;
    }
    cases.push_back(c);
  }
  const std::vector<Token> measure = choose(cases);
  for (const Schedule& s : kSchedules) CHECK(choose(cases, s) == measure);
  for (std::size_t i = 0; i < cases.size(); ++i)
    CHECK(choose({cases[i]}, kSchedules[i % kSchedules.size()])[0] == measure[i]);
  std::reverse(cases.begin(), cases.end());
  auto reversed = choose(cases, kSchedules[2]);
  std::reverse(reversed.begin(), reversed.end());
  CHECK(reversed == measure);
}

TEST_CASE("cuda sample: few tokens, or none, that may be chosen") {
  for (const Sampler& sampler : samplers()) {
    std::vector<Case> cases;
    const auto add = [&](Token wanted, auto change) {
      Case c{sampler, some_logits(130, 5), {3, 3, 129}};
      change(c);
      c.position = static_cast<std::uint64_t>(wanted);  // to find it again
      cases.push_back(c);
    };
    const auto all_are = [](float value) {
      return [=](Case& c) { c.logits.assign(c.logits.size(), value); };
    };
    for (const Token only : {0, 31, 32, 64, 129}) {
      const auto i = usize(only);
      add(only, [&](Case& c) { c.mask.assign(130, false), c.mask[i] = true; });
      add(only, [&](Case& c) { all_are(-kInfinity)(c), c.logits[i] = -3e38f; });
      add(only, [&](Case& c) { all_are(NAN)(c), c.logits[i] = 0.0f; });
      add(only, [&](Case& c) { c.logits[i] = kInfinity; });
      add(only,
          [&](Case& c) { all_are(kInfinity)(c), c.mask.assign(130, false), c.mask[i] = true; });
    }
    add(-1, all_are(-kInfinity));
    add(-1, all_are(NAN));
    add(-1, [](Case& c) { c.mask.assign(130, false); });
    add(-1, [](Case& c) { c.logits[9] = -kInfinity, c.mask.assign(130, false), c.mask[9] = true; });
    const std::vector<Token> chosen = choose(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(i);
      CHECK(chosen[i] == static_cast<Token>(cases[i].position));
    }
  }
}

TEST_CASE("cuda sample: rows that want no token, and histories of tokens that cannot be chosen") {
  // With these penalties a token counts as the best until it has occurred.
  Sampler sampler = Sampler::greedy();
  sampler.presence_penalty = 100.0f;
  const std::size_t n = 40;
  std::vector<Case> cases;
  for (int i = 0; i < 6; ++i) {
    std::vector<float> logits(n);
    for (std::size_t id = 0; id < n; ++id) logits[id] = -static_cast<float>(id);
    // n to n + 2 are padding; of another row they must not become 0 to 2.
    Case c{sampler, logits, {0, 40, 41, 42}};
    if (i % 3 == 0) c.history = {41, 1, 40};
    c.wanted = i % 3 != 2;
    cases.push_back(c);
  }
  for (const Schedule& s : kSchedules)
    CHECK(choose(cases, s) == std::vector<Token>{0, 1, -2, 0, 1, -2});
}

TEST_CASE("cuda sample: ties go to the lower id, in top_k, top_p and the best") {
  // 5 tokens of logit 1 in front of 5 of logit 2, twice: each step keeps the first ones.
  std::vector<float> logits;
  for (int i = 0; i < 20; ++i) logits.push_back(i / 5 % 2 == 0 ? 1.0f : 2.0f);
  const auto seen = [&](auto change) {
    std::vector<Case> cases;
    for (std::uint64_t i = 0; i < 150; ++i) {
      Case c{Sampler(), logits};
      c.position = i;
      change(c.sampler);
      cases.push_back(c);
    }
    std::vector<Token> chosen = choose(cases);
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    return chosen;
  };
  const std::vector<Token> seven = {5, 6, 7, 8, 9, 15, 16};
  CHECK(seen([](Sampler& s) { s.temperature = 0.0f; }) == std::vector<Token>{5});
  CHECK(seen([](Sampler& s) { s.top_k = 7; }) == seven);
  CHECK(seen([](Sampler& s) { s.top_k = 11; }) ==
        std::vector<Token>{0, 5, 6, 7, 8, 9, 15, 16, 17, 18, 19});
  CHECK(seen([](Sampler& s) { s.min_p = 0.5f; }) ==
        std::vector<Token>{5, 6, 7, 8, 9, 15, 16, 17, 18, 19});
  // A token of logit 2 has e / (10 (1 + e)) = 0.0731 of all; 0.5 takes seven of them.
  CHECK(seen([](Sampler& s) { s.top_p = 0.5f; }) == seven);
  // More than are listed: min_p, which keeps all, does not bring back what top_k dropped.
  logits.assign(512, 2.0f);
  logits.resize(1024, 1.0f);
  CHECK(seen([](Sampler& s) { s.top_k = 700, s.min_p = 0.1f; }).back() < 700);
}

TEST_CASE("cuda sample: cuts between a thread's own candidates, whichever it sees first") {
  struct Kept {
    std::int32_t top_k;
    float top_p, min_p;
  };
  // Thread t sees ids t and t + 512: lower and far away, or next to each other.
  const auto lower_half = [](int t, bool second) { return (second ? 1.0f : 0.9f) + 0x1p-13f * t; };
  const auto lower = [](int t, bool second) { return 0x1p-9f * t + (second ? 0x1p-10f : 0.0f); };
  const auto higher = [](int t, bool second) { return 0x1p-9f * t - (second ? 0x1p-10f : 0.0f); };
  for (const std::function<float(int, bool)>& x :
       {std::function<float(int, bool)>(lower_half), {lower}, {higher}}) {
    std::vector<float> logits;
    for (int i = 0; i < 1024; ++i) logits.push_back(x(i % 512, i >= 512));
    std::vector<Case> cases;
    for (const Kept& kept : {Kept{0, 0.97f, 0},
                             {0, 1, 0.86f},
                             {2, 1, 0},
                             {3, 1, 0},
                             {4, 1, 0},
                             {5, 1, 0},
                             {1000, 1, 0}})
      for (int i = 0; i < 8; ++i) {
        Case c{Sampler(), logits};
        c.position = cases.size();
        c.sampler.top_k = kept.top_k;
        c.sampler.top_p = kept.top_p;
        c.sampler.min_p = kept.min_p;
        cases.push_back(c);
      }
    const std::vector<Token> chosen = choose(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Oracle oracle(cases[i]);
      CAPTURE(i, chosen[i], oracle.left.size());
      REQUIRE(oracle.margin > bound_of(logits.size()));
      CHECK(oracle.allows(chosen[i], uniform(cases[i]), bound_of(logits.size())));
      CHECK(chosen[i] == host_choice(cases[i]));
    }
  }
}

TEST_CASE("cuda sample: candidates next to each other, and one without a weight") {
  // x becomes 1, the double below 1, and in every other case what is too low for any sum.
  std::vector<float> logits(40, -kInfinity);
  logits[7] = logits[9] = 1.0f;
  logits[30] = -1000.0f;
  std::vector<Case> cases;
  for (const Sampler& sampler : samplers())
    for (std::uint64_t i = 0; i < 8; ++i) {
      Case c{sampler, logits, {9}};
      c.sampler.repetition_penalty = 1.0f;
      c.sampler.frequency_penalty = 0.0f;
      c.sampler.presence_penalty = 0x1p-53f;
      c.position = i;
      if (i % 2 != 0) c.logits[30] = -kInfinity;
      cases.push_back(c);
    }
  const std::vector<Token> chosen = choose(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Oracle oracle(cases[i]);
    CAPTURE(i, chosen[i], oracle.left.size());
    if (oracle.margin > bound_of(logits.size())) {
      CHECK(oracle.allows(chosen[i], uniform(cases[i]), bound_of(logits.size())));
      CHECK(chosen[i] == host_choice(cases[i]));
    }
  }
}

TEST_CASE("cuda sample: 262,144 tokens") {
  const std::size_t n = 262144;
  std::vector<Case> cases;
  const std::vector<float> logits = some_logits(n, 11, 2.0f);
  const auto add = [&](auto change) {
    Case c{Sampler(), logits, some_tokens(4, n)};
    c.sampler.seed = 42;
    c.position = cases.size();
    change(c.sampler);
    cases.push_back(c);
  };
  add([](Sampler& s) { s.temperature = 0.0f; });
  add([](Sampler&) {});
  add([](Sampler& s) { s.top_k = 700; });  // more than are listed
  add([](Sampler& s) { s.top_k = 40, s.top_p = 0.9f; });
  add([](Sampler& s) { s.top_p = 0.95f, s.repetition_penalty = 1.1f; });
  add([](Sampler& s) { s.min_p = 0.1f, s.temperature = 1.2f; });
  add([](Sampler& s) {
    s.temperature = 1.5f, s.top_p = 0.9f;
    s.order = {SamplerStep::temperature, SamplerStep::top_p};
  });
  const std::vector<Token> chosen = choose(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Oracle oracle(cases[i]);
    CAPTURE(i, chosen[i], oracle.left.size());
    REQUIRE(oracle.margin > bound_of(n));
    CHECK(oracle.allows(chosen[i], uniform(cases[i]), bound_of(n)));
    CHECK(chosen[i] == host_choice(cases[i]));
  }
}

TEST_CASE("cuda sample: tokens come as often as their probabilities say") {
  Sampler sampler;
  sampler.top_k = 12;
  sampler.temperature = 0.8f;
  const std::vector<float> logits = some_logits(40, 3, 1.5f);
  const Oracle oracle({sampler, logits});
  std::vector<std::size_t> times(40);
  const int n_draws = 1500;
  std::vector<Case> cases;
  for (int i = 0; i < n_draws; ++i) {
    cases.push_back({sampler, logits});
    cases.back().sampler.seed = 99;
    cases.back().position = static_cast<std::uint64_t>(i);
  }
  for (const Token token : choose(cases)) ++times[usize(token)];
  long double chi_squared = 0;
  std::size_t n = 0;
  for (const auto& a : oracle.left) {
    const long double expected = a.p * n_draws;
    chi_squared += std::pow(static_cast<long double>(times[usize(a.id)]) - expected, 2) / expected;
    n += times[usize(a.id)];
  }
  CHECK(n == n_draws);        // nothing else
  CHECK(chi_squared < 31.3);  // 11 degrees of freedom: exceeded once in 1000 times
}

TEST_CASE("cuda sample: what the kernel leaves to the host") {
  SampleRow row;
  Sampler s;
  s.typical_p = 0.9f;
  CHECK_FALSE(sample_row(s, 5, row));
  s.order = {SamplerStep::top_p};
  CHECK(sample_row(s, 5, row));
  s.frequency_penalty = 1.0f;
  CHECK(sample_row(s, 5, row));  // a step that is left out
  CHECK(row.n_history == 0);
  s.order = {SamplerStep::top_p, SamplerStep::penalties};
  CHECK_FALSE(sample_row(s, 5, row));
  s.order = {SamplerStep::penalties, SamplerStep::top_p};
  CHECK(sample_row(s, 5, row));
  CHECK(row.n_history == 5);
  s.penalty_last = 2;
  CHECK(sample_row(s, 5, row));
  CHECK(row.n_history == 2);
  s.order = {SamplerStep::top_p, SamplerStep::penalties};
  s.penalty_last = 0;
  CHECK(sample_row(s, 5, row));
}
