// Tokens that are chosen on the device, in whole models: those that the host chooses from the same
// logits, and nothing else is copied back. A process_logits that changes nothing brings a row's
// logits, and its choice, to the host.
#include <algorithm>

#include "backend/cuda/cuda.hpp"
#include "cuda_host/executor.hpp"
#include "model/architecture.hpp"
#include "model/weights.hpp"
#include "support/catch.hpp"
#include "support/samplers.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using namespace decant::detail;
using decant::ErrorCode;
using decant::GenerateOptions;
using decant::Sampler;
using decant::SamplerStep;

namespace {

void choose_on_host(GenerateOptions& options) {
  options.process_logits = [](void*, std::span<const Token>, std::span<float>) { return true; };
}

decant::Model choice_model(const TinyModel& tiny, std::size_t sessions) {
  decant::ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.threads = 1;
  options.context = 64;
  options.sessions = options.max_batch = sessions;
  options.prefix_cache = false;
  return tiny.load(options);
}

/// Logits of tokens behind the tokenizer's last are the largest by far, half of them.
TinyModel padded_model(const char* architecture) {
  TinyModel tiny = random_model({.architecture = architecture, .n_padding = 21});
  std::vector<float>& head = tiny.tensor("output.weight").data;
  for (std::size_t i = kTinyTokens * 32; i < head.size(); ++i) head[i] *= 30.0f;
  return tiny;
}

std::vector<Sampler> samplers() {
  return samplers_with(
      [](Sampler& s) { s.top_k = 1; }, [](Sampler& s) { s.top_k = 7, s.temperature = 1.7f; },
      [](Sampler& s) { s.top_p = 0.7f; }, [](Sampler& s) { s.min_p = 0.02f, s.temperature = 3.0f; },
      [](Sampler& s) { s.repetition_penalty = 3.0f, s.temperature = 0.0f; },
      [](Sampler& s) { s.frequency_penalty = 0.7f, s.presence_penalty = 0.4f, s.top_k = 30; },
      [](Sampler& s) { s.repetition_penalty = 0.6f, s.penalty_last = 3; },
      [](Sampler& s) {
        s.temperature = 2.5f, s.top_k = 30, s.top_p = 0.8f;
        s.order = {SamplerStep::temperature, SamplerStep::top_p, SamplerStep::top_k};
      },
      // These are chosen on the host in any case.
      [](Sampler& s) { s.typical_p = 0.6f; },
      [](Sampler& s) {
        s.repetition_penalty = 2.0f, s.top_k = 40;
        s.order = {SamplerStep::top_k, SamplerStep::penalties};
      });
}

/// Replies of six tokens, all at the same time. Some have rows that are chosen on the host beside
/// them: every fourth, or all.
std::vector<std::vector<Token>> replies(const TinyModel& tiny, bool all_on_host) {
  const std::vector<Sampler> all = samplers();
  const std::size_t n = 5 * all.size();  // more than are chosen together
  decant::Model model = choice_model(tiny, n);
  std::vector<decant::Session> sessions;
  std::vector<decant::Reply> replies;
  for (std::size_t i = 0; i < n; ++i) {
    GenerateOptions options = exactly(6, 1000 + i / all.size());
    const auto seed = options.sampler.seed;
    options.sampler = all[i % all.size()];
    options.sampler.seed = seed;
    options.sampler.sample_index = static_cast<std::uint32_t>(i % 3);
    if (all_on_host || i % 4 == 3) choose_on_host(options);
    sessions.push_back(session_with(
        model, TinyRandom(i).tokens(1 + i % 7, static_cast<int>(model.info().n_vocab))));
    replies.push_back(sessions.back().generate(options).value());
  }
  std::vector<std::vector<Token>> tokens;
  for (decant::Reply& reply : replies) {
    reply.wait().value();
    tokens.push_back(reply.tokens());
  }
  return tokens;
}

}  // namespace

TEST_CASE("cuda choice: the host's tokens for every sampler, in one batch") {
  for (const char* architecture : {"llama", "gemma3"}) {
    const TinyModel tiny = padded_model(architecture);
    const auto chosen = replies(tiny, false), wanted = replies(tiny, true);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(architecture, i);
      CHECK(chosen[i] == wanted[i]);
      for (const Token token : chosen[i]) CHECK(token < kTinyTokens);
    }
  }
}

TEST_CASE("cuda choice: where no logit is a number, the host's error") {
  TinyModel tiny = random_model();
  tiny.tensor("output_norm.weight").data.assign(32, NAN);
  decant::Model model = choice_model(tiny, 2);
  const auto error = [&](const Sampler& sampler, bool on_host) {
    auto session = session_with(model, TinyRandom(1).tokens(5));
    GenerateOptions options = exactly(3, 1);
    options.sampler = sampler;
    if (on_host) choose_on_host(options);
    const auto status = session.generate(options).value().wait();
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::no_valid_token);
    return std::string(status.error().message());
  };
  for (const Sampler& sampler : {Sampler::greedy(), Sampler()})
    CHECK(error(sampler, false) == error(sampler, true));
}

#ifndef DECANT_TEST_GPU
TEST_CASE("cuda choice: a token comes back from the device, and no logits but those asked for") {
  const TinyModel tiny = random_model();
  decant::Model model = choice_model(tiny, 8);
  const std::uint64_t logits_bytes = model.info().n_vocab * sizeof(float);
  const auto copied = [&](std::size_t n_tokens, std::size_t on_device, std::size_t on_host) {
    std::vector<decant::Session> sessions;
    std::vector<decant::Reply> replies;
    for (std::size_t i = 0; i < on_device + on_host; ++i) {
      GenerateOptions options = exactly(n_tokens, i);
      if (i >= on_device) choose_on_host(options);
      sessions.push_back(session_with(model, TinyRandom(i).tokens(3)));
      replies.push_back(sessions.back().generate(options).value());
    }
    const std::uint64_t before = cuda_host::n_copied_out;
    for (decant::Reply& reply : replies) reply.wait().value();
    return cuda_host::n_copied_out - before;
  };
  for (const std::size_t n_tokens : {1, 7}) {  // at the end of a prompt; in graphs
    CAPTURE(n_tokens);
    CHECK(copied(n_tokens, 1, 0) == n_tokens * sizeof(Token));
    CHECK(copied(n_tokens, 5, 0) == n_tokens * 5 * sizeof(Token));
    CHECK(copied(n_tokens, 0, 1) == n_tokens * logits_bytes);
    CHECK(copied(n_tokens, 3, 2) == n_tokens * (5 * sizeof(Token) + 2 * logits_bytes));
  }
}

TEST_CASE("cuda choice: the host chooses a sample's first token, also when it lost its pages") {
  const TinyModel tiny = random_model();
  decant::ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.threads = 1;
  options.context = 64;  // as large as the pool: each sample needs all of it in the end
  options.max_batch = 1;
  options.prefix_cache = false;
  decant::Model model = tiny.load(options);
  const std::uint64_t logits_bytes = model.info().n_vocab * sizeof(float);
  auto session = session_with(model, TinyRandom(3).tokens(20));
  auto samples = session.generate_n(3, exactly(40, 1)).value();
  const std::uint64_t before = cuda_host::n_copied_out;
  while (model.metrics().step_rows < 20) model.step(std::chrono::nanoseconds(0)).value();
  session = model.session().value();  // the other one's pages are the samples' alone
  for (; !samples.empty(); samples.erase(samples.begin())) samples[0].reply.wait().value();
  CHECK(model.metrics().preemptions == 0);
  // The prompt's logits, and those of the two that ran it again.
  CHECK(cuda_host::n_copied_out - before == 3 * logits_bytes + 3 * 39 * sizeof(Token));
}
#endif

TEST_CASE("cuda choice: samplers that the device knows") {
  const std::vector<std::byte> bytes = random_model().file();
  const Gguf file = Gguf::open(std::span(bytes)).value();
  const ModelSpec spec = read_model_spec(file).value();
  WeightOptions weight_options;
  weight_options.packing = &kCudaPacking;
  weight_options.measure = true;
  const auto weights = LoadedWeights::load(file, spec, weight_options).value();
  BackendLimits limits;
  limits.measure = true;
  CudaOptions options;
  options.on_host = kCudaBackend == decant::Backend::cuda_host;
  const auto backend = make_cuda_backend(spec, weights.weights(), limits, options).value();
  const auto chooses = [&](std::size_t n_before, auto change) {
    Sampler sampler;
    change(sampler);
    return backend->chooses(sampler, n_before);
  };
  const auto nothing = [](Sampler&) {};
  const auto penalties = [](Sampler& s) { s.repetition_penalty = 1.1f; };
  CHECK(chooses(1, nothing));
  CHECK(chooses(1 << 20, nothing));
  CHECK(chooses(4096, penalties));
  CHECK_FALSE(chooses(4097, penalties));
  CHECK(chooses(4097, [](Sampler& s) { s.presence_penalty = 1.0f, s.penalty_last = 4096; }));
  CHECK_FALSE(chooses(1, [](Sampler& s) { s.typical_p = 0.9f; }));
}
