// GenerateOptions::keep_first: a session that is full goes on with its first tokens and the newer
// half of the others, as a new session with just these tokens would, bit for bit. What goes when is
// worked out here by hand: of 64 tokens with 8 kept, (64 - 8) / 2 = 28 go and 36 are left.
#include "support/catch.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::KvType;
using decant::Message;
using decant::ModelOptions;

namespace {

constexpr std::size_t kCapacity = 64, kKeep = 8, kGo = 28;

TinySpec rolling_spec(const char* architecture) {
  TinySpec spec;
  spec.architecture = architecture;
  spec.n_layers = 4;
  spec.window = 20;
  return spec;
}

ModelOptions rolling_options(KvType kv = KvType::f16, bool prefix_cache = true) {
  ModelOptions options;
  options.threads = 2;
  options.chunk = 16;
  options.context = kCapacity;
  options.sessions = 3;
  options.kv_keys = options.kv_values = kv;
  options.prefix_cache = prefix_cache;
  return options;
}

GenerateOptions rolling(std::size_t n) {
  GenerateOptions options = exactly(n, 5);
  options.keep_first = kKeep;
  return options;
}

Told tell_rolling(decant::Session& session, std::size_t n) {
  const Told told = tell(session, rolling(n));
  CHECK(told.reason == FinishReason::max_tokens);
  return told;
}

void forget_older_half(std::vector<Token>& tokens) {
  tokens.erase(tokens.begin() + kKeep, tokens.begin() + kKeep + kGo);
}

/// The same by sessions that never roll: each begins with what is left.
Told tell_by_hand(decant::Model& cold, std::vector<Token>& tokens, std::size_t n) {
  Told all;
  while (all.tokens.size() < n) {
    if (tokens.size() == kCapacity) forget_older_half(tokens);
    auto session = session_with(cold, tokens);
    const Told told = tell(session, std::min(n - all.tokens.size(), kCapacity - tokens.size()));
    all.logits.insert(all.logits.end(), told.logits.begin(), told.logits.end());
    all.tokens.insert(all.tokens.end(), told.tokens.begin(), told.tokens.end());
    tokens.insert(tokens.end(), told.tokens.begin(), told.tokens.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a session that is full goes on as a new one with the tokens left would") {
  for (const char* architecture : {"llama", "gemma3"})
    for (const auto backend : {decant::Backend::cpu, decant::Backend::reference})
      for (const KvType kv : {KvType::f32, KvType::int8})
        for (const std::size_t n_prompt : {5u, 30u, 64u}) {
          CAPTURE(architecture, static_cast<int>(backend), static_cast<int>(kv), n_prompt);
          const TinyModel tiny = random_model(rolling_spec(architecture));
          ModelOptions options = rolling_options(kv), cold_options = rolling_options(kv, false);
          options.backend = cold_options.backend = backend;
          auto model = tiny.load(options), cold = tiny.load(cold_options);
          auto tokens = TinyRandom(n_prompt).tokens(n_prompt);
          auto session = session_with(model, tokens);
          const Told told = tell_rolling(session, 150);
          CHECK(told == tell_by_hand(cold, tokens, 150));
          CHECK(told.stats.tokens == 150);
          CHECK(told.stats.dropped == n_prompt + 150 - tokens.size());
          CHECK(told.stats.cached_tokens == 0);
          // The last token may have filled the session: then the next reply makes room.
          CHECK(copy(session.tokens()) == tokens);
          CHECK(tell_rolling(session, 40) == tell_by_hand(cold, tokens, 40));
        }
}

TEST_CASE("forks of a rolled session and sessions that roll together") {
  for (const char* architecture : {"llama", "gemma3"}) {
    CAPTURE(architecture);
    const TinyModel tiny = random_model(rolling_spec(architecture));
    auto model = tiny.load(rolling_options()),
         cold = tiny.load(rolling_options(KvType::f16, false));
    auto tokens = TinyRandom(1).tokens(40);
    auto a = session_with(model, tokens), twin = session_with(model, tokens);
    auto first = a.generate(rolling(100)).value(), second = twin.generate(rolling(100)).value();
    first.wait().value();
    second.wait().value();
    const Told expected = tell_by_hand(cold, tokens, 100);
    CHECK(first.tokens() == expected.tokens);
    CHECK(second.tokens() == expected.tokens);
    auto fork = a.fork().value();
    const Told told = tell_rolling(fork, 70);
    CHECK(told == tell_rolling(a, 70));
    CHECK(told == tell_by_hand(cold, tokens, 70));
  }
}

TEST_CASE("a reply that rolled and fails or is cancelled leaves the session as it was") {
  const TinyModel tiny = random_model(rolling_spec("gemma3"));
  auto model = tiny.load(rolling_options()), cold = tiny.load(rolling_options(KvType::f16, false));
  struct Fuse {
    std::size_t left;
    decant::Reply* cancels = nullptr;
  };
  const auto burn = [](void* user, std::span<const Token>, std::span<float>) {
    Fuse& fuse = *static_cast<Fuse*>(user);
    return --fuse.left != 0;
  };
  for (const std::size_t n_prompt : {4u, 30u, 64u})  // before the kept ones end, and behind
    for (const std::size_t n_steps : {1u, 40u, 90u}) {
      CAPTURE(n_prompt, n_steps);
      auto tokens = TinyRandom(n_prompt).tokens(n_prompt);
      auto session = session_with(model, tokens);
      Fuse fuse{n_steps};
      GenerateOptions options = rolling(SIZE_MAX);
      options.process_logits = burn;
      options.process_logits_user = &fuse;
      auto reply = session.generate(options).value();
      const auto seen = session.tokens();  // read while the worker rolls
      CHECK(seen.size() <= n_prompt);
      CHECK(std::equal(seen.begin(), seen.end(), tokens.begin()));
      CHECK(reply.wait().error().code() == ErrorCode::callback_failed);
      CHECK(copy(session.tokens()) == tokens);
      {
        auto cancelled = session.generate(rolling(SIZE_MAX)).value();
        (void)cancelled.next();
        cancelled.cancel();
        cancelled.wait().value();
        CHECK(copy(session.tokens()) == tokens);
      }
      CHECK(tell_rolling(session, 90) == tell_by_hand(cold, tokens, 90));
    }
}

TEST_CASE("text and stop strings go through a roll") {
  TinySpec spec = rolling_spec("llama");
  auto model = random_model(spec).load(rolling_options());
  std::string said;
  while (said.size() < 150) said += "own fox aab\xC3\xA9 ";
  Script script{byte_tokens(said + "stop here")};
  auto session = session_with(model, TinyRandom(1).tokens(20));
  GenerateOptions options = rolling(SIZE_MAX);
  options.ignore_end = false;
  options.stop = {"stop"};
  script.put_into(options);
  auto reply = session.generate(options).value();
  CHECK(read_all(reply) == said);
  CHECK(reply.finish_reason() == FinishReason::stop_string);
  CHECK(reply.tokens() == byte_tokens(said));
  const auto tokens = copy(session.tokens()), told = reply.tokens();
  REQUIRE(tokens.size() > 30);
  // What is left of the reply is its end.
  CHECK(std::equal(tokens.begin() + kKeep, tokens.end(),
                   told.end() - static_cast<std::ptrdiff_t>(tokens.size() - kKeep)));

  // A stop string longer than what a session holds: all that is left of the reply goes.
  Script long_script{byte_tokens(said + said)};
  auto other = session_with(model, TinyRandom(1).tokens(20));
  options.stop = {said + said};
  long_script.put_into(options);
  auto none = other.generate(options).value();
  CHECK(read_all(none).empty());
  CHECK(none.tokens().empty());
  const auto prompt = TinyRandom(1).tokens(20);
  CHECK(copy(other.tokens()) == copy(std::span(prompt).first(kKeep)));
}

TEST_CASE("a conversation longer than its session is cut by the same rule") {
  const TinyModel tiny = random_model(rolling_spec("gemma3"));
  auto model = tiny.load(rolling_options()), other = tiny.load(rolling_options(KvType::f16, false));
  auto chat = model.session().value();
  for (int turn = 0; turn < 4; ++turn) {
    CAPTURE(turn);
    chat.append(Message{"user", "own fox own fox " + std::to_string(turn)}).value();
    if (turn == 3) {  // without the option it is too long, and nothing changes
      const auto before = copy(chat.tokens());
      CHECK(chat.generate().error().code() == ErrorCode::context_full);
      CHECK(copy(chat.tokens()) == before);
      CHECK(chat.messages().size() == 7);
    }
    auto told_anew = other.session().value();
    for (const Message& message : chat.messages()) told_anew.append(message).value();
    const Told told = tell_rolling(chat, 30);
    CHECK(chat.tokens().size() <= kCapacity);
    CHECK(chat.messages().size() == static_cast<std::size_t>(2 * turn + 2));
    if (turn == 0) CHECK(told == tell_rolling(told_anew, 30));
    if (turn > 0) CHECK(told.stats.dropped % kGo == 0);
  }
  // What is cut depends on the conversation alone: its tokens are found again where they were.
  auto bytes = chat.save().value();
  auto restored = other.session().value();
  restored.restore(std::span(bytes)).value();
  for (decant::Session* s : {&chat, &restored}) s->append(Message{"user", "ser"}).value();
  const Told told = tell_rolling(chat, 30);
  CHECK(told == tell_rolling(restored, 30));
}

TEST_CASE("keep_first must leave two tokens") {
  auto model = random_model(rolling_spec("llama")).load(rolling_options());
  auto tokens = TinyRandom(1).tokens(64);
  auto session = session_with(model, tokens);
  GenerateOptions options = rolling(30);
  for (const std::size_t keep : {std::size_t{63}, std::size_t{64}, SIZE_MAX}) {
    options.keep_first = keep;
    CHECK(session.generate(options).error().code() == ErrorCode::invalid_argument);
  }
  options.max_tokens = 0;
  options.keep_first = 62;
  session.generate(options).value().wait().value();
  CHECK(copy(session.tokens()) == tokens);
  options.max_tokens = 5;
  auto reply = session.generate(options).value();
  reply.wait().value();
  CHECK(reply.tokens().size() == 5);
  CHECK(reply.stats().dropped == 5);  // one at a time
  CHECK(copy(session.tokens().first(62)) == copy(std::span(tokens).first(62)));
  options.keep_first = 0;
  CHECK(session.generate(options).value().wait());
}
