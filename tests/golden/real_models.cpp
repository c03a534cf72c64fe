// SmolLM2-135M-Instruct (Q4_1) and Gemma 3 270M (Q4_K_M) against transformers 5.24 in float32 on
// the dequantised weights: tests/data/real holds what it computed (golden data "real/", see its
// README).
#include <decant/decant.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/npz.hpp"
#include "support/real_models.hpp"

using decant::Token;

namespace {

struct RealModel {
  const char* variable;
  std::string name;
};
const RealModel kSmollm2{"DECANT_SMOLLM2", "smollm2"}, kGemma3{"DECANT_GEMMA3", "gemma3"};

std::string golden_path(const std::string& file) {
  return std::string(DECANT_TEST_DATA) + "/real/real-" + file + ".npz";
}

decant::ModelOptions reference_options() {
  decant::ModelOptions options;
  options.backend = decant::Backend::reference;
  options.context = 1024;
  return options;
}

decant::Session raw_session(decant::Model& model, std::span<const Token> tokens) {
  auto session = model.session().value();
  session.append(tokens).value();
  return session;
}

/// Logits after each of the session's last n tokens, [n][n_vocab].
std::vector<float> last_logits(decant::Session& session, const decant::Model& model,
                               std::size_t n) {
  std::vector<float> rows(n * model.info().n_vocab);
  session.logits(std::span(rows)).value();
  return rows;
}

double log_sum_exp(std::span<const float> row) {
  const double max = static_cast<double>(*std::max_element(row.begin(), row.end()));
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - max);
  return max + std::log(sum);
}

/// Mean and largest difference of logits at some columns.
struct Difference {
  double sum = 0, max = 0;
  std::size_t n = 0;
  void add(double a, double b) {
    sum += std::abs(a - b);
    max = std::max(max, std::abs(a - b));
    ++n;
  }
  void check() const {
    INFO("mean " << sum / static_cast<double>(n) << ", max " << max << " over " << n << " logits");
    CHECK(n > 0);
    CHECK(sum / static_cast<double>(n) <= 1e-3);
    CHECK(max <= 1e-2);
  }
};

void check_short_texts(const RealModel& which) {
  const auto path = decant_test::real_model(which.variable);
  if (!path) DECANT_SKIP(std::string(which.variable) + " is not set");
  const auto golden = decant_test::read_npz(golden_path(which.name));
  auto model = decant::Model::load(*path, reference_options()).value();
  const std::size_t n_vocab = model.info().n_vocab;
  const auto columns = golden.at("columns").as<std::size_t>();

  for (int text = 0; text < 5; ++text) {
    CAPTURE(which.name, text);
    const std::string i = std::to_string(text);
    const auto ids = golden.at("ids" + i).as<Token>();
    auto session = raw_session(model, ids);
    const auto rows = last_logits(session, model, ids.size());
    const auto wanted = golden.at("cols" + i).as<double>();
    const auto top_ids = golden.at("top_ids" + i).as<std::size_t>();
    const auto top = golden.at("top" + i).as<double>();
    const auto lse = golden.at("lse" + i).as<double>();
    Difference difference;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const auto row = std::span(rows).subspan(t * n_vocab, n_vocab);
      for (std::size_t c = 0; c < columns.size(); ++c)
        difference.add(static_cast<double>(row[columns[c]]), wanted[t * columns.size() + c]);
      for (std::size_t k = 0; k < 20; ++k)
        difference.add(static_cast<double>(row[top_ids[t * 20 + k]]), top[t * 20 + k]);
      difference.add(log_sum_exp(row), lse[t]);
    }
    difference.check();

    // Greedy continuation, as far as the reference's first choice leads by more than 0.05.
    const auto greedy = golden.at("greedy" + i).as<Token>();
    const auto gap = golden.at("gap" + i).as<float>();
    const auto close = std::find_if(gap.begin(), gap.end(), [](float g) { return g <= 0.05f; });
    const auto n_firm = static_cast<std::size_t>(close - gap.begin());
    REQUIRE(n_firm > 0);
    auto reply =
        session.generate({.max_tokens = n_firm, .sampler = decant::Sampler::greedy()}).value();
    reply.wait().value();
    const auto tokens = reply.tokens();
    CHECK(tokens ==
          std::vector<Token>(greedy.begin(), greedy.begin() + static_cast<std::ptrdiff_t>(n_firm)));
  }
}

void check_long_text(const RealModel& which) {
  const auto path = decant_test::real_model(which.variable);
  if (!path) DECANT_SKIP(std::string(which.variable) + " is not set");
  const auto golden = decant_test::read_npz(golden_path(which.name + "-long"));
  auto model = decant::Model::load(*path, reference_options()).value();
  const std::size_t n_vocab = model.info().n_vocab;
  const auto ids = golden.at("ids").as<Token>();
  REQUIRE(ids.size() == 900);
  const auto positions = golden.at("positions").as<std::size_t>();
  const auto columns = golden.at("columns").as<std::size_t>();
  const auto wanted = golden.at("logits").as<double>();
  const auto nll = golden.at("nll").as<double>();

  auto session = model.session().value();
  Difference difference;
  double sum = 0, wanted_sum = 0;
  constexpr std::size_t kStep = 100;
  for (std::size_t at = 0; at < ids.size(); at += kStep) {
    session.append(std::span(ids).subspan(at, kStep)).value();
    const auto rows = last_logits(session, model, kStep);
    for (std::size_t t = at; t < at + kStep; ++t) {
      const auto row = std::span(rows).subspan((t - at) * n_vocab, n_vocab);
      if (t + 1 < ids.size()) {
        sum += log_sum_exp(row) - static_cast<double>(row[static_cast<std::size_t>(ids[t + 1])]);
        wanted_sum += nll[t];
      }
      const auto p = std::find(positions.begin(), positions.end(), t);
      if (p == positions.end()) continue;
      const auto from = static_cast<std::size_t>(p - positions.begin()) * columns.size();
      for (std::size_t c = 0; c < columns.size(); ++c)
        difference.add(static_cast<double>(row[columns[c]]), wanted[from + c]);
    }
  }
  CHECK(difference.n == 64 * columns.size());
  difference.check();
  const double n = static_cast<double>(ids.size() - 1);
  INFO("mean negative log-likelihood " << sum / n << ", reference " << wanted_sum / n);
  CHECK(std::abs(sum / n - wanted_sum / n) <= 1e-3);
}

}  // namespace

TEST_CASE("SmolLM2: logits and greedy tokens of five texts", "[real]") {
  check_short_texts(kSmollm2);
}
TEST_CASE("Gemma 3: logits and greedy tokens of five texts", "[real]") {
  check_short_texts(kGemma3);
}
TEST_CASE("SmolLM2: logits and likelihood of 900 tokens", "[real]") { check_long_text(kSmollm2); }
TEST_CASE("Gemma 3: logits and likelihood of 900 tokens", "[real]") { check_long_text(kGemma3); }

TEST_CASE("SmolLM2: same tokens for any chunk, thread count and floating-point mode of the host",
          "[real]") {
  const auto path = decant_test::real_model(kSmollm2.variable);
  if (!path) DECANT_SKIP(std::string(kSmollm2.variable) + " is not set");
  const auto golden = decant_test::read_npz(golden_path("smollm2-long"));
  auto ids = golden.at("ids").as<Token>();
  ids.resize(40);
  std::vector<float> first;
  std::vector<Token> first_tokens;
  struct Variant {
    std::size_t chunk;
    int threads;
    bool hostile;
  };
  for (const Variant v : {Variant{512, 2, false}, {7, 1, false}, {1, 2, false}, {512, 3, true}}) {
    CAPTURE(v.chunk, v.threads, v.hostile);
    decant::ModelOptions options = reference_options();
    options.chunk = v.chunk;
    options.threads = v.threads;
    std::optional<decant_test::HostMode> hostile;
    if (v.hostile) hostile.emplace(decant_test::HostMode::both);
    auto model = decant::Model::load(*path, options).value();
    auto session = raw_session(model, ids);
    const auto rows = last_logits(session, model, 8);
    decant::Sampler sampler = decant::Sampler::creative();
    sampler.seed = 7;
    auto reply = session.generate({.max_tokens = 12, .sampler = sampler}).value();
    const bool ended_well = static_cast<bool>(reply.wait());
    const auto tokens = reply.tokens();
    hostile.reset();
    CHECK(ended_well);
    if (first.empty()) {
      first = rows;
      first_tokens = tokens;
      CHECK(tokens.size() == 12);
    }
    CHECK(std::memcmp(rows.data(), first.data(), first.size() * sizeof(float)) == 0);
    CHECK(tokens == first_tokens);
  }
}

TEST_CASE("SmolLM2: a conversation keeps what it has computed", "[real]") {
  const auto path = decant_test::real_model(kSmollm2.variable);
  if (!path) DECANT_SKIP(std::string(kSmollm2.variable) + " is not set");
  auto model = decant::Model::load(*path, reference_options()).value();
  auto session = model.session().value();
  session.append(decant::Message{"user", "Name three primary colours."}).value();
  auto reply = session.generate({.max_tokens = 16, .sampler = decant::Sampler::greedy()}).value();
  reply.wait().value();
  const std::size_t held = session.tokens().size();
  CHECK(session.messages().size() == 2);
  session.append(decant::Message{"user", "And three animals?"}).value();
  auto second = session.generate({.max_tokens = 4, .sampler = decant::Sampler::greedy()}).value();
  second.wait().value();
  // The last token of the first reply had been chosen but not run.
  CHECK(second.stats().cached_tokens == held - 1);

  // The same tokens from nothing give the same reply.
  const auto all = session.tokens();
  const std::vector<Token> prompt(all.begin(), all.end() - 4);
  auto fresh = raw_session(model, prompt);
  auto third = fresh.generate({.max_tokens = 4, .sampler = decant::Sampler::greedy()}).value();
  third.wait().value();
  CHECK(third.tokens() == second.tokens());
}
