// The sampler's distributions: golden values, an independent oracle, degenerate input and
// parameters, ids from outside.
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "sample/sampler.hpp"
#include "sampler_oracle.hpp"
#include "support/catch.hpp"

using namespace decant;
using namespace decant_test;
using decant::detail::SamplerWorkspace;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Steps = std::vector<SamplerStep>;
const Steps kOrderA = {SamplerStep::penalties, SamplerStep::top_k, SamplerStep::typical,
                       SamplerStep::top_p,     SamplerStep::min_p, SamplerStep::temperature};
const Steps kOrderB = {SamplerStep::penalties, SamplerStep::temperature, SamplerStep::top_k,
                       SamplerStep::typical,   SamplerStep::top_p,       SamplerStep::min_p};

Sampler golden_sampler(const nlohmann::json& record) {
  Sampler s;
  for (const auto& [key, value] : record["params"].items()) {
    if (key == "temperature")
      s.temperature = value;
    else if (key == "top_k")
      s.top_k = value;
    else if (key == "top_p")
      s.top_p = value;
    else if (key == "min_p")
      s.min_p = value;
    else if (key == "typical_p")
      s.typical_p = value;
    else if (key == "repetition_penalty")
      s.repetition_penalty = value;
    else if (key == "frequency_penalty")
      s.frequency_penalty = value;
    else if (key == "presence_penalty")
      s.presence_penalty = value;
    else
      FAIL("unknown parameter " << key);
  }
  s.order = {};
  std::string names = record["order"].get<std::string>() + ",";
  for (std::size_t end; (end = names.find(',')) != std::string::npos; names.erase(0, end + 1)) {
    const std::string name = names.substr(0, end);
    if (name == "penalties")
      s.order.push_back(SamplerStep::penalties);
    else if (name == "temperature")
      s.order.push_back(SamplerStep::temperature);
    else if (name == "top_k")
      s.order.push_back(SamplerStep::top_k);
    else if (name == "top_p")
      s.order.push_back(SamplerStep::top_p);
    else if (name == "min_p")
      s.order.push_back(SamplerStep::min_p);
    else if (name == "typical")
      s.order.push_back(SamplerStep::typical);
    else
      FAIL("unknown step " << name);
  }
  return s;
}

double sum(const std::vector<double>& p) {
  double total = 0.0;
  for (const double v : p) total += v;
  return total;
}

/// A random sampler, half of its fields off.
Sampler random_sampler(Dice& dice) {
  Sampler s;
  const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 1.7f, 50.0f};
  s.temperature = temperatures[dice.below(6)];
  if (dice.below(2)) s.top_k = dice.below(4) ? 1 + dice.below(300) : 1;
  if (dice.below(2)) s.top_p = static_cast<float>(dice.uniform());
  if (dice.below(2)) s.min_p = static_cast<float>(dice.uniform(0.0, 0.3));
  if (dice.below(3) == 0) s.typical_p = static_cast<float>(dice.uniform());
  if (dice.below(2)) s.repetition_penalty = static_cast<float>(dice.uniform(0.7, 1.6));
  if (dice.below(3) == 0) s.frequency_penalty = static_cast<float>(dice.uniform(-1.0, 1.0));
  if (dice.below(3) == 0) s.presence_penalty = static_cast<float>(dice.uniform(-1.0, 1.0));
  if (dice.below(3) == 0) s.penalty_last = static_cast<std::size_t>(dice.below(20));
  Steps order = kOrderA;
  if (dice.below(2))
    for (std::size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[static_cast<std::size_t>(dice.below(static_cast<int>(i) + 1))]);
  order.resize(static_cast<std::size_t>(dice.below(4) ? 6 : dice.below(7)));
  s.order = decant::SamplerOrder(order);
  return s;
}

}  // namespace

TEST_CASE("sampler: golden distributions") {
  std::ifstream file(DECANT_TEST_DATA "/sampling.json");
  REQUIRE(file);
  const auto golden = nlohmann::json::parse(file);
  std::size_t checked = 0;
  for (const auto& record : golden["records"]) {
    const auto vector = std::find_if(golden["vectors"].begin(), golden["vectors"].end(),
                                     [&](const auto& v) { return v["name"] == record["vector"]; });
    REQUIRE(vector != golden["vectors"].end());
    std::vector<float> logits;
    for (const auto& x : (*vector)["logits"])
      logits.push_back(x.is_string() ? -kInf : x.get<float>());
    const auto history = (*vector)["history"].get<std::vector<Token>>();
    std::vector<double> expected(logits.size(), 0.0);
    std::vector<bool> kept(logits.size(), false);
    std::size_t n = 0;
    for (std::size_t run = 0; run < record["kept"].size(); run += 2)
      for (std::size_t i = 0; i < record["kept"][run + 1]; ++i, ++n) {
        const std::size_t id = record["kept"][run].get<std::size_t>() + i;
        kept.at(id) = true;
        expected.at(id) = record["p7"].at(n).get<double>() * 1e-7;
      }

    INFO("record " << record["id"]);
    const auto p = golden_sampler(record).probabilities(logits, history);
    REQUIRE(p);
    REQUIRE(p->size() == expected.size());
    double worst = 0.0;
    bool same_set = true;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs((*p)[i] - expected[i]));
      same_set = same_set && ((*p)[i] > 0.0) == kept[i];
    }
    CHECK(worst <= 1e-7);
    CHECK(same_set);
    ++checked;
  }
  CHECK(checked == 358);
}

TEST_CASE("sampler: random samplers agree with the plain definitions") {
  Dice dice(1);
  SamplerWorkspace workspace;
  int compared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int n = 1 + dice.below(trial % 10 == 0 ? 3000 : 200);
    std::vector<float> logits;
    const double scale = dice.uniform(0.01, 6.0);
    for (int i = 0; i < n; ++i) {
      const double x = scale * dice.normal();
      logits.push_back(
          static_cast<float>(trial % 3 == 0 ? std::round(x) : x));  // rounded: many ties
      if (dice.below(20) == 0) logits.back() = -kInf;
    }
    logits[static_cast<std::size_t>(dice.below(n))] = 1.0f;
    if (trial % 50 == 7) logits[static_cast<std::size_t>(dice.below(n))] = kInf;
    if (trial % 50 == 8) logits[static_cast<std::size_t>(dice.below(n))] = kNan;
    std::vector<Token> history;
    for (int i = dice.below(30); i > 0; --i) history.push_back(dice.below(n));
    const Sampler s = random_sampler(dice);
    const OracleResult oracle = SamplerOracle::run(s, logits, history);
    if (!(sum(oracle.probabilities) > 0.5)) continue;  // everything was NaN
    if (oracle.margin < 1e-11) continue;
    ++compared;

    INFO("trial " << trial);
    std::vector<double> p(logits.size());
    REQUIRE(detail::sampler_distribution(s, logits, history, workspace, p));
    double worst = 0.0;
    bool same_set = true;
    for (std::size_t i = 0; i < p.size(); ++i) {
      worst = std::max(worst, std::abs(p[i] - oracle.probabilities[i]));
      // Long double has smaller numbers than double.
      same_set = same_set && (p[i] > 0.0) == (oracle.probabilities[i] > 0.0);
    }
    CHECK(worst < 1e-11);
    CHECK(same_set);
    for (std::uint64_t position = 0; position < 4; ++position) {
      const auto token = detail::sample_token(s, logits, history, 5, position, workspace);
      REQUIRE(token);
      CHECK(p[static_cast<std::size_t>(*token)] > 0.0);
    }
  }
  CHECK(compared > 2700);
}

TEST_CASE("sampler: a large vocabulary, and no allocation after the first token") {
  constexpr int n = 262144;
  Dice dice(2);
  std::vector<float> logits;
  for (int i = 0; i < n; ++i)
    logits.push_back(static_cast<float>(std::round(40 * dice.normal()) / 16));
  const std::vector<Token> history = {0, 5, 5, n - 1, 70000};
  Sampler top_k, top_p, creative = Sampler::creative(), typical, flat;
  top_k.top_k = 1000;
  top_p.top_p = 0.97f;
  typical.typical_p = 0.5f;
  flat.temperature = 3.0f;
  flat.top_p = 0.999f;
  flat.order = decant::SamplerOrder(kOrderB);
  SamplerWorkspace workspace;
  std::vector<double> p(logits.size());
  const void* memory = nullptr;
  for (const Sampler& s : {top_k, top_p, creative, typical, flat, Sampler::balanced()}) {
    const OracleResult oracle = SamplerOracle::run(s, logits, history);
    REQUIRE(oracle.margin > 1e-12);
    REQUIRE(detail::sampler_distribution(s, logits, history, workspace, p));
    double worst = 0.0;
    bool same_set = true;
    for (std::size_t i = 0; i < p.size(); ++i) {
      worst = std::max(worst, std::abs(p[i] - oracle.probabilities[i]));
      same_set = same_set && (p[i] > 0.0) == (oracle.probabilities[i] > 0.0);
    }
    CHECK(worst < 1e-12);
    CHECK(same_set);
    if (memory == nullptr) memory = workspace.logits.data();
    CHECK(workspace.logits.data() == memory);
    CHECK(workspace.ranked.size() == logits.size());
  }
}

TEST_CASE("sampler: nothing valid, NaN and infinities") {
  const std::vector<std::vector<float>> vectors = {{kNan, kNan, kNan},
                                                   {1, kNan, 3, 2},
                                                   {-kInf, -kInf},
                                                   {kInf, kInf, kInf},
                                                   {1, kInf, 3},
                                                   {2, 2, 2, 2},
                                                   {-kInf, 5, -kInf},
                                                   {7},
                                                   {kNan},
                                                   {-kInf},
                                                   {kInf},
                                                   {},
                                                   {kInf, 0, kInf, kNan},
                                                   {-kInf, kNan},
                                                   {3.4e38f, -3.4e38f},
                                                   {1e-45f, 0.0f, -1e-45f},
                                                   {kNan, -kInf, -3.4e38f, 0}};
  std::vector<Sampler> samplers = {Sampler(), Sampler::greedy(), Sampler::precise(),
                                   Sampler::balanced(), Sampler::creative()};
  for (int field = 0; field < 9; ++field) {
    Sampler s;
    if (field == 0) s.temperature = 1e-45f;
    if (field == 1) s.temperature = 3e38f;
    if (field == 2) s.top_k = 1;
    if (field == 3) s.top_k = 2;
    if (field == 4) s.top_p = 0.5f;
    if (field == 5) s.min_p = 1.0f;
    if (field == 6) s.typical_p = 0.0f;
    if (field == 7)
      s.repetition_penalty = 3e38f, s.frequency_penalty = 3e38f, s.presence_penalty = -3e38f;
    if (field == 8) s.repetition_penalty = 1e-45f, s.temperature = 2e-38f;
    samplers.push_back(s);
    s.order = decant::SamplerOrder(kOrderB);
    samplers.push_back(s);
  }
  for (const auto& logits : vectors) {
    bool any = false, infinite = false;
    for (const float x : logits) {
      any = any || x > -kInf;
      infinite = infinite || x == kInf;
    }
    std::vector<std::vector<Token>> histories = {{}};
    if (!logits.empty()) histories.push_back({0, 0, static_cast<Token>(logits.size()) - 1});
    for (const Sampler& s : samplers)
      for (const auto& history : histories) {
        const auto p = s.probabilities(logits, history);
        if (!any) {
          REQUIRE_FALSE(p);
          CHECK(p.error().code() == ErrorCode::no_valid_token);
          CHECK(s.sample(logits, history).error().code() == ErrorCode::no_valid_token);
          continue;
        }
        REQUIRE(p);
        CHECK(sum(*p) == Approx(1.0).epsilon(1e-12));
        for (std::size_t i = 0; i < logits.size(); ++i) {
          CHECK((*p)[i] >= 0.0);
          if (!(logits[i] > -kInf) || (infinite && logits[i] != kInf)) CHECK((*p)[i] == 0.0);
        }
        for (std::uint64_t position = 0; position < 20; ++position) {
          const auto token = s.sample(logits, history, position);
          REQUIRE(token);
          REQUIRE(*token >= 0);
          REQUIRE(static_cast<std::size_t>(*token) < logits.size());
          CHECK((*p)[static_cast<std::size_t>(*token)] > 0.0);
        }
      }
  }
  // +inf shares everything, whatever the penalties.
  Sampler s;
  s.frequency_penalty = 2.0f;
  const float shared[] = {kInf, 0.0f, kInf, kNan};
  const Token history[] = {0, 0};
  CHECK(*s.probabilities(shared, history) == std::vector<double>{0.5, 0.0, 0.5, 0.0});
  CHECK(*Sampler::greedy().sample(shared, history) == 0);
}

TEST_CASE("sampler: degenerate parameters in all combinations") {
  const float below = std::nextafter(7.0f, 0.0f);
  const std::vector<float> logits = {1.0f, 7.0f, 3.0f, below};
  SamplerWorkspace workspace;
  int invalid = 0, valid = 0;
  for (const float temperature : {0.0f, 1e-45f, 1e-8f, 1e-5f, 1.0f, 1e8f, kInf})
    for (const int top_k : {0, -1, 1, 4, 5, std::numeric_limits<int>::max()})
      for (const float top_p : {0.0f, 1e-45f, 1e-8f, 1.0f, 1.5f})
        for (const float min_p : {0.0f, 1.0f})
          for (const Steps& order : {kOrderA, kOrderB}) {
            Sampler s;
            s.temperature = temperature;
            s.top_k = top_k;
            s.top_p = top_p;
            s.min_p = min_p;
            s.order = decant::SamplerOrder(order);
            const auto p = s.probabilities(logits);
            if (temperature == kInf || top_p == 1.5f) {
              ++invalid;
              CHECK(s.validate().error().code() == ErrorCode::invalid_argument);
              REQUIRE_FALSE(p);
              CHECK(p.error().code() == ErrorCode::invalid_argument);
              CHECK(s.sample(logits).error().code() == ErrorCode::invalid_argument);
              continue;
            }
            ++valid;
            REQUIRE(p);
            INFO("T " << temperature << " k " << top_k << " P " << top_p << " m " << min_p);
            CHECK(sum(*p) == Approx(1.0).epsilon(1e-12));
            CHECK((*p)[1] >= (*p)[3]);  // the best survives every truncation
            CHECK((*p)[3] >= (*p)[2]);
            CHECK((*p)[2] >= (*p)[0]);
            const bool only_best = temperature < 1e-9f || top_k == 1 || top_p < 0.1f;
            if (only_best) CHECK((*p)[1] == 1.0);
            if (temperature == 1e-8f) CHECK((*p)[1] == 1.0);  // the second has e^-47
            const bool whole = top_k != 1 && top_p == 1.0f && min_p == 0.0f;
            if (temperature == 1e8f && whole)
              for (const double v : *p) CHECK(v == Approx(0.25).margin(1e-7));
            bool inside = true, always_best = true;
            for (std::uint64_t position = 0; position < 1000; ++position) {
              const auto token = detail::sample_token(s, logits, {}, 11, position, workspace);
              REQUIRE(token);
              inside = inside && *token >= 0 && *token < 4 &&
                       (*p)[static_cast<std::size_t>(*token)] > 0.0;
              always_best = always_best && *token == 1;
            }
            CHECK(inside);
            CHECK(always_best == ((*p)[1] == 1.0));
          }
  CHECK(valid == 6 * 6 * 4 * 2 * 2);
  CHECK(invalid == 7 * 6 * 5 * 2 * 2 - valid);
}

TEST_CASE("sampler: exact ties at temperature 0 and just above it") {
  const std::vector<float> logits = {1.0f, 7.0f, 7.0f, 7.0f};
  for (const float temperature : {0.0f, 1e-45f, 1e-39f}) {
    Sampler s;
    s.temperature = temperature;
    CHECK(*s.probabilities(logits) == std::vector<double>{0, 1, 0, 0});
    for (std::uint64_t position = 0; position < 50; ++position)
      CHECK(*s.sample(logits, {}, position) == 1);
  }
}

TEST_CASE("sampler: parameters out of range are named") {
  const float logits[] = {1.0f, 2.0f};
  const auto refused = [&](auto change, const char* field) {
    Sampler s;
    change(s);
    INFO(field);
    const Status status = s.validate();
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::invalid_argument);
    CHECK(status.error().message().find(field) != std::string_view::npos);
    CHECK(s.sample(logits).error().code() == ErrorCode::invalid_argument);
    CHECK(s.probabilities(logits).error().code() == ErrorCode::invalid_argument);
    REQUIRE(s.review().size() == 1);
    CHECK(s.review()[0] == status.error().message());
  };
  for (const float v : {-1.0f, -1e-45f, kNan, kInf, -kInf})
    refused([v](Sampler& s) { s.temperature = v; }, "temperature");
  for (const float v : {-0.1f, 1.0001f, kNan, kInf, -kInf}) {
    refused([v](Sampler& s) { s.top_p = v; }, "top_p");
    refused([v](Sampler& s) { s.min_p = v; }, "min_p");
    refused([v](Sampler& s) { s.typical_p = v; }, "typical_p");
  }
  for (const float v : {0.0f, -1.0f, kNan, kInf})
    refused([v](Sampler& s) { s.repetition_penalty = v; }, "repetition_penalty");
  for (const float v : {kNan, kInf, -kInf}) {
    refused([v](Sampler& s) { s.frequency_penalty = v; }, "frequency_penalty");
    refused([v](Sampler& s) { s.presence_penalty = v; }, "presence_penalty");
  }
  refused([](Sampler& s) { s.order = {SamplerStep::top_k, SamplerStep::top_k}; }, "twice");
  refused([](Sampler& s) { s.order = {static_cast<SamplerStep>(200)}; }, "order");

  Sampler subnormal;  // legal: the smallest values of their ranges
  subnormal.temperature = 1e-45f;
  subnormal.repetition_penalty = 1e-45f;
  CHECK(subnormal.validate());
  Sampler nothing;
  nothing.order = {};
  nothing.temperature = 0.0f;  // its step is left out, so it does not happen
  CHECK(*nothing.probabilities(std::vector<float>{3.0f, 3.0f}) == std::vector<double>{0.5, 0.5});
}

TEST_CASE("sampler: token ids from the caller") {
  constexpr Token n = 64;
  Dice dice(3);
  std::vector<float> logits;
  for (Token i = 0; i < n; ++i) logits.push_back(static_cast<float>(dice.normal()));
  const std::vector<Token> good = {0, 1, n - 1, n - 1};
  std::vector<Sampler> samplers(3);
  samplers[0].repetition_penalty = 1.3f;
  samplers[1].frequency_penalty = 0.5f;
  samplers[1].temperature = 0.0f;
  for (Sampler& s : samplers) {
    SamplerWorkspace solo, shared;
    std::vector<double> expected(logits.size()), p(logits.size());
    REQUIRE(detail::sampler_distribution(s, logits, good, solo, expected));
    for (const Token bad : {-1, n, n + 31, n + 32, std::numeric_limits<Token>::max(),
                            std::numeric_limits<Token>::min()}) {
      const std::vector<Token> history = {3, 3, bad, 4};
      const auto token = detail::sample_token(s, logits, history, 1, 1, shared);
      REQUIRE_FALSE(token);
      CHECK(token.error().code() == ErrorCode::invalid_argument);
      CHECK(token.error().message().find(std::to_string(bad)) != std::string_view::npos);
      CHECK_FALSE(detail::sampler_distribution(s, logits, history, shared, p));
      CHECK(s.sample(logits, history).error().code() == ErrorCode::invalid_argument);
      // The next request on the same workspace is as if it were alone.
      REQUIRE(detail::sampler_distribution(s, logits, good, shared, p));
      CHECK(p == expected);
    }
  }
  std::vector<double> small(1);
  SamplerWorkspace workspace;
  CHECK(detail::sampler_distribution(Sampler(), logits, {}, workspace, small).error().code() ==
        ErrorCode::invalid_argument);
}

TEST_CASE("sampler: penalties look at the last tokens only") {
  // By hand: x = {2, -1, 0}, r = 2, f = 0.5, q = 0.25, history {0, 1, 1}.
  const std::vector<float> logits = {2.0f, -1.0f, 0.0f};
  const std::vector<Token> history = {0, 1, 1};
  Sampler s;
  s.repetition_penalty = 2.0f;
  s.frequency_penalty = 0.5f;
  s.presence_penalty = 0.25f;
  const auto expect = [&](std::size_t last, double x0, double x1) {
    s.penalty_last = last;
    const auto p = s.probabilities(logits, history);
    REQUIRE(p);
    CHECK(std::log((*p)[0] / (*p)[2]) == Approx(x0));
    CHECK(std::log((*p)[1] / (*p)[2]) == Approx(x1));
  };
  expect(SIZE_MAX, 0.25, -3.25);  // 2/2 - 0.5 - 0.25; -1*2 - 2*0.5 - 0.25
  expect(3, 0.25, -3.25);
  expect(2, 2.0, -3.25);
  expect(1, 2.0, -2.75);
  expect(0, 2.0, -1.0);
}
