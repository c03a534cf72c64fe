// Promise 2 on the real models: 620 tokens, which pass a split of 256 positions and Gemma's window
// of 512, leave the same logits and pages whatever the instruction set, threads, chunk, neighbours,
// places of the pages and the host's floating-point mode. Each pair of settings meets in some run.
// The portable kernels, a hundred times slower, run the first 16 tokens; the tiny models of
// unit/backend/cpu_model_test.cpp go through all settings with them.
#include <decant/decant.hpp>

#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/npz.hpp"
#include "support/real_models.hpp"
#include "support/told.hpp"

using namespace decant_test;

namespace {

struct BitsSetting {
  const char* isa;
  int threads;
  std::size_t chunk;
  bool among_others;
  HostMode::Kind mode;
};

/// Nothing when the processor lacks the instruction set.
std::optional<Left> bits_left(const std::string& path, const BitsSetting& setting,
                              std::span<const Token> prompt) {
  const HostMode mode(setting.mode);
  decant::ModelOptions options;
  options.isa = setting.isa;
  options.threads = setting.threads;
  options.chunk = setting.chunk;
  options.context = 640;
  options.sessions = 3;
  options.prefix_cache = false;
  auto loaded = decant::Model::load(path, options);
  if (!loaded && loaded.error().code() == decant::ErrorCode::unsupported) return std::nullopt;
  decant::Model model = std::move(loaded).value();
  std::vector<decant::Session> others;
  std::vector<decant::Reply> replies;
  if (setting.among_others) {
    // Pages that others had before, in another order; then seven in flight.
    for (int i = 0; i < 7; ++i) {
      others.push_back(session_with(model, prompt.first(static_cast<std::size_t>(4 + i))));
      (void)others.back().logits().value();
    }
    for (std::size_t i = 0; i < others.size(); i += 2) {
      others[i].rewind(0).value();
      others[i].append(prompt.first(7)).value();
    }
    for (auto& other : others)
      replies.push_back(
          other.generate({.max_tokens = 8, .sampler = decant::Sampler::greedy()}).value());
  }
  auto session = session_with(model, prompt);
  Left left;
  left.logits.resize(2 * model.info().n_vocab);
  session.logits(std::span(left.logits)).value();
  left.snapshot = session.save().value();
  for (auto& reply : replies) reply.wait().value();
  return left;
}

void check_bits(const char* variable, const std::string& name) {
  const auto path = real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  const auto golden = read_npz(std::string(DECANT_TEST_DATA) + "/real/real-" + name + "-long.npz");
  const auto ids = golden.at("ids").as<Token>();
  constexpr auto plain = HostMode::plain, flush = HostMode::flush_to_zero,
                 toward_zero = HostMode::toward_zero;
  const auto check = [&](std::size_t n_tokens, const std::vector<BitsSetting>& settings) {
    std::optional<Left> first;
    for (const BitsSetting& s : settings) {
      CAPTURE(name, n_tokens, s.isa, s.threads, s.chunk, s.among_others, static_cast<int>(s.mode));
      const auto left = bits_left(*path, s, std::span(ids).first(n_tokens));
      if (!left) continue;
      if (!first) first = left;
      CHECK(*left == *first);
    }
  };
  check(620, {{"", 2, 512, false, plain},
              {"avx2", 1, 512, true, flush},
              {"avx512", 2, 64, true, toward_zero},
              {"avx2", 3, 64, false, plain},
              {"avx512", 3, 7, true, flush},
              {"avx2", 2, 7, false, toward_zero},
              {"avx512", 1, 7, false, plain},
              {"avx2", 5, 7, true, plain},
              {"avx512", 5, 512, false, toward_zero},
              {"avx2", 5, 64, false, flush},
              {"avx512", 1, 64, true, toward_zero},
              {"avx2", 3, 512, true, toward_zero},
              {"avx512", 2, 512, true, flush}});
  check(16, {{"portable", 2, 512, false, plain},
             {"", 2, 1, true, flush},
             {"avx2", 3, 1, false, toward_zero},
             {"avx512", 5, 1, true, plain},
             {"avx2", 1, 1, true, plain}});
}

}  // namespace

TEST_CASE("SmolLM2: the same logits and pages in every way", "[real]") {
  check_bits("DECANT_SMOLLM2", "smollm2");
}
TEST_CASE("Gemma 3: the same logits and pages in every way", "[real]") {
  check_bits("DECANT_GEMMA3", "gemma3");
}
