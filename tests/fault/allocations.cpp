// Memory that runs out: for every N, the N-th allocation of a call fails, alone or with all that
// follow, on whatever thread. Each time there must be an Error or success, nothing lost, and the
// object must work afterwards with the same bits. This program's operator new counts and fails;
// exceptions and threads take their memory elsewhere.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <optional>
#include <thread>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

namespace {

std::atomic<bool> armed{false}, goes_on{false};
std::atomic<long> counted{0}, fails_at{-1}, live{0};

bool allocation_fails() {
  if (!armed.load()) return false;
  const long n = counted.fetch_add(1);
  return n == fails_at || (goes_on && n > fails_at);
}

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (allocation_fails()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t))
    memory = std::malloc(size == 0 ? 1 : size);
  else if (posix_memalign(&memory, alignment, size) != 0)
    memory = nullptr;
  if (memory != nullptr) ++live;
  return memory;
}
void* allocate_or_throw(std::size_t size, std::size_t alignment = 1) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void release(void* memory) noexcept {
  if (memory == nullptr) return;
  --live;
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t n) { return allocate_or_throw(n); }
void* operator new[](std::size_t n) { return allocate_or_throw(n); }
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }

using namespace decant_test;
using decant::ErrorCode;
using decant::GenerateOptions;
using decant::Message;
using decant::ModelOptions;

namespace {

struct Tried {
  bool reached = false;  // the failing allocation
  bool right = false;    // success, or out_of_memory
  bool succeeded = false;
  char message[200] = "";
};

/// Runs `call`, which gives a Status or a Result, with the n-th allocation failing.
template <class Call>
Tried try_failing(long n, bool and_later, Call&& call) {
  Tried tried;
  counted = 0;
  fails_at = n;
  goes_on = and_later;
  armed = true;
  const auto result = call();
  armed = false;
  tried.reached = counted > n;
  tried.succeeded = bool(result);
  tried.right = result || result.error().code() == ErrorCode::out_of_memory;
  if (!result) result.error().message().copy(tried.message, sizeof tried.message - 1);
  return tried;
}

/// For every n until the call no longer allocates so often: `call` with failure, then `check`,
/// which gives an empty text or what is wrong. `before` are the allocations alive at first; while
/// these run, this function holds none.
template <class Call, class Check>
void for_each_allocation(const char* what, long at_least, Call&& call, Check&& check) {
  for (const bool and_later : {false, true}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for the worker, see left_over
    const long before = live;
    long n = 0;
    for (bool reached = true; reached && n < 100000; ++n) {
      const Tried tried = try_failing(n, and_later, call);
      const std::string wrong = check(tried.succeeded, before);
      reached = tried.reached;
      if (tried.right && wrong.empty() && (reached || tried.succeeded)) continue;
      FAIL(what << (and_later ? ": all from allocation " : ": allocation ") << n << ": " << wrong
                << " (" << tried.message << ")");
    }
    CAPTURE(what, and_later, n);
    CHECK(n > at_least);  // the test reaches what it is about
  }
}

/// The worker lets go of a request shortly after it has told of its end.
std::string left_over(long before) {
  for (int i = 0; i < 1000 && live != before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return live == before ? "" : std::to_string(live - before) + " allocations left";
}

ModelOptions fault_options() {
  ModelOptions options;
  options.threads = 2;
  options.context = 128;
  options.sessions = 2;
  options.chunk = 8;
  return options;
}

GenerateOptions fault_generate() {
  GenerateOptions options;
  options.max_tokens = 6;
  options.ignore_end = true;
  options.sampler.seed = 5;
  options.sampler.top_k = 50;
  options.sampler.top_p = 0.9f;
  options.sampler.repetition_penalty = 1.1f;
  options.stop = {"never", "said"};
  return options;
}

struct Bits {
  std::vector<float> logits;
  std::vector<Token> tokens;
  bool operator==(const Bits& o) const { return tokens == o.tokens && same_bits(logits, o.logits); }
};
/// A cold run with memory enough.
Bits run(decant::Model& model, std::span<const Token> prompt) {
  auto session = session_with(model, prompt);
  Bits bits;
  bits.logits = last_logits(session, model, prompt.size());
  auto reply = session.generate(fault_generate()).value();
  reply.wait().value();
  bits.tokens = reply.tokens();
  return bits;
}

const std::vector<Token>& fault_prompt() {
  static const std::vector<Token> prompt = TinyRandom(9).tokens(20);
  return prompt;
}

}  // namespace

TEST_CASE("memory runs out while a model is loaded") {
  TinySpec llama, spm, gemma;
  spm.text = TinyText::spm;
  gemma.architecture = "gemma3";
  for (const TinySpec& spec : {llama, spm, gemma}) {
    const std::vector<std::byte> file = random_model(spec).file();
    const ModelOptions options = fault_options();
    const Bits expected = [&] {
      auto measure = decant::Model::load(std::span(file), options).value();
      return run(measure, fault_prompt());
    }();
    std::optional<decant::Model> loaded;
    const auto load = [&]() -> decant::Status {
      auto model = decant::Model::load(std::span(file), options);
      if (!model) return model.error();
      loaded.emplace(*std::move(model));
      return {};
    };
    for_each_allocation("load", 100, load, [&](bool succeeded, long before) {
      if (succeeded != loaded.has_value()) return std::string("handle without success");
      // Fewer threads than asked for is a success, and the bits are the same.
      if (loaded && !(run(*loaded, fault_prompt()) == expected)) return std::string("other bits");
      loaded.reset();
      return left_over(before);
    });
  }
}

TEST_CASE("memory runs out in calls of a model") {
  TinySpec gemma;
  gemma.architecture = "gemma3";
  auto model = random_model(gemma).load(fault_options());
  const std::string text = "own fox <end_of_turn> \xC3\xA9 aab aab ser";
  const auto tokens = model.tokenize(text).value();
  const std::vector<Message> messages = {{"user", "hi"}, {"assistant", "yo"}, {"user", text}};
  const auto rendered = model.render(messages).value();
  const auto balanced = [&](bool, long before) { return left_over(before); };
  for_each_allocation(
      "tokenize", 1, [&] { return model.tokenize(text); }, balanced);
  for_each_allocation(
      "detokenize", 1, [&] { return model.detokenize(tokens); }, balanced);
  for_each_allocation(
      "render", 1, [&] { return model.render(messages); }, balanced);
  for_each_allocation(
      "session", 3, [&] { return model.session(); }, balanced);
  CHECK(model.tokenize(text).value() == tokens);
  CHECK(model.render(messages).value() == rendered);
  CHECK(model.session());
}

TEST_CASE("memory runs out while a session is fed") {
  auto model = random_model().load(fault_options());
  auto session = model.session().value();
  const auto count = [&] { return session.tokens().size(); };
  std::size_t held = 0;
  for_each_allocation(
      "append text", 1, [&] { return session.append("own fox"); },
      [&](bool succeeded, long) {
        held += succeeded ? 2 : 0;
        return std::string(count() == held ? "" : "tokens");
      });
  const std::vector<Token> tokens = {5, 6, 7};
  for_each_allocation(
      "append tokens", 0, [&] { return session.append(std::span(tokens)); },
      [&](bool succeeded, long) {
        held += succeeded ? 3 : 0;
        return std::string(count() == held ? "" : "tokens");
      });
  auto chat = model.session().value();
  std::size_t n_messages = 0;
  const Message message{"user", std::string(100, 'x')};
  for_each_allocation(
      "append message", 1, [&] { return chat.append(message); },
      [&](bool succeeded, long) {
        n_messages += succeeded;
        return std::string(chat.messages().size() == n_messages ? "" : "messages");
      });
}

TEST_CASE("memory runs out while logits are computed") {
  auto model = random_model().load(fault_options());
  const Bits expected = run(model, fault_prompt());
  auto session = session_with(model, fault_prompt());
  std::vector<float> rows(expected.logits.size());
  for_each_allocation(
      "logits", 1, [&] { return session.logits(std::span(rows)); },
      [&](bool succeeded, long) {
        if (succeeded && !same_bits(rows, expected.logits)) return std::string("other bits");
        std::fill(rows.begin(), rows.end(), 0.0f);
        return std::string(session.tokens().size() == 20 && session.rewind(20) ? "" : "session");
      });
  // The row that the session keeps is allocated at the first call.
  for_each_allocation(
      "own logits", 1,
      [&] {
        auto fresh = model.session();
        if (!fresh) return decant::Result<bool>(fresh.error());
        if (auto s = fresh->append(std::span(fault_prompt())); !s)
          return decant::Result<bool>(s.error());
        const auto logits = fresh->logits();
        return logits ? decant::Result<bool>(true) : decant::Result<bool>(logits.error());
      },
      [](bool, long) { return std::string(); });
  CHECK(run(model, fault_prompt()) == expected);
}

TEST_CASE("memory runs out during a reply, on the caller's thread and on the worker's") {
  for (const bool spm : {false, true}) {
    TinySpec spec;
    spec.text = spm ? TinyText::spm : TinyText::bpe;
    auto model = random_model(spec).load(fault_options());
    const Bits expected = run(model, fault_prompt());
    const GenerateOptions options = fault_generate();
    auto session = session_with(model, fault_prompt());
    std::optional<decant::Reply> reply;
    for_each_allocation(
        "generate", 20,
        [&]() -> decant::Status {
          auto started = session.generate(options);
          if (!started) return started.error();
          reply.emplace(*std::move(started));
          return reply->wait();
        },
        [&](bool succeeded, long) {
          const auto held = copy(session.tokens());
          if (succeeded &&
              (reply->tokens() != expected.tokens || held.size() != 20 + expected.tokens.size()))
            return std::string("other tokens");
          if (!succeeded && held != fault_prompt())
            return std::string("a failed reply changed the session");
          reply.reset();
          // Cold again, so that every round does the same.
          if (!session.rewind(0) || !session.append(std::span(fault_prompt())))
            return std::string("rewind");
          return std::string();
        });
    // The worker's scratch memory is at its full size; nothing else may stay behind.
    for_each_allocation(
        "generate and drop", 20,
        [&]() -> decant::Status {
          auto started = session.generate(options);
          if (!started) return started.error();
          return started->wait();
        },
        [&](bool, long before) {
          if (!session.rewind(0) || !session.append(std::span(fault_prompt())))
            return std::string("rewind");
          return left_over(before);
        });
    CHECK(run(model, fault_prompt()) == expected);
  }
}

TEST_CASE("a neighbour does not notice that memory ran out for another") {
  auto model = random_model().load(fault_options());
  const Bits expected = run(model, fault_prompt());
  auto session = session_with(model, fault_prompt());
  for (long n = 0; n < 60; ++n) {
    auto other = session_with(model, std::vector<Token>{3, 4, 5});
    GenerateOptions options = fault_generate();
    auto reply = session.generate(options).value();
    const Tried tried = try_failing(n, false, [&]() -> decant::Status {
      auto started = other.generate(options);
      if (!started) return started.error();
      return started->wait();
    });
    CAPTURE(n, tried.message);
    CHECK(tried.right);
    const auto status = reply.wait();
    // The failure may hit either of them, but whoever has no error has the right tokens.
    if (status) CHECK(reply.tokens() == expected.tokens);
    if (!status) CHECK(status.error().code() == ErrorCode::out_of_memory);
    REQUIRE(session.rewind(20));
  }
}

TEST_CASE("memory runs out in the turns of a conversation") {
  TinySpec gemma;
  gemma.architecture = "gemma3";
  auto model = random_model(gemma).load(fault_options());
  GenerateOptions options = fault_generate();
  auto session = model.session().value();
  const auto first_turn = [&] {
    session.rewind(0).value();
    session.append(Message{"user", "hi"}).value();
    session.generate(options).value().wait().value();
  };
  first_turn();
  const std::vector<Token> after_first = copy(session.tokens());

  // Taking in the reply and adding a message.
  const Message question{"user", "and a text that is too long to lie inside of a string"};
  for_each_allocation(
      "append after a reply", 2, [&] { return session.append(question); },
      [&](bool succeeded, long) {
        const bool right = copy(session.tokens()) == after_first &&
                           session.messages().size() == (succeeded ? 3u : 2u);
        first_turn();
        return std::string(right ? "" : "tokens or messages");
      });

  session.append(question).value();
  std::vector<Token> expected;
  for_each_allocation(
      "second turn", 20,
      [&]() -> decant::Status {
        auto reply = session.generate(options);
        if (!reply) return reply.error();
        return reply->wait();
      },
      [&](bool succeeded, long) {
        const auto held = copy(session.tokens());
        const std::size_t n_messages = session.messages().size();
        if (succeeded && expected.empty()) expected = held;
        const bool right = succeeded ? held == expected && n_messages == 4
                                     : held == after_first && n_messages == 3;
        first_turn();
        session.append(question).value();
        return std::string(right ? "" : "tokens or messages");
      });
}
