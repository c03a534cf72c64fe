// Session::fork and its twin in C: who may be forked when, and that the two go their own ways. That
// the bits are the same is tested in schedule/prefix_test.cpp.
#include <decant/decant.h>

#include "support/catch.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::GenerateOptions;
using decant::Message;

TEST_CASE("a fork holds the first tokens and goes its own way") {
  auto model = random_model().load();
  const auto tokens = TinyRandom(1).tokens(50);
  auto a = session_with(model, tokens);
  for (const bool computed : {false, true}) {
    if (computed) (void)a.logits().value();
    for (const std::size_t n : {0u, 1u, 16u, 33u, 50u}) {
      auto b = a.fork(n).value();
      CHECK(copy(b.tokens()) == copy(std::span(tokens).first(n)));
      b.append(std::vector<Token>{5, 6}).value();
      (void)b.logits().value();
      CHECK(a.tokens().size() == 50);
      CHECK(b.tokens().size() == n + 2);
    }
    CHECK(a.fork().value().tokens().size() == 50);
    const auto wrong = a.fork(51);
    REQUIRE_FALSE(wrong);
    CHECK(wrong.error().code() == ErrorCode::invalid_argument);
  }
  // A fork of nothing of a conversation that was not run yet is that conversation.
  TinySpec chat_spec;
  chat_spec.architecture = "gemma3";
  auto chat_model = random_model(chat_spec).load();
  auto chat = chat_model.session().value();
  chat.append(Message{"user", "own"}).value();
  auto twin = chat.fork(0).value();
  CHECK(twin.messages().size() == 1);
  CHECK(twin.append("own").error().code() == ErrorCode::invalid_state);
  const auto saved = twin.save().value();
  CHECK(chat.restore(std::span(saved)));
  // An empty fork may become a chat; one of raw tokens may not.
  auto empty = a.fork(0).value(), raw = a.fork(5).value();
  CHECK(empty.append(Message{"user", "own"}));
  CHECK_FALSE(raw.append(Message{"user", "own"}));
}

TEST_CASE("a fork outlives its session and its model's handle") {
  std::optional<decant::Session> fork;
  {
    auto model = random_model().load();
    auto a = session_with(model, TinyRandom(1).tokens(50));
    (void)a.logits().value();
    fork.emplace(a.fork().value());
  }
  CHECK(fork->logits().value().size() > 0);
}

TEST_CASE("a conversation is forked whole, and not while it is answered") {
  TinySpec spec;
  spec.architecture = "gemma3";  // it has turns
  auto model = random_model(spec).load();
  auto a = model.session().value();
  a.append(Message{"user", "own fox"}).value();
  auto unanswered = a.fork().value();
  CHECK(unanswered.messages().size() == 1);
  GenerateOptions options = exactly(5, 3);
  auto reply = a.generate(options).value();
  reply.wait().value();
  auto twin = unanswered.generate(options).value();
  twin.wait().value();
  CHECK(twin.tokens() == reply.tokens());

  auto b = a.fork().value();
  CHECK(b.messages().size() == 2);
  b.append(Message{"user", "ser"}).value();
  CHECK(b.messages().size() == 3);
  CHECK(a.messages().size() == 2);
  const auto part = a.fork(3);
  REQUIRE_FALSE(part);
  CHECK(part.error().code() == ErrorCode::invalid_state);

  options.max_tokens = 400;
  auto long_reply = b.generate(options).value();
  if (const auto busy = b.fork(); !busy) CHECK(busy.error().code() == ErrorCode::busy);
  long_reply.cancel();
  long_reply.wait().value();
  CHECK(b.fork().value().messages().size() == 3);
}

TEST_CASE("forks and rewinds in C") {
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", random_model().file());
  decant_error error;
  decant_model* model = nullptr;
  REQUIRE(decant_model_load(path.c_str(), nullptr, &model, &error) == DECANT_OK);
  decant_session *a = nullptr, *b = nullptr;
  REQUIRE(decant_session_create(model, &a, &error) == DECANT_OK);
  REQUIRE(decant_session_append_text(a, "own fox own fox", 15, &error) == DECANT_OK);
  CHECK(decant_session_fork(a, SIZE_MAX, nullptr, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(decant_session_fork(nullptr, SIZE_MAX, &b, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(decant_session_fork(a, 1000, &b, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(b == nullptr);
  REQUIRE(decant_session_fork(a, SIZE_MAX, &b, &error) == DECANT_OK);
  decant_generate_options options = decant_generate_options_default();
  options.max_tokens = 3;
  options.temperature = 0;
  decant_stats stats;
  stats.size = sizeof stats;
  REQUIRE(decant_session_generate(a, &options, nullptr, nullptr, &stats, &error) == DECANT_OK);
  const std::size_t n = stats.prompt_tokens;
  CHECK(stats.recomputed == 0);
  REQUIRE(decant_session_rewind(a, n, &error) == DECANT_OK);
  CHECK(decant_session_rewind(a, n + 1, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(decant_session_rewind(nullptr, 0, &error) == DECANT_INVALID_ARGUMENT);
  decant_session_free(a);
  REQUIRE(decant_session_generate(b, &options, nullptr, nullptr, &stats, &error) == DECANT_OK);
  CHECK(stats.prompt_tokens == n);
  const std::string saved = folder.file("session.kv");
  CHECK(decant_session_save(b, nullptr, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(decant_session_restore(b, saved.c_str(), &error) == DECANT_NOT_FOUND);
  REQUIRE(decant_session_save(b, saved.c_str(), &error) == DECANT_OK);
  REQUIRE(decant_session_rewind(b, 0, &error) == DECANT_OK);
  REQUIRE(decant_session_restore(b, saved.c_str(), &error) == DECANT_OK);
  REQUIRE(decant_session_generate(b, &options, nullptr, nullptr, &stats, &error) == DECANT_OK);
  CHECK(stats.prompt_tokens == n + 3);
  decant_session_free(b);
  decant_model_free(model);
}
