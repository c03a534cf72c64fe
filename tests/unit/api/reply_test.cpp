// Replies: stop strings from end to end, streaming, stop and cancel, process_logits. Forced token
// sequences make every expected text known beforehand; cuts follow from the definition of a stop
// string: the reply ends before the match that begins first.
#include <algorithm>
#include <atomic>
#include <random>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;

namespace {

decant::Model reply_model() {
  static const TinyModel tiny = chain_model([](Token t) { return t; });
  decant::ModelOptions options;
  options.threads = 1;
  options.sessions = 4;
  return tiny.load(options);
}

/// The text before the earliest match of any stop string, by the definition.
std::string cut(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t at = text.size();
  for (const std::string& stop : stops) at = std::min(at, text.find(stop));
  return text.substr(0, at);
}

std::vector<Token> tokens_of(const std::vector<std::string>& pieces) {
  std::vector<Token> tokens;
  for (const std::string& piece : pieces)
    tokens.push_back(piece.size() == 1 ? byte_token(piece[0]) : piece_token(piece));
  return tokens;
}
std::string join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

/// Forces the pieces and checks everything that must agree about the reply's text.
void check_stops(decant::Model& model, const std::vector<std::string>& pieces,
                 const std::vector<std::string>& stops) {
  const std::string whole = join(pieces), expected = cut(whole, stops);
  CAPTURE(whole, expected);
  const std::vector<Token> prompt = byte_tokens("Q:");
  auto session = session_with(model, prompt);
  Script script{tokens_of(pieces)};
  GenerateOptions options;
  options.stop = stops;
  script.put_into(options);
  auto reply = session.generate(options).value();
  std::string streamed;
  bool whole_characters = true;
  while (const auto piece = reply.next()) {
    whole_characters = whole_characters && !piece->empty() &&
                       (static_cast<std::uint8_t>(piece->front()) & 0xC0) != 0x80;
    streamed += *piece;
  }
  CHECK(reply.status());
  CHECK(streamed == expected);
  CHECK(whole_characters);
  const bool stopped = expected.size() < whole.size();
  CHECK(reply.finish_reason() == (stopped ? FinishReason::stop_string : FinishReason::end_token));
  // Tokens, counts and session agree with the text.
  std::vector<Token> tokens = reply.tokens();
  CHECK(reply.stats().tokens == tokens.size());
  std::vector<Token> held = prompt;
  held.insert(held.end(), tokens.begin(), tokens.end());
  CHECK(copy(session.tokens()) == held);
  if (!stopped) {
    REQUIRE(tokens.back() == kTinyEnd);
    tokens.pop_back();
  }
  CHECK(model.detokenize(tokens).value() == expected);
  // And so does what lies in the cache.
  auto fresh = session_with(model, held);
  CHECK(same_bits(session.logits().value(), fresh.logits().value()));
}

}  // namespace

TEST_CASE("a stop string is found across every split into tokens") {
  auto model = reply_model();
  const std::vector<std::vector<std::string>> texts = {
      {"b", "r", "own", " fox", "e", "s"},
      {"b", "r", "o", "w", "n", " ", "f", "o", "x", "e", "s"},
      {"b", "r", "ow", "n", " fo", "x", "e", "s"},
      {"x", "\nU", "ser", ":", " ", "h"},
      {"x", "\n", "U", "s", "e", "r", ":", "h"},
      {"a", "a", "aab"},
      {"aa", "ab"},
      {"aab", "aab"},
      {"a", "b", "ab"},
      {"c", "\xC3\xA9", "d"},
      {"c", "\xC3", "\xA9", "d"},
      {"\xC3\xA9"}};
  const std::vector<std::vector<std::string>> stops = {
      {"own fox"},     {"\nUser:"},        {"\xC3\xA9"}, {"aab"},
      {"ab"},          {"ab", "b"},        {"zzz"},      {"x", "own fox"},
      {"brown foxes"}, {"n f", "wn foxy"}, {"s"},        {"xe", "fox!"}};
  for (const auto& pieces : texts)
    for (const auto& stop : stops) {
      CAPTURE(stop);
      check_stops(model, pieces, stop);
    }
}

TEST_CASE("random texts and stop strings agree with the definition") {
  auto model = reply_model();
  const unsigned seed = 4711;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> alphabet = {"a",   "b",    "ab",   "aa",
                                             "aab", "\xC3", "\xA9", "\xC3\xA9"};
  for (int round = 0; round < 150; ++round) {
    std::vector<std::string> pieces, stops;
    for (std::size_t n = 1 + random() % 8; n-- > 0;)
      pieces.push_back(alphabet[random() % alphabet.size()]);
    for (std::size_t n = 1 + random() % 3; n-- > 0;) {
      std::string stop;
      for (std::size_t m = 1 + random() % 3; m-- > 0;) stop += alphabet[random() % alphabet.size()];
      stops.push_back(stop);
    }
    CAPTURE(round, stops);
    // Bytes that make no character may come out one by one: only the sums are compared.
    const std::string expected = cut(join(pieces), stops);
    auto session = session_with(model, byte_tokens("Q"));
    Script script{tokens_of(pieces)};
    GenerateOptions options;
    options.stop = stops;
    script.put_into(options);
    auto reply = session.generate(options).value();
    CHECK(read_all(reply) == expected);
    auto tokens = reply.tokens();
    if (reply.finish_reason() == FinishReason::end_token) tokens.pop_back();
    CHECK(model.detokenize(tokens).value() == expected);
  }
}

TEST_CASE("a stop string that cuts a SentencePiece token: text and tokens agree") {
  TinySpec shape;
  shape.text = TinyText::spm;
  auto model = chain_model([](Token t) { return t; }, shape).load();
  struct Cut {
    std::string stop, text;
  };
  // " fox" is one token; a space stands before every text that this tokenizer sees.
  for (const Cut& c :
       {Cut{"fox", "own "}, {"ox", "own f"}, {"x", "own fo"}, {"wn", "o"}, {"own", ""}}) {
    CAPTURE(c.stop);
    auto session = session_with(model, byte_tokens("Q"));
    Script script{{piece_token("own"), piece_token(" fox")}};
    GenerateOptions options;
    options.stop = {c.stop};
    script.put_into(options);
    auto reply = session.generate(options).value();
    CHECK(read_all(reply) == c.text);
    CHECK(model.detokenize(reply.tokens()).value() == c.text);
    CHECK(model.detokenize(session.tokens()).value() == "Q" + c.text);
  }
}

TEST_CASE("only what may begin a stop string is held back") {
  auto model = reply_model();
  auto session = session_with(model, byte_tokens("Q"));
  struct Stepped {
    Script script;
    std::atomic<std::size_t> allowed{0};
  } stepped;
  stepped.script.tokens = byte_tokens("xaabyc");
  GenerateOptions options;
  options.stop = {"aac", "byz"};
  options.process_logits = [](void* s, std::span<const Token> history, std::span<float> logits) {
    auto& stepped = *static_cast<Stepped*>(s);
    while (stepped.allowed <= stepped.script.used) std::this_thread::yield();
    return Script::process(&stepped.script, history, logits);
  };
  options.process_logits_user = &stepped;
  auto reply = session.generate(options).value();
  const char* const after[] = {"x", "x", "x", "xaa", "xaa", "xaabyc"};
  std::string text;
  for (std::size_t i = 0; i < 6; ++i) {
    stepped.allowed = i + 1;
    while (reply.tokens().size() < i + 1) std::this_thread::yield();
    if (const auto piece = reply.try_next()) text += *piece;
    CAPTURE(i);
    CHECK(text == after[i]);
  }
  stepped.allowed = 100;
  CHECK(reply.wait());
}

TEST_CASE("what was held back comes out when the reply ends otherwise") {
  auto model = reply_model();
  for (const std::size_t max : {2u, 3u}) {
    auto session = session_with(model, byte_tokens("Q"));
    Script script{byte_tokens("xST")};
    GenerateOptions options;
    options.stop = {"STOP"};
    options.max_tokens = max;
    script.put_into(options);
    auto reply = session.generate(options).value();
    CHECK(read_all(reply) == std::string("xST").substr(0, max));
    CHECK(reply.finish_reason() == FinishReason::max_tokens);
  }
  // A shorter match that waited for a longer one counts at the end.
  auto session = session_with(model, byte_tokens("Q"));
  Script script{byte_tokens("xab")};
  GenerateOptions options;
  options.stop = {"xabc", "b"};
  script.put_into(options);
  auto reply = session.generate(options).value();
  CHECK(read_all(reply) == "xa");
  CHECK(reply.finish_reason() == FinishReason::stop_string);
  CHECK(copy(session.tokens()) == byte_tokens("Qxa"));
}

TEST_CASE("characters come whole, bytes that are none unchanged, a cut tail at the end") {
  auto model = reply_model();
  const std::string text =
      "\xEC\x82\xBC \xF0\x9F\x91\xA8\xE2\x80\x8D \xFF\xC3( \xED\xA0\x80 \xE2\x82";
  auto session = session_with(model, byte_tokens("Q"));
  Script script{byte_tokens(text)};
  GenerateOptions options;
  script.put_into(options);
  auto reply = session.generate(options).value();
  std::string all;
  while (const auto piece = reply.next()) all += *piece;
  CHECK(all == text);
  CHECK(model.detokenize(session.tokens()).value() == "Q" + text + "<|im_end|>");
}

TEST_CASE("stop keeps what came, cancel takes it back") {
  auto model = reply_model();
  for (const bool cancels : {false, true}) {
    auto session = session_with(model, byte_tokens("Q"));
    GenerateOptions options;
    options.ignore_end = true;
    // Does not end by itself before it is asked to.
    std::atomic<bool> asked{false};
    options.process_logits = [](void* a, std::span<const Token> history, std::span<float>) {
      if (history.size() > 20) static_cast<std::atomic<bool>*>(a)->wait(false);
      return true;
    };
    options.process_logits_user = &asked;
    auto reply = session.generate(options).value();
    const bool began = reply.next().has_value();
    if (cancels)
      reply.cancel();
    else
      reply.stop();
    asked = true;
    asked.notify_all();
    REQUIRE(reply.wait());
    CHECK(began);
    CHECK(reply.status());
    CHECK(reply.finished());
    const auto tokens = reply.tokens();
    CHECK(reply.finish_reason() == (cancels ? FinishReason::cancelled : FinishReason::stopped));
    CHECK(session.tokens().size() == (cancels ? 1 : 1 + tokens.size()));
    CHECK(tokens.size() >= 1);
    // Late calls change nothing.
    const auto reason = reply.finish_reason();
    reply.stop();
    reply.cancel();
    reply.cancel();
    CHECK(reply.finish_reason() == reason);
    CHECK(session.append("x"));
    CHECK(session.tokens().size() == (cancels ? 2 : 2 + tokens.size()));
  }
}

TEST_CASE("a cancel after a stop stands, a stop after a cancel does not") {
  auto model = reply_model();
  for (const bool stop_first : {false, true}) {
    auto session = session_with(model, byte_tokens("Q"));
    std::atomic<bool> go{false};
    GenerateOptions options;
    options.process_logits = [](void* go, std::span<const Token>, std::span<float>) {
      while (!*static_cast<std::atomic<bool>*>(go)) std::this_thread::yield();
      return true;
    };
    options.process_logits_user = &go;
    options.ignore_end = true;
    auto reply = session.generate(options).value();
    if (stop_first) reply.stop();
    reply.cancel();
    reply.stop();
    go = true;
    REQUIRE(reply.wait());
    CHECK(reply.finish_reason() == FinishReason::cancelled);
    CHECK(session.tokens().size() == 1);
  }
}

TEST_CASE("requests cancelled at any moment give their pages back and change nothing") {
  decant::ModelOptions options;
  options.threads = 2;
  options.chunk = 4;
  options.context = 96;
  auto model = random_model().load(options);  // a pool of one session: a leak would show
  const auto prompt = TinyRandom(6).tokens(60);
  const GenerateOptions golden = exactly(10, 5);
  std::vector<Token> expected;
  {
    auto session = session_with(model, prompt);
    auto reply = session.generate(golden).value();
    reply.wait().value();
    expected = reply.tokens();
  }
  const unsigned seed = 31337;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 600; ++round) {
    auto session = session_with(model, prompt);
    GenerateOptions endless;
    endless.ignore_end = true;
    auto reply = session.generate(endless).value();
    for (auto spin = random() % 2000; spin > 0; --spin) (void)reply.finished();
    switch (random() % 4) {
      case 0: reply.cancel(); break;
      case 1: reply.cancel(), reply.cancel(); break;
      case 2: (void)reply.try_next(), reply.cancel(); break;
      default: continue;  // dropped
    }
    REQUIRE(reply.wait());
  }
  auto session = session_with(model, prompt);
  auto reply = session.generate(golden).value();
  REQUIRE(reply.wait());
  CHECK(reply.tokens() == expected);
}

TEST_CASE("process_logits: ends a reply by false or by throwing") {
  auto model = reply_model();
  for (const bool throws : {false, true}) {
    auto session = session_with(model, byte_tokens("Q"));
    struct Failing {
      bool throws;
      int left = 3;
    } failing{throws};
    GenerateOptions options;
    options.ignore_end = true;
    options.process_logits = [](void* f, std::span<const Token>, std::span<float>) {
      auto& failing = *static_cast<Failing*>(f);
      if (failing.left-- > 0) return true;
      if (failing.throws) throw 42;
      return false;
    };
    options.process_logits_user = &failing;
    auto reply = session.generate(options).value();
    const auto status = reply.wait();
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::callback_failed);
    CHECK(reply.finish_reason() == FinishReason::none);
    CHECK_FALSE(reply.status());
    // The session is as before generate and goes on.
    CHECK(copy(session.tokens()) == byte_tokens("Q"));
    GenerateOptions plain;
    plain.max_tokens = 2;
    plain.ignore_end = true;
    CHECK(session.generate(plain).value().wait());
  }
}

TEST_CASE("process_logits sees the history and decides") {
  auto model = reply_model();
  auto session = session_with(model, byte_tokens("Qa"));
  struct Seen {
    std::vector<std::vector<Token>> histories;
    std::size_t width = 0;
  } seen;
  GenerateOptions options;
  options.max_tokens = 3;
  options.sampler = decant::Sampler::greedy();
  options.process_logits = [](void* s, std::span<const Token> history, std::span<float> logits) {
    auto& seen = *static_cast<Seen*>(s);
    seen.histories.push_back(copy(history));
    seen.width = logits.size();
    // The model repeats its last token; the next letter is asked for.
    logits[static_cast<std::size_t>(history.back()) + 1] = 100.0f;
    return true;
  };
  options.process_logits_user = &seen;
  auto reply = session.generate(options).value();
  CHECK(read_all(reply) == "bcd");
  CHECK(seen.width == model.info().n_vocab);
  REQUIRE(seen.histories.size() == 3);
  CHECK(seen.histories[0] == byte_tokens("Qa"));
  CHECK(seen.histories[2] == byte_tokens("Qabc"));

  // Nothing left to choose from ends this request alone.
  auto neighbour = session_with(model, byte_tokens("n"));
  GenerateOptions plain;
  plain.max_tokens = 20;
  plain.ignore_end = true;
  plain.sampler = decant::Sampler::greedy();
  auto beside = neighbour.generate(plain).value();
  for (const float value : {-std::numeric_limits<float>::infinity(), std::nanf("")}) {
    static float fill;
    fill = value;
    options.process_logits = [](void*, std::span<const Token>, std::span<float> logits) {
      std::fill(logits.begin(), logits.end(), fill);
      return true;
    };
    auto bad = session.generate(options).value();
    const auto status = bad.wait();
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::no_valid_token);
    CHECK(copy(session.tokens()) == byte_tokens("Qabcd"));
  }
  CHECK(read_all(beside) == std::string(20, 'n'));
}

TEST_CASE("inside process_logits: what would wait for itself answers would_block, the rest works") {
  auto model = reply_model();
  struct Inside {
    decant::Model* model = nullptr;
    decant::Session* other = nullptr;
    std::atomic<decant::Reply*> self{nullptr};
    bool checked = false;
    int failures = 0;
    std::string first_failure;
    std::optional<decant::Reply> started;
    void expect(bool right, const char* what) {
      if (right) return;
      ++failures;
      if (first_failure.empty()) first_failure = what;
    }
  } inside;
  auto other = session_with(model, byte_tokens("o"));
  inside.model = &model;
  inside.other = &other;
  GenerateOptions options;
  options.max_tokens = 4;
  options.ignore_end = true;
  options.process_logits = [](void* i, std::span<const Token>, std::span<float>) {
    auto& in = *static_cast<Inside*>(i);
    while (in.self == nullptr) std::this_thread::yield();
    if (in.checked) return true;
    in.checked = true;
    decant::Reply& self = *in.self;
    in.expect(!self.next(), "next");
    const auto waited = self.wait();
    in.expect(!waited && waited.error().code() == ErrorCode::would_block, "wait");
    in.expect(!self.finished() && self.status() && self.tokens().empty(), "state");
    const auto logits = in.other->logits();
    in.expect(!logits && logits.error().code() == ErrorCode::would_block, "logits");
    in.expect(bool(in.model->tokenize("abc")), "tokenize");
    in.expect(bool(in.model->session()), "session");
    in.expect(bool(in.other->append("p")), "append");
    in.expect(bool(in.other->rewind(1)), "rewind");
    GenerateOptions two;
    two.max_tokens = 2;
    two.ignore_end = true;
    auto started = in.other->generate(two);
    in.expect(bool(started), "generate");
    if (!started) return true;
    in.started.emplace(*std::move(started));
    in.expect(!in.started->next(), "next of another");
    const auto other_waited = in.started->wait();
    in.expect(!other_waited && other_waited.error().code() == ErrorCode::would_block,
              "wait for another");
    return true;
  };
  options.process_logits_user = &inside;
  auto session = session_with(model, byte_tokens("Q"));
  auto reply = session.generate(options).value();
  inside.self = &reply;
  REQUIRE(reply.wait());
  CAPTURE(inside.first_failure);
  CHECK(inside.failures == 0);
  CHECK(reply.tokens().size() == 4);
  REQUIRE(inside.started);
  CHECK(inside.started->wait());
  CHECK(inside.started->tokens().size() == 2);
}

TEST_CASE("another model may be waited for inside a callback") {
  auto outer = reply_model(), inner = reply_model();
  GenerateOptions options;
  options.max_tokens = 2;
  options.ignore_end = true;
  options.process_logits = [](void* m, std::span<const Token>, std::span<float>) {
    auto session = session_with(*static_cast<decant::Model*>(m), byte_tokens("i"));
    GenerateOptions plain;
    plain.max_tokens = 1;
    plain.ignore_end = true;
    auto reply = session.generate(plain);
    return reply && reply->next().has_value() && reply->wait();
  };
  options.process_logits_user = &inner;
  auto session = session_with(outer, byte_tokens("o"));
  auto reply = session.generate(options).value();
  CHECK(reply.wait());
  CHECK(reply.tokens().size() == 2);
}

TEST_CASE("stats count and time what happened") {
  auto model = random_model().load();
  auto session = session_with(model, byte_tokens("hello"));
  GenerateOptions options;
  options.max_tokens = 8;
  options.ignore_end = true;
  auto reply = session.generate(options).value();
  reply.wait().value();
  const auto stats = reply.stats();
  CHECK(stats.prompt_tokens == 5);
  CHECK(stats.cached_tokens == 0);
  CHECK(stats.tokens == 8);
  CHECK(stats.ttft_ms > 0);
  CHECK(stats.tpot_ms > 0);
  CHECK(stats.tokens_per_second == Approx(1000 / stats.tpot_ms));
  // The next reply finds all but the last token in the cache.
  REQUIRE(session.append("xy"));
  auto next = session.generate(options).value();
  next.wait().value();
  CHECK(next.stats().prompt_tokens == 15);
  CHECK(next.stats().cached_tokens == 12);
  // The same once more: the last token is computed again for its logits.
  REQUIRE(session.rewind(15));
  auto again = session.generate(options).value();
  again.wait().value();
  CHECK(again.stats().cached_tokens == 14);
}

TEST_CASE("names of reasons and codes") {
  CHECK(std::string(decant::finish_reason_name(FinishReason::stop_string)) == "stop_string");
  CHECK(std::string(decant::finish_reason_name(FinishReason::none)) == "none");
  CHECK(decant::finish_reason_name(static_cast<FinishReason>(99)) != nullptr);
  CHECK(std::string(decant::error_code_name(ErrorCode::would_block)) == "would_block");
  CHECK(decant::error_code_name(static_cast<ErrorCode>(99)) != nullptr);
}
