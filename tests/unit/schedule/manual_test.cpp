// Manual mode: steps stop inside an operation and go on with the same bits; between two of them
// nothing waits; whoever waits for a reply steps the model.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "support/catch.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::ModelOptions;
using namespace std::chrono_literals;

namespace {

const TinyModel& manual_file() {
  static const TinyModel tiny = random_model({.n_layers = 3});
  return tiny;
}

decant::Model manual_model(int threads = 1, std::size_t sessions = 6) {
  ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.threads = threads;
  options.sessions = sessions;
  options.context = 256;
  options.prefix_cache = false;
  return manual_file().load(options);
}

GenerateOptions some(std::size_t n) { return exactly(n, 5); }

/// What the same does in one go.
Told alone(std::span<const Token> prompt, std::size_t n) {
  auto model = manual_model();
  auto session = session_with(model, prompt);
  return tell(session, n);
}

/// Steps of no time until a pass was begun and not ended.
void stop_inside(decant::Model& model) {
  std::uint64_t before;
  do {
    before = model.metrics().steps;
    model.step(0ns).value();
  } while (model.metrics().steps != before);
}

}  // namespace

TEST_CASE("steps of no time stop inside operations and give the same bits") {
  const std::vector<Token> prompt = TinyRandom(51).tokens(100);
  const Told expected = alone(prompt, 20);
  for (const int threads : {1, 2, 4}) {
    auto model = manual_model(threads);
    auto session = session_with(model, prompt);
    Told told;
    GenerateOptions options = some(20);
    options.process_logits = [](void* to, std::span<const Token>, std::span<float> logits) {
      auto& all = static_cast<Told*>(to)->logits;
      all.insert(all.end(), logits.begin(), logits.end());
      return true;
    };
    options.process_logits_user = &told;
    auto reply = session.generate(options).value();
    std::size_t calls = 0;
    while (model.step(0ns).value()) {
      ++calls;
      // Between two steps everything answers at once.
      if (calls % 7 == 0) CHECK(session.append("x").error().code() == ErrorCode::busy);
    }
    told.tokens = reply.tokens();
    CAPTURE(threads);
    CHECK(told == expected);
    CHECK(calls > 10 * model.metrics().steps);
    CHECK_FALSE(model.step(1h).value());
  }
}

TEST_CASE("waiting steps the model: next, wait and logits") {
  const std::vector<Token> prompt = TinyRandom(52).tokens(30);
  const Told expected = alone(prompt, 10);
  auto model = manual_model();
  auto a = session_with(model, prompt), b = session_with(model, prompt);
  auto first = a.generate(some(10)).value();
  stop_inside(model);
  CHECK_FALSE(first.try_next());
  auto second = b.generate(some(10)).value();
  CHECK(second.wait());
  CHECK(second.tokens() == expected.tokens);
  while (first.next()) {
  }
  CHECK(first.tokens() == expected.tokens);
  CHECK_FALSE(model.step(0ns).value());

  auto c = session_with(model, std::span(prompt).first(29));
  auto running = a.generate(some(3)).value();
  stop_inside(model);
  const std::vector<float> row = [&] {
    const auto logits = c.logits().value();
    return std::vector<float>(logits.begin(), logits.end());
  }();
  auto fresh = manual_model();
  auto d = session_with(fresh, std::span(prompt).first(29));
  CHECK(same_bits(row, d.logits().value()));
  CHECK(running.wait());
}

TEST_CASE("a sequence inside a stopped pass can be cancelled, dropped and used at once") {
  const std::vector<Token> prompt = TinyRandom(53).tokens(90), other = TinyRandom(54).tokens(20);
  const Told expected = alone(prompt, 8), expected_other = alone(other, 8);
  for (const int way : {0, 1, 2, 3})
    for (const bool in_prompt : {true, false}) {
      CAPTURE(way, in_prompt);
      auto model = manual_model();
      auto session = session_with(model, prompt), neighbour = session_with(model, other);
      std::optional<decant::Reply> reply = session.generate(some(100)).value();
      auto beside = neighbour.generate(some(8)).value();
      if (!in_prompt)
        while (reply->tokens().size() < 3) model.step(0ns).value();
      stop_inside(model);
      const auto begun = copy(reply->tokens());
      std::size_t kept = prompt.size();
      if (way == 0) reply->cancel();
      if (way == 1) reply.reset();
      if (way == 2) reply->stop(), kept += begun.size();
      if (way == 3) {
        reply.reset();
        // Its fork, and the fork's fork, before the pass goes on.
        auto fork = session.fork().value();
        session = fork.fork().value();
      }
      // All of these without a step in between.
      CHECK(session.tokens().size() == kept);
      REQUIRE(session.rewind(kept));
      const auto saved = session.save().value();
      auto restored = model.session().value();
      REQUIRE(restored.restore(saved));
      auto forked = session.fork().value();
      if (way == 2 && !in_prompt) {
        REQUIRE(session.rewind(prompt.size()));
        REQUIRE(forked.rewind(prompt.size()));
        REQUIRE(restored.rewind(prompt.size()));
      }
      // They all write into the last page of the prompt, as the stopped pass does.
      auto again = session.generate(some(8)).value();
      auto from_fork = forked.generate(some(8)).value();
      auto from_bytes = restored.generate(some(8)).value();
      while (model.step(0ns).value()) {
      }
      CHECK(beside.tokens() == expected_other.tokens);
      CHECK(again.tokens() == expected.tokens);
      CHECK(from_fork.tokens() == expected.tokens);
      CHECK(from_bytes.tokens() == expected.tokens);
      if (reply)
        CHECK(reply->finish_reason() ==
              (way == 2 ? FinishReason::stopped : FinishReason::cancelled));
    }
}

TEST_CASE("a pass that nobody waits for any more is dropped with its pages") {
  auto model = manual_model();
  {
    auto a = session_with(model, TinyRandom(1).tokens(30));
    auto reply = a.generate(some(5)).value();
    stop_inside(model);
    CHECK(model.metrics().kv_pages_used == 2);
    reply.cancel();
    CHECK(a.append("x"));
    CHECK(model.metrics().kv_pages_used == 0);
    CHECK(model.metrics().running + model.metrics().waiting == 0);
    CHECK_FALSE(model.step(0ns).value());
  }
  // The same with the session gone as well, and with everything gone in a stopped pass.
  auto b = std::make_optional(session_with(model, TinyRandom(1).tokens(50)));
  auto reply = std::make_optional(b->generate(some(5)).value());
  stop_inside(model);
  b.reset();
  reply.reset();
  CHECK_FALSE(model.step(0ns).value());
  CHECK(model.metrics().kv_pages_used == 0);
  auto c = session_with(model, TinyRandom(1).tokens(50));
  auto last = c.generate(some(5)).value();
  stop_inside(model);
}

TEST_CASE("step says why it cannot") {
  auto background = manual_file().load();
  CHECK(background.step(0ns).error().code() == ErrorCode::invalid_state);
  ModelOptions options;
  options.vocabulary_only = true;
  auto vocabulary = manual_file().load(options);
  CHECK(vocabulary.step(0ns).error().code() == ErrorCode::invalid_state);

  auto model = manual_model();
  CHECK_FALSE(model.step(-1ns).value());
  auto session = session_with(model, TinyRandom(1).tokens(5));
  struct Inside {
    decant::Model& model;
    decant::Session& other;
    ErrorCode step = ErrorCode::none, logits = ErrorCode::none;
    std::mutex mutex;
    std::condition_variable changed;
    bool inside = false, leave = false;
  } inside{model, session, {}, {}, {}, {}};
  auto second = session_with(model, TinyRandom(1).tokens(5));
  inside.other = std::move(second);
  auto third = session_with(model, TinyRandom(2).tokens(5));
  GenerateOptions waits = some(1);
  waits.process_logits = [](void* i, std::span<const Token>, std::span<float>) {
    auto& in = *static_cast<Inside*>(i);
    in.step = in.model.step(0ns).error().code();
    in.logits = in.other.logits().error().code();
    std::unique_lock lock(in.mutex);
    in.inside = true;
    in.changed.notify_all();
    in.changed.wait(lock, [&] { return in.leave; });
    return true;
  };
  waits.process_logits_user = &inside;
  auto reply = third.generate(waits).value();
  std::thread stepping([&] { (void)model.step(1h); });
  {
    std::unique_lock lock(inside.mutex);
    inside.changed.wait(lock, [&] { return inside.inside; });
  }
  CHECK(model.step(0ns).error().code() == ErrorCode::busy);
  {
    const std::lock_guard lock(inside.mutex);
    inside.leave = true;
  }
  inside.changed.notify_all();
  CHECK(reply.wait());  // while the other thread steps
  stepping.join();
  CHECK(inside.step == ErrorCode::would_block);
  CHECK(inside.logits == ErrorCode::would_block);
}

TEST_CASE("several threads wait for replies of a manual model") {
  const std::vector<Token> prompt = TinyRandom(55).tokens(40);
  const Told expected = alone(prompt, 10);
  auto model = manual_model(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        auto session = session_with(model, prompt);
        auto reply = session.generate(some(10)).value();
        if (!reply.wait() || reply.tokens() != expected.tokens) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

// ------------------------------------------------------------------------------------- callbacks

namespace {

/// A host that notes what on_text tells it and does something in the n-th call.
struct Listener {
  std::string text;
  int calls = 0, ends = 0, ends_with_error = 0;
  FinishReason reason = FinishReason::none;
  ErrorCode error = ErrorCode::none;
  int act_at = -1;
  std::function<bool()> act = [] { return true; };
  static bool on_text(void* self, const decant::ReplyText& piece) {
    Listener& l = *static_cast<Listener*>(self);
    l.text += piece.text;
    if (piece.finished) {
      ++l.ends;
      l.reason = piece.reason;
      l.error = piece.error.code();
    }
    return l.calls++ == l.act_at ? l.act() : true;
  }
  void put_into(GenerateOptions& options) {
    options.on_text = on_text;
    options.on_text_user = this;
  }
};

}  // namespace

TEST_CASE("on_text gets what next would, then one end") {
  const std::vector<Token> prompt = byte_tokens("a fox");
  auto model = manual_model();
  auto session = session_with(model, prompt);
  auto plain = session.generate(some(30)).value();
  const std::string expected = read_all(plain);
  for (const auto mode : {decant::RunMode::manual, decant::RunMode::background}) {
    ModelOptions options;
    options.mode = mode;
    options.threads = 1;
    auto other = manual_file().load(options);
    auto told = session_with(other, prompt);
    Listener listener;
    GenerateOptions o = some(30);
    listener.put_into(o);
    auto reply = told.generate(o).value();
    CHECK_FALSE(reply.next());  // returns at the end
    CHECK(reply.finished());
    CHECK(listener.text == expected);
    CHECK(listener.ends == 1);
    CHECK(listener.reason == FinishReason::max_tokens);
    CHECK(reply.tokens().size() == 30);
  }
}

TEST_CASE("inside on_text: stop, throw, cancel, drop, start, and nothing that waits") {
  const std::vector<Token> prompt = byte_tokens("a fox");
  auto model = manual_model();
  auto session = session_with(model, prompt), other_session = session_with(model, prompt);
  GenerateOptions options = some(60);
  Listener listener;
  listener.put_into(options);
  std::optional<decant::Reply> reply, other;
  listener.act_at = 2;
  const auto run = [&] {
    listener.calls = listener.ends = 0;
    listener.reason = FinishReason::none;
    listener.error = ErrorCode::none;
    reply.emplace(session.generate(options).value());
    while (model.step(1h).value()) {
    }
    CHECK(listener.ends == 1);
    (void)session.rewind(prompt.size());
  };
  SECTION("stop") {
    listener.act = [] { return false; };
    run();
    CHECK(listener.reason == FinishReason::stopped);
    CHECK(listener.calls == 4);
  }
  SECTION("an exception") {
    listener.act = []() -> bool { throw 1; };
    run();
    CHECK(listener.error == ErrorCode::callback_failed);
    CHECK(reply->status().error().code() == ErrorCode::callback_failed);
    CHECK(reply->finish_reason() == FinishReason::none);
    CHECK(session.tokens().size() == prompt.size());
  }
  SECTION("cancel and drop itself") {
    listener.act = [&] { return reply->cancel(), true; };
    run();
    CHECK(listener.reason == FinishReason::cancelled);
    listener.act = [&] { return reply.reset(), true; };
    run();
    CHECK(listener.reason == FinishReason::cancelled);
  }
  SECTION("drop the reply that is being waited for, its session and the model") {
    auto lost_model = std::make_optional(manual_model());
    auto lost_session = std::make_optional(session_with(*lost_model, prompt));
    auto lost = std::make_optional(lost_session->generate(options).value());
    listener.act = [&] {
      lost.reset();
      lost_session.reset();
      lost_model.reset();
      return true;
    };
    CHECK_FALSE(lost->next());
    CHECK_FALSE(lost);
    CHECK(listener.ends == 1);
  }
  SECTION("start another, cancel another") {
    listener.act = [&] {
      other.emplace(other_session.generate(some(4)).value());
      return true;
    };
    run();
    CHECK(other->tokens().size() == 4);
    listener.act = [&] {
      other_session.rewind(prompt.size()).value();
      other.emplace(other_session.generate(some(200)).value());
      other->cancel();
      return true;
    };
    run();
    CHECK(other->finish_reason() == FinishReason::cancelled);
  }
  SECTION("what waits") {
    other.emplace(other_session.generate(some(90)).value());
    auto third = session_with(model, prompt);
    ErrorCode codes[4] = {};
    bool nothing = false;
    listener.act = [&] {
      codes[0] = model.step(1h).error().code();
      codes[1] = other->wait().error().code();
      codes[2] = third.logits().error().code();
      codes[3] = other_session.append("x").error().code();
      nothing = !other->next() && !other->finished();
      return true;
    };
    run();
    for (int i = 0; i < 3; ++i) CHECK(codes[i] == ErrorCode::would_block);
    CHECK(codes[3] == ErrorCode::busy);
    CHECK(nothing);
    CHECK(other->tokens().size() == 90);
  }
}

TEST_CASE("replies that end at once, by the model's end and by their last handle tell it once") {
  auto model = std::make_optional(manual_model());
  Listener listener;
  GenerateOptions options = some(0);
  listener.put_into(options);
  auto session = std::make_optional(session_with(*model, byte_tokens("x")));
  { auto reply = session->generate(options).value(); }
  CHECK(listener.ends == 1);
  CHECK(listener.reason == FinishReason::max_tokens);
  listener = {};
  options.max_tokens = 50;
  auto reply = std::make_optional(session->generate(options).value());
  stop_inside(*model);
  reply.reset();
  session.reset();
  CHECK(listener.ends == 0);
  model.reset();  // ends what is left
  CHECK(listener.ends == 1);
  CHECK(listener.reason == FinishReason::cancelled);
}
