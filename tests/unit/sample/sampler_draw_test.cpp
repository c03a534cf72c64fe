// How tokens are drawn: statistics against the distribution, reproducibility, presets and advice.
#include <cmath>
#include <cstring>
#include <map>

#include "base/random.hpp"
#include "sample/sampler.hpp"
#include "sampler_oracle.hpp"
#include "support/catch.hpp"
#include "support/host_mode.hpp"

using namespace decant;
using namespace decant_test;
using decant::detail::SamplerWorkspace;

namespace {

std::vector<float> random_logits(int n, std::uint64_t seed, double scale) {
  Dice dice(seed);
  std::vector<float> logits;
  for (int i = 0; i < n; ++i) logits.push_back(static_cast<float>(scale * dice.normal()));
  return logits;
}

bool says(const Sampler& sampler, const char* words) {
  for (const std::string& warning : sampler.review())
    if (warning.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("sampler: draws follow the distribution") {
  const std::vector<float> logits = random_logits(60, 21, 2.0);
  const std::vector<Token> history = {1, 2, 3, 3, 50};
  Sampler plain, flat, typical, two;
  flat.temperature = 5.0f;
  typical.typical_p = 0.7f;
  typical.temperature = 1.5f;
  two.top_k = 2;
  std::uint64_t seed = 1000;
  for (const Sampler& s :
       {plain, flat, typical, two, Sampler::precise(), Sampler::balanced(), Sampler::creative()}) {
    const auto p = s.probabilities(logits, history);
    REQUIRE(p);
    constexpr int n = 200000;
    std::vector<int> counts(logits.size());
    SamplerWorkspace workspace;
    ++seed;
    for (std::uint64_t position = 0; position < n; ++position) {
      const auto token = detail::sample_token(s, logits, history, seed, position, workspace);
      REQUIRE(token);
      ++counts[static_cast<std::size_t>(*token)];
    }
    // Pearson's test; rare tokens share a bin. Four standard deviations of chi-square either way.
    double chi_square = 0.0, rare_expected = 0.0, rare_count = 0.0;
    int bins = 0;
    const auto bin = [&](double count, double expected) {
      chi_square += (count - expected) * (count - expected) / expected;
      ++bins;
    };
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double expected = (*p)[i] * n;
      if (expected == 0.0) CHECK(counts[i] == 0);
      if (expected >= 10.0) {
        bin(counts[i], expected);
      } else {
        rare_expected += expected;
        rare_count += counts[i];
      }
    }
    if (rare_expected >= 10.0) bin(rare_count, rare_expected);
    REQUIRE(bins >= 2);
    const double freedom = bins - 1;
    INFO("sampler of seed " << seed << ": chi-square " << chi_square << " of " << freedom);
    CHECK(chi_square < freedom + 4 * std::sqrt(2 * freedom));
    CHECK(chi_square > freedom - 4 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("sampler: a draw is the documented function of seed, index and position") {
  const std::vector<float> logits = random_logits(100, 22, 1.0);
  Sampler s;
  s.seed = 77;
  s.sample_index = 3;
  const auto p = s.probabilities(logits);
  REQUIRE(p);
  for (std::uint64_t position : {0u, 1u, 2u, 1000u, 4000000000u}) {
    const double u = detail::random_uniform({.seed = 77, .position = position, .sample_index = 3});
    double running = 0.0;
    Token expected = 0;
    while ((running += (*p)[static_cast<std::size_t>(expected)]) <= u) ++expected;
    CHECK(*s.sample(logits, {}, position) == expected);
  }
  // Each part of the key matters, and no seed is seed 0.
  const auto draws = [&](const Sampler& sampler, std::uint64_t first) {
    std::vector<Token> tokens;
    for (std::uint64_t i = 0; i < 40; ++i) tokens.push_back(*sampler.sample(logits, {}, first + i));
    return tokens;
  };
  const auto base = draws(s, 0);
  CHECK(draws(s, 0) == base);
  CHECK(draws(s, 1) != base);
  Sampler other = s;
  other.sample_index = 4;
  CHECK(draws(other, 0) != base);
  other = s;
  other.seed = 78;
  CHECK(draws(other, 0) != base);
  Sampler none, zero;
  zero.seed = 0;
  CHECK(draws(none, 0) == draws(zero, 0));
}

TEST_CASE("sampler: the host's floating-point mode changes nothing and is kept") {
  std::vector<float> logits = random_logits(2000, 23, 3.0);
  for (std::size_t i = 0; i < logits.size(); i += 7) logits[i] *= 1e-40f;  // subnormal logits
  const std::vector<Token> history = {0, 7, 7, 1999, 14};
  Sampler hot, cold, typical, tails;
  hot.temperature = 3.0f;
  cold.temperature = 1e-40f;
  typical.typical_p = 0.9f;
  typical.repetition_penalty = 1.2f;
  tails.temperature = 0.01f;  // weights far below the normal numbers
  std::vector<Sampler> samplers = {
      hot, cold, typical, tails, Sampler::balanced(), Sampler::creative(), Sampler::greedy()};
  for (const Sampler& s : samplers) {
    const auto expected = s.probabilities(logits, history);
    REQUIRE(expected);
    std::vector<Token> tokens;
    for (std::uint64_t i = 0; i < 50; ++i) tokens.push_back(*s.sample(logits, history, i));
    for (const auto kind : {HostMode::flush_to_zero, HostMode::toward_zero, HostMode::both}) {
      std::vector<double> p;
      std::vector<Token> drawn;
      bool valid = false, untouched = false, advice = false;
      {
        const HostMode host(kind);
        valid = static_cast<bool>(s.validate());
        advice = !s.review().empty();
        if (auto result = s.probabilities(logits, history)) p = *std::move(result);
        for (std::uint64_t i = 0; i < 50; ++i) drawn.push_back(*s.sample(logits, history, i));
        untouched = host.untouched();
      }
      CHECK(valid);
      CHECK(advice == !s.review().empty());
      CHECK(untouched);
      REQUIRE(p.size() == expected->size());
      CHECK(std::memcmp(p.data(), expected->data(), p.size() * sizeof(double)) == 0);
      CHECK(drawn == tokens);
    }
  }
}

TEST_CASE("sampler: the same bits on every system") {
  // One hash over distributions and draws, equal on x86-64 and aarch64, with g++ and clang.
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ (value >> 8 * byte & 0xff)) * 0x100000001b3u;
  };
  const std::vector<float> logits = random_logits(5000, 24, 2.5);
  const std::vector<Token> history = {4, 4, 8, 4999};
  Sampler typical, plain;
  typical.typical_p = 0.8f;
  plain.temperature = 0.9f;
  plain.presence_penalty = 0.3f;
  for (const Sampler& s :
       {typical, plain, Sampler::precise(), Sampler::balanced(), Sampler::creative()}) {
    const auto p = s.probabilities(logits, history);
    REQUIRE(p);
    for (const double v : *p) {
      std::uint64_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      add(bits);
    }
    for (std::uint64_t i = 0; i < 100; ++i)
      add(static_cast<std::uint64_t>(*s.sample(logits, history, i)));
  }
  CHECK(hash == 0xf3eb19c14a4da405u);
}

TEST_CASE("sampler: presets are valid and review finds nothing in them") {
  for (const Sampler& s : {Sampler(), Sampler::greedy(), Sampler::precise(), Sampler::balanced(),
                           Sampler::creative()}) {
    CHECK(s.validate());
    CHECK(s.review().empty());
  }
  const std::vector<float> logits = random_logits(1000, 25, 2.0);
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  CHECK(*Sampler::greedy().sample(logits) == static_cast<Token>(best));
  // The bolder the preset, the less sure of the best token.
  const auto share = [&](const Sampler& s) {
    return (*s.probabilities(logits))[static_cast<std::size_t>(best)];
  };
  CHECK(share(Sampler::greedy()) == 1.0);
  CHECK(share(Sampler::precise()) > share(Sampler::balanced()));
  CHECK(share(Sampler::balanced()) > share(Sampler::creative()));
}

TEST_CASE("sampler: review warns of what rarely does what is wanted") {
  const auto sampler = [](auto change) {
    Sampler s;
    change(s);
    return s;
  };
  CHECK(says(sampler([](Sampler& s) { s.temperature = 0, s.top_p = 0.9f; }), "change nothing"));
  CHECK(says(sampler([](Sampler& s) { s.temperature = 0, s.typical_p = 0.9f; }), "typical_p"));
  CHECK(says(sampler([](Sampler& s) { s.top_k = 1, s.temperature = 0.5f; }), "top_k 1"));
  CHECK(says(sampler([](Sampler& s) { s.temperature = 0.2f, s.top_p = 0.3f; }), "nearly greedy"));
  CHECK(says(sampler([](Sampler& s) { s.temperature = 1.5f; }), "min_p 0.05"));
  CHECK(says(sampler([](Sampler& s) { s.temperature = 1.5f, s.top_p = 0.3f; }),
             "against each other"));
  CHECK(says(sampler([](Sampler& s) { s.temperature = 2.5f, s.top_k = 40; }), "above 2"));
  CHECK(says(sampler([](Sampler& s) { s.top_p = 0.0f; }), "top_p near 0"));
  CHECK(says(sampler([](Sampler& s) { s.min_p = 0.9f; }), "min_p above"));
  CHECK(says(sampler([](Sampler& s) { s.top_p = 0.9f, s.min_p = 0.1f, s.typical_p = 0.9f; }),
             "same tail"));
  CHECK(says(sampler([](Sampler& s) { s.repetition_penalty = 1.1f, s.penalty_last = 0; }),
             "look at"));
  CHECK(says(sampler([](Sampler& s) { s.repetition_penalty = 2.0f; }), "above 1.5"));
  CHECK(says(sampler([](Sampler& s) { s.repetition_penalty = 0.9f; }), "rewards"));
  CHECK(says(sampler([](Sampler& s) { s.presence_penalty = -0.5f; }), "rewards"));
  CHECK(says(sampler([](Sampler& s) { s.frequency_penalty = 3.0f; }), "above 2"));
  CHECK(says(sampler([](Sampler& s) { s.repetition_penalty = 1.2f, s.presence_penalty = 0.5f; }),
             "twice"));
  const auto with_order = [&](auto change, std::vector<SamplerStep> order) {
    return sampler([&](Sampler& s) {
      change(s);
      s.order = decant::SamplerOrder(order);
    });
  };
  CHECK(says(with_order([](Sampler& s) { s.top_k = 5; }, {SamplerStep::top_p}), "leaves it out"));
  CHECK(says(with_order([](Sampler& s) { s.temperature = 0; }, {}), "temperature is set"));
  CHECK(says(with_order([](Sampler& s) { s.presence_penalty = 1.0f; },
                        {SamplerStep::top_k, SamplerStep::penalties}),
             "come after"));
}
