// Several replies to one prompt: the prompt is run once, each sample is the reply that a session of
// its own would give with that sample_index, and the session itself stays at the prompt.
#include <algorithm>
#include <set>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::ModelOptions;
using namespace std::chrono_literals;

namespace {

const TinyModel& samples_file() {
  static const TinyModel tiny = random_model();
  return tiny;
}

decant::Model samples_model(decant::RunMode mode = decant::RunMode::manual,
                            std::size_t max_batch = 64) {
  ModelOptions options;
  options.mode = mode;
  options.threads = 1;
  options.context = 128;
  options.sessions = 8;
  options.chunk = 16;
  options.max_batch = max_batch;
  options.prefix_cache = false;
  return samples_file().load(options);
}

GenerateOptions sampled(std::uint32_t index = 0) {
  GenerateOptions options = exactly(12, 31);
  options.sampler.sample_index = index;
  return options;
}

std::vector<Token> alone(std::span<const Token> prompt, std::uint32_t index) {
  auto model = samples_model();
  auto session = session_with(model, prompt);
  auto reply = session.generate(sampled(index)).value();
  reply.wait().value();
  return reply.tokens();
}

void finish(decant::Model& model) {
  while (model.step(1h).value()) {
  }
}

}  // namespace

TEST_CASE("samples: the prompt once, each as a session of its own would do it") {
  const std::vector<Token> prompt = TinyRandom(61).tokens(37);
  for (const std::size_t max_batch : {64u, 2u}) {
    auto model = samples_model(decant::RunMode::manual, max_batch);
    auto session = session_with(model, prompt);
    auto samples = session.generate_n(5, sampled(2)).value();
    REQUIRE(samples.size() == 5);
    CHECK(session.append("x").error().code() == ErrorCode::busy);
    finish(model);
    std::set<std::vector<Token>> different;
    for (std::uint32_t i = 0; i < 5; ++i) {
      CAPTURE(i, max_batch);
      CHECK(samples[i].reply.tokens() == alone(prompt, 2 + i));
      CHECK(samples[i].reply.stats().prompt_tokens == 37);
      CHECK(samples[i].reply.stats().cached_tokens == (i == 0 ? 0 : 37));
      CHECK(samples[i].reply.stats().seed == 31);
      CHECK(samples[i].session.tokens().size() == 37 + 12);
      different.insert(samples[i].reply.tokens());
    }
    CHECK(different.size() > 3);
    // 37 rows of the prompt, and 11 of each reply: its first token came with the prompt.
    CHECK(model.metrics().step_rows == 37 + 5 * 11);
    CHECK(copy(session.tokens()) == prompt);
    // Pages of the prompt are shared: two full ones for all, a third for the session and for each.
    CHECK(model.metrics().kv_pages_used == 2 + 1 + 5);

    // One is adopted, the others go.
    session = std::move(samples[3].session);
    auto adopted = std::move(samples[3].reply);
    samples.clear();
    CHECK(session.tokens().size() == 37 + 12);
    auto more = session.generate(sampled()).value();
    finish(model);
    std::vector<Token> whole = prompt;
    const auto first = adopted.tokens();
    whole.insert(whole.end(), first.begin(), first.end());
    CHECK(more.tokens() == alone(whole, 0));
  }
}

TEST_CASE("samples of a conversation, in the background") {
  auto model = random_model({.architecture = "gemma3"}).load();
  auto chat = model.session().value();
  chat.append(decant::Message{"user", "hi"}).value();
  auto samples = chat.generate_n(3, sampled()).value();
  for (auto& sample : samples) CHECK(sample.reply.wait());
  CHECK(chat.messages().size() == 1);
  auto lonely = model.session().value();
  lonely.append(decant::Message{"user", "hi"}).value();
  GenerateOptions second = sampled(1);
  auto reply = lonely.generate(second).value();
  reply.wait().value();
  CHECK(samples[1].reply.tokens() == reply.tokens());
  REQUIRE(samples[1].session.messages().size() == 2);
  CHECK(samples[1].session.messages()[1].content == lonely.messages()[1].content);
  chat = std::move(samples[1].session);
  CHECK(chat.append(decant::Message{"user", "more"}));
}

TEST_CASE("samples are cancelled one by one, before and after their prompt was run") {
  const std::vector<Token> prompt = TinyRandom(62).tokens(60);
  auto model = samples_model();
  auto session = session_with(model, prompt);
  auto samples = session.generate_n(3, sampled()).value();
  model.step(0ns).value();
  samples[0].reply.cancel();
  model.step(0ns).value();
  CHECK(samples[0].reply.finished());
  CHECK(samples[0].reply.finish_reason() == FinishReason::cancelled);
  CHECK(copy(samples[0].session.tokens()) == prompt);
  while (samples[1].reply.tokens().size() < 4) model.step(0ns).value();
  samples[1].reply.cancel();
  finish(model);
  CHECK(copy(samples[1].session.tokens()) == prompt);
  CHECK(samples[2].reply.tokens() == alone(prompt, 2));
  // What was cancelled goes on like the session itself.
  auto again = samples[1].session.generate(sampled(1)).value();
  finish(model);
  CHECK(again.tokens() == alone(prompt, 1));

  // All of them: the prompt is not run to its end.
  auto other = session_with(model, prompt);
  const auto before = model.metrics().step_rows;
  samples = other.generate_n(4, sampled()).value();
  model.step(0ns).value();
  samples.clear();
  CHECK(other.append("x"));
  CHECK(model.metrics().step_rows == before);
  CHECK_FALSE(model.step(0ns).value());
}

TEST_CASE("samples: what cannot be, and replies without tokens") {
  auto model = samples_model();
  auto session = model.session().value();
  CHECK(session.generate_n(2).error().code() == ErrorCode::invalid_state);
  session.append(TinyRandom(63).tokens(9)).value();
  CHECK(session.generate_n(0).error().code() == ErrorCode::invalid_argument);
  CHECK(session.generate_n(1025).error().code() == ErrorCode::invalid_argument);
  GenerateOptions none = sampled();
  none.max_tokens = 0;
  auto samples = session.generate_n(2, none).value();
  for (auto& sample : samples) CHECK(sample.reply.finish_reason() == FinishReason::max_tokens);
  CHECK(session.append("x"));

  ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.max_batch = 2;
  options.max_queue = 1;
  auto small = samples_file().load(options);
  auto crowded = session_with(small, TinyRandom(63).tokens(9));
  CHECK(crowded.generate_n(3).error().code() == ErrorCode::queue_full);
  CHECK(crowded.append("x"));
  // An error of the prompt is one of each sample: here pages that an idle session holds.
  ModelOptions tight;
  tight.mode = decant::RunMode::manual;
  tight.kv_memory = 4 * 16 * model.info().kv_bytes_per_token;
  tight.prefix_cache = false;
  auto full = samples_file().load(tight);
  auto idle = session_with(full, TinyRandom(64).tokens(40));
  (void)idle.logits().value();
  auto poor = session_with(full, TinyRandom(65).tokens(30));
  auto failed = poor.generate_n(2, sampled()).value();
  finish(full);
  for (auto& sample : failed)
    CHECK(sample.reply.status().error().code() == ErrorCode::out_of_memory);
  CHECK(poor.tokens().size() == 30);
}
