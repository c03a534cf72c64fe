// Sessions: tokens of the caller, empty and full contexts, rules of state, rewinding, pools that
// run out. Where it says so, all happens next to a request in flight that must not notice.
#include <algorithm>
#include <atomic>
#include <climits>
#include <set>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::Message;
using decant::ModelOptions;
using decant::Sampler;

namespace {

ModelOptions tiny_options(std::size_t context = 0, std::size_t sessions = 4) {
  ModelOptions options;
  options.threads = 2;
  options.context = context;
  options.sessions = sessions;
  return options;
}

GenerateOptions greedy(std::size_t n) {
  GenerateOptions options;
  options.max_tokens = n;
  options.ignore_end = true;
  options.sampler = Sampler::greedy();
  return options;
}

void check_error(const decant::Status& status, ErrorCode code, const char* part = "") {
  REQUIRE_FALSE(status);
  CAPTURE(status.error().message());
  CHECK(status.error().code() == code);
  CHECK(status.error().message().find(part) != std::string_view::npos);
}
template <class T>
void check_error(const decant::Result<T>& result, ErrorCode code, const char* part = "") {
  check_error(result ? decant::Status() : decant::Status(result.error()), code, part);
}

/// A long reply that runs while other things happen, and what it must give.
class Neighbour {
 public:
  explicit Neighbour(decant::Model& model) : session_(session_with(model, kPrompt)) {
    reply_.emplace(session_.generate(options()).value());
  }
  static std::vector<Token> solo(decant::Model& model) {
    auto session = session_with(model, kPrompt);
    auto reply = session.generate(options()).value();
    reply.wait().value();
    return reply.tokens();
  }
  std::vector<Token> finish() {
    reply_->wait().value();
    return reply_->tokens();
  }

 private:
  static GenerateOptions options() {
    GenerateOptions o;
    o.max_tokens = 150;
    o.ignore_end = true;
    o.sampler.seed = 99;
    return o;
  }
  inline static const std::vector<Token> kPrompt = {7, 8, 9, 200, 41};
  decant::Session session_;
  std::optional<decant::Reply> reply_;
};

}  // namespace

TEST_CASE("token ids of the caller are checked against the embedding's rows") {
  TinySpec shape;
  shape.n_padding = 32;
  auto model = random_model(shape).load(tiny_options());
  const Token width = kTinyTokens + 32;
  REQUIRE(model.info().n_vocab == static_cast<std::size_t>(width));
  const auto expected = Neighbour::solo(model);
  Neighbour neighbour(model);
  auto session = session_with(model, std::vector<Token>{5});
  for (const Token bad : {-1, INT_MIN, width, width + 1, INT_MAX}) {
    CAPTURE(bad);
    const Token tokens[] = {3, bad, 4};
    check_error(session.append(std::span(tokens)), ErrorCode::invalid_argument,
                std::to_string(bad).c_str());
    check_error(session.append(std::span(tokens)), ErrorCode::invalid_argument, "index 1");
    check_error(model.detokenize(tokens), ErrorCode::invalid_argument);
    CHECK(copy(session.tokens()) == std::vector<Token>{5});
  }
  // Padding has no text, but a row of its own.
  for (const Token padding : {kTinyTokens, width - 1}) {
    REQUIRE(session.append(std::span(&padding, 1)));
    check_error(model.detokenize(std::span(&padding, 1)), ErrorCode::invalid_argument);
  }
  CHECK(session.logits());
  CHECK(neighbour.finish() == expected);
}

TEST_CASE("padding behind the vocabulary is never sampled") {
  TinySpec shape;
  shape.n_padding = 32;
  // Padding has the largest logits by far.
  auto model = table_model(
                   [](Token, Token next) {
                     return next >= kTinyTokens ? 50.0f : next == 77 ? 5.0f : 0.0f;
                   },
                   shape)
                   .load(tiny_options());
  auto session = session_with(model, std::vector<Token>{kTinyTokens + 3, 5});
  const auto logits = session.logits().value();
  CHECK(logits[kTinyTokens] > 49.0f);  // what the model says is shown as it is
  auto reply = session.generate(greedy(5)).value();
  reply.wait().value();
  CHECK(reply.tokens() == std::vector<Token>(5, 77));
  GenerateOptions options;
  options.max_tokens = 300;
  options.ignore_end = true;
  options.sampler.temperature = 5.0f;
  options.sampler.repetition_penalty = 1.3f;  // looks at the padding in the prompt
  options.sampler.seed = 1;
  auto sampled = session.generate(options).value();
  REQUIRE(sampled.wait());
  const auto tokens = sampled.tokens();
  CHECK(tokens.size() == 300);
  CHECK(*std::max_element(tokens.begin(), tokens.end()) < kTinyTokens);
  // A callback cannot bring it back.
  options.max_tokens = 3;
  options.process_logits = [](void*, std::span<const Token>, std::span<float> logits) {
    for (float& x : logits) x = -1.0f;
    logits.back() = std::numeric_limits<float>::infinity();
    return true;
  };
  auto forced = session.generate(options).value();
  REQUIRE(forced.wait());
  for (const Token t : forced.tokens()) CHECK(t < kTinyTokens);
}

TEST_CASE("an empty prompt: an error without a begin token, a prompt of one with it") {
  for (const bool begins : {false, true}) {
    TinyModel tiny = random_model();
    tiny.set_bool("tokenizer.ggml.add_bos_token", begins);
    auto model = tiny.load(tiny_options());
    const auto expected = Neighbour::solo(model);
    Neighbour neighbour(model);
    auto session = model.session().value();
    check_error(session.generate(), ErrorCode::invalid_state, "append");
    check_error(session.logits(), ErrorCode::invalid_state);
    REQUIRE(session.append(std::span<const Token>()));
    check_error(session.generate(), ErrorCode::invalid_state);
    REQUIRE(session.append(std::string_view("")));
    if (begins) {
      CHECK(copy(session.tokens()) == std::vector<Token>{kTinyBos});
      auto reply = session.generate(greedy(3)).value();
      REQUIRE(reply.wait());
      CHECK(reply.tokens().size() == 3);
      CHECK(reply.stats().prompt_tokens == 1);
      CHECK(reply.stats().cached_tokens == 0);
    } else {
      CHECK(session.tokens().empty());
      check_error(session.generate(), ErrorCode::invalid_state);
      // Nothing came of it: the session may still become one of messages.
      CHECK(session.append(Message{"user", "hi"}));
    }
    CHECK(neighbour.finish() == expected);
  }
}

TEST_CASE("the begin token stands once, before the first text") {
  TinyModel tiny = random_model();
  tiny.set_bool("tokenizer.ggml.add_bos_token", true);
  auto model = tiny.load(tiny_options());
  auto session = model.session().value();
  REQUIRE(session.append("x"));
  REQUIRE(session.append("y"));
  CHECK(copy(session.tokens()) == std::vector<Token>{kTinyBos, byte_token('x'), byte_token('y')});
  auto without = model.session().value();
  decant::TextOptions plain;
  plain.add_bos = false;
  REQUIRE(without.append("x", plain));
  REQUIRE(without.append("y"));
  CHECK(copy(without.tokens()) == byte_tokens("xy"));
  REQUIRE(session.rewind(0));
  REQUIRE(session.append("z"));
  CHECK(copy(session.tokens()) == std::vector<Token>{kTinyBos, byte_token('z')});
}

TEST_CASE("max_tokens 0 is a success without tokens") {
  auto model = random_model().load(tiny_options());
  const auto expected = Neighbour::solo(model);
  Neighbour neighbour(model);
  auto session = session_with(model, byte_tokens("hello"));
  auto reply = session.generate(greedy(0)).value();
  CHECK(reply.finished());
  CHECK_FALSE(reply.next());
  CHECK(reply.wait());
  CHECK(reply.finish_reason() == FinishReason::max_tokens);
  CHECK(reply.tokens().empty());
  CHECK(reply.stats().tokens == 0);
  CHECK(reply.stats().prompt_tokens == 5);
  CHECK(copy(session.tokens()) == byte_tokens("hello"));
  // The session goes on as if it had not been.
  auto fresh = session_with(model, byte_tokens("hello"));
  CHECK(same_bits(last_logits(session, model, 5), last_logits(fresh, model, 5)));
  CHECK(neighbour.finish() == expected);
}

TEST_CASE("contexts nearly full, full and too full") {
  constexpr std::size_t kContext = 40;
  auto model = random_model().load(tiny_options(kContext));
  auto large = random_model().load(tiny_options(400));
  const std::vector<Token> tokens = TinyRandom(1).tokens(kContext + 1);
  auto neighbour_session = session_with(model, std::vector<Token>{9});
  GenerateOptions endless = greedy(SIZE_MAX);

  auto nearly = session_with(model, std::span(tokens).first(kContext - 1));
  auto reply = nearly.generate(endless).value();
  REQUIRE(reply.wait());
  CHECK(reply.finish_reason() == FinishReason::context_full);
  REQUIRE(reply.tokens().size() == 1);
  CHECK(nearly.tokens().size() == kContext);
  auto same = session_with(large, std::span(tokens).first(kContext - 1));
  auto same_reply = same.generate(greedy(1)).value();
  same_reply.wait().value();
  CHECK(same_reply.tokens() == reply.tokens());

  auto full = session_with(model, std::span(tokens).first(kContext));
  auto none = full.generate(endless).value();
  REQUIRE(none.wait());
  CHECK(none.finish_reason() == FinishReason::context_full);
  CHECK(none.tokens().empty());
  auto same_full = session_with(large, std::span(tokens).first(kContext));
  CHECK(same_bits(last_logits(full, model, kContext), last_logits(same_full, large, kContext)));
  check_error(full.append(std::span(tokens).first(1)), ErrorCode::context_full, "41 tokens");
  CHECK(full.tokens().size() == kContext);

  auto over = model.session().value();
  check_error(over.append(std::span(tokens)), ErrorCode::context_full, "session of 40");
  CHECK(over.tokens().empty());
  REQUIRE(over.append(std::span(tokens).first(2)));
  check_error(over.append(std::string(50, 'x')), ErrorCode::context_full);
  CHECK(over.tokens().size() == 2);

  auto neighbour = neighbour_session.generate(endless).value();
  REQUIRE(neighbour.wait());
  CHECK(neighbour.finish_reason() == FinishReason::context_full);
  CHECK(neighbour.tokens().size() == kContext - 1);
  auto alone = session_with(large, std::vector<Token>{9});
  auto alone_reply = alone.generate(greedy(kContext - 1)).value();
  alone_reply.wait().value();
  CHECK(alone_reply.tokens() == neighbour.tokens());
}

TEST_CASE("a context of one token") {
  auto model = random_model().load(tiny_options(1));
  auto session = session_with(model, std::vector<Token>{4});
  CHECK(session.logits());
  auto reply = session.generate().value();
  CHECK(reply.wait());
  CHECK(reply.finish_reason() == FinishReason::context_full);
}

TEST_CASE("an end token first is a reply of no text") {
  auto model = chain_model([](Token) { return kTinyEnd; }).load(tiny_options());
  auto session = session_with(model, byte_tokens("ab"));
  auto reply = session.generate().value();
  CHECK(read_all(reply).empty());
  CHECK(reply.status());
  CHECK(reply.finish_reason() == FinishReason::end_token);
  CHECK(reply.tokens() == std::vector<Token>{kTinyEnd});
  CHECK(reply.stats().tokens == 1);
  CHECK(session.tokens().size() == 3);
  // The session stays usable.
  REQUIRE(session.append(std::string_view("c")));
  auto again = session.generate().value();
  CHECK(again.wait());
  CHECK(again.tokens() == std::vector<Token>{kTinyEnd});
  // ignore_end goes on, and the text is that of the tokens.
  auto ignoring = session.generate(greedy(2)).value();
  CHECK(read_all(ignoring) == "<|im_end|><|im_end|>");
  CHECK(ignoring.finish_reason() == FinishReason::max_tokens);
}

TEST_CASE("messages and raw text do not mix") {
  TinySpec gemma;
  gemma.architecture = "gemma3";
  auto model = random_model(gemma).load(tiny_options());
  auto chat = model.session().value();
  REQUIRE(chat.append(Message{"user", "hi"}));
  check_error(chat.append("text"), ErrorCode::invalid_state, "messages");
  check_error(chat.append(std::span(std::vector<Token>(1, 5).data(), 1)), ErrorCode::invalid_state);
  CHECK(chat.messages().size() == 1);
  check_error(chat.append(Message{"", "x"}), ErrorCode::invalid_argument, "role");
  auto text = session_with(model, byte_tokens("x"));
  check_error(text.append(Message{"user", "hi"}), ErrorCode::invalid_state, "raw text");
  CHECK(text.messages().empty());
  REQUIRE(text.rewind(0));
  CHECK(text.append(Message{"user", "hi"}));
  check_error(chat.rewind(1), ErrorCode::invalid_argument);  // holds no token yet
  auto reply = chat.generate(greedy(2)).value();
  reply.wait().value();
  check_error(chat.rewind(1), ErrorCode::invalid_state, "messages");
  REQUIRE(chat.rewind(0));
  CHECK(chat.messages().empty());
  CHECK(chat.tokens().empty());
  CHECK(chat.append("text"));
}

TEST_CASE("while a reply is in flight its session is busy, and nothing else") {
  auto model = random_model().load(tiny_options());
  auto session = session_with(model, byte_tokens("x"));
  std::atomic<bool> go{false};
  GenerateOptions options = greedy(5);
  options.process_logits = [](void* go, std::span<const Token>, std::span<float>) {
    while (!*static_cast<std::atomic<bool>*>(go)) std::this_thread::yield();
    return true;
  };
  options.process_logits_user = &go;
  auto reply = session.generate(options).value();
  std::vector<float> row(model.info().n_vocab);
  check_error(session.append("y"), ErrorCode::busy);
  check_error(session.append(std::span(std::vector<Token>(1, 5).data(), 1)), ErrorCode::busy);
  check_error(session.append(Message{"user", "hi"}), ErrorCode::busy);
  check_error(session.generate(), ErrorCode::busy, "wait for it, stop or cancel");
  check_error(session.logits(), ErrorCode::busy);
  check_error(session.logits(std::span(row)), ErrorCode::busy);
  check_error(session.rewind(0), ErrorCode::busy);
  CHECK(copy(session.tokens()) == byte_tokens("x"));
  CHECK_FALSE(reply.finished());
  CHECK_FALSE(reply.try_next());
  CHECK(reply.status());
  CHECK(reply.finish_reason() == FinishReason::none);
  // The model and new sessions are free.
  CHECK(model.tokenize("abc"));
  auto other = session_with(model, byte_tokens("z"));
  auto other_reply = other.generate(greedy(1)).value();
  go = true;
  CHECK(other_reply.wait());
  CHECK(reply.wait());
  CHECK(session.tokens().size() == 6);
  CHECK(session.append("y"));
}

TEST_CASE("the next call on a session waits for the end of a dropped reply") {
  auto model = random_model().load(tiny_options());
  auto session = session_with(model, byte_tokens("hello"));
  for (int i = 0; i < 50; ++i) {
    (void)session.generate(greedy(SIZE_MAX)).value();
    REQUIRE(session.rewind(5));
    CHECK(copy(session.tokens()) == byte_tokens("hello"));
  }
}

TEST_CASE("rows of logits: shapes that fit") {
  auto model = random_model().load(tiny_options());
  auto session = session_with(model, byte_tokens("hello"));
  const std::size_t width = model.info().n_vocab;
  std::vector<float> rows(6 * width);
  check_error(session.logits(std::span<float>()), ErrorCode::invalid_argument);
  check_error(session.logits(std::span(rows).first(width - 1)), ErrorCode::invalid_argument);
  check_error(session.logits(std::span(rows).first(width + 1)), ErrorCode::invalid_argument);
  check_error(session.logits(std::span(rows)), ErrorCode::invalid_argument, "holds 5 tokens");
  REQUIRE(session.logits(std::span(rows).first(5 * width)));
  std::vector<float> last(width);
  REQUIRE(session.logits(std::span(last)));
  CHECK(same_bits(last, std::span(rows).subspan(4 * width, width)));
  CHECK(same_bits(last, session.logits().value()));
}

TEST_CASE("rewinding: whole range and past it") {
  auto model = random_model().load(tiny_options());
  auto session = session_with(model, byte_tokens("hello"));
  check_error(session.rewind(6), ErrorCode::invalid_argument, "holds 5");
  check_error(session.rewind(SIZE_MAX), ErrorCode::invalid_argument);
  CHECK(session.rewind(5));
  CHECK(session.rewind(2));
  CHECK(copy(session.tokens()) == byte_tokens("he"));
  CHECK(session.rewind(0));
  CHECK(session.rewind(0));
  check_error(session.generate(), ErrorCode::invalid_state);
}

TEST_CASE("the pool runs out for the one who asks, and serves again when pages come back") {
  // 6 pages of 16 for all sessions.
  ModelOptions options = tiny_options(90, 1);
  auto model = random_model().load(options);
  const std::vector<Token> tokens = TinyRandom(2).tokens(40), others = TinyRandom(3).tokens(60);
  auto first = session_with(model, tokens);
  REQUIRE(first.logits());
  auto second = session_with(model, others);
  check_error(second.logits(), ErrorCode::out_of_memory, "KV pool");
  CHECK(second.tokens().size() == 60);

  // In flight together: the first has pages for its reply, the second fails alone.
  auto reply = first.generate(greedy(8)).value();
  auto failing = second.generate(greedy(8)).value();
  CHECK(reply.wait());
  check_error(failing.wait(), ErrorCode::out_of_memory, "kv_memory");
  check_error(failing.status(), ErrorCode::out_of_memory);
  CHECK(failing.finish_reason() == FinishReason::none);
  CHECK(copy(second.tokens()) == others);
  auto fresh_model = random_model().load(options);
  auto fresh = session_with(fresh_model, tokens);
  auto fresh_reply = fresh.generate(greedy(8)).value();
  fresh_reply.wait().value();
  CHECK(reply.tokens() == fresh_reply.tokens());

  // A reply that runs out in its middle goes back to before generate.
  REQUIRE(first.rewind(30));
  REQUIRE(second.rewind(60));
  auto middle = second.generate(greedy(SIZE_MAX)).value();
  check_error(middle.wait(), ErrorCode::out_of_memory);
  CHECK(second.tokens().size() == 60);

  REQUIRE(first.rewind(0));
  CHECK(second.logits());
  auto after = second.generate(greedy(20)).value();
  CHECK(after.wait());
  CHECK(after.tokens().size() == 20);
}

TEST_CASE("options out of range are refused by name") {
  const TinyModel tiny = random_model();
  const auto refused = [&](auto change, const char* name) {
    ModelOptions options;
    change(options);
    check_error(tiny.try_load(options), ErrorCode::invalid_argument, name);
  };
  refused([](ModelOptions& o) { o.threads = -1; }, "threads");
  refused([](ModelOptions& o) { o.activations = static_cast<decant::Activations>(2); },
          "activations");
  refused(
      [](ModelOptions& o) {
        o.backend = decant::Backend::reference;
        o.isa = "portable";
      },
      "isa");
  ModelOptions unheard;
  unheard.isa = "unheard-of";
  check_error(tiny.try_load(unheard), ErrorCode::unsupported, "unheard-of");
  check_error(tiny.try_load(unheard), ErrorCode::unsupported, "portable");
  refused([](ModelOptions& o) { o.threads = 65; }, "threads");
  refused([](ModelOptions& o) { o.chunk = 0; }, "chunk");
  refused([](ModelOptions& o) { o.chunk = 4097; }, "chunk");
  refused([](ModelOptions& o) { o.sessions = 0; }, "sessions");
  refused([](ModelOptions& o) { o.context = SIZE_MAX; }, "context");
  refused([](ModelOptions& o) { o.kv_memory = 1; }, "kv_memory");
  refused([](ModelOptions& o) { o.kv_keys = static_cast<decant::KvType>(9); }, "kv_keys");
  refused([](ModelOptions& o) { o.backend = static_cast<decant::Backend>(9); }, "backend");

  auto model = tiny.load();
  auto session = session_with(model, byte_tokens("x"));
  const auto bad = [&](auto change, const char* name) {
    GenerateOptions options;
    change(options);
    check_error(session.generate(options), ErrorCode::invalid_argument, name);
    CHECK(copy(session.tokens()) == byte_tokens("x"));
  };
  bad([](GenerateOptions& o) { o.sampler.temperature = -1; }, "temperature");
  bad([](GenerateOptions& o) { o.sampler.top_p = 2; }, "top_p");
  bad([](GenerateOptions& o) { o.stop = {"ok", ""}; }, "stop");
}

TEST_CASE("kv_memory sizes the pool in bytes") {
  ModelOptions options = tiny_options(64, 1);
  auto model = random_model().load(options);
  const std::size_t token = model.info().kv_bytes_per_token;
  options.kv_memory = 3 * 16 * token + 15;
  auto small = random_model().load(options);
  CHECK(small.info().kv_pool_bytes == 3 * 16 * token);
  auto session = session_with(small, TinyRandom(1).tokens(48));
  CHECK(session.logits());
  REQUIRE(session.append(std::span(std::vector<Token>(1, 3).data(), 1)));
  check_error(session.logits(), ErrorCode::out_of_memory);
}

TEST_CASE("a model without a tokenizer runs on ids; vocabulary_only on texts") {
  TinySpec shape;
  shape.text = TinyText::none;
  auto ids = random_model(shape).load(tiny_options());
  check_error(ids.tokenize("x"), ErrorCode::unsupported, "tokenizer.ggml.tokens");
  check_error(ids.detokenize(std::vector<Token>{1}), ErrorCode::unsupported);
  auto session = session_with(ids, TinyRandom(1).tokens(5));
  check_error(session.append("x"), ErrorCode::unsupported);
  auto reply = session.generate(greedy(4)).value();
  CHECK_FALSE(reply.next());
  CHECK(reply.wait());
  CHECK(reply.tokens().size() == 4);
  GenerateOptions stop = greedy(4);
  stop.stop = {"x"};
  check_error(session.generate(stop), ErrorCode::unsupported);
  auto chat = ids.session().value();
  check_error(chat.append(Message{"user", "hi"}), ErrorCode::unsupported);

  ModelOptions options = tiny_options();
  options.vocabulary_only = true;
  TinyModel no_weights = random_model();
  no_weights.tensors.clear();
  no_weights.set_string("general.architecture", "unknown");
  auto words = no_weights.load(options);
  CHECK(words.info().n_vocab == kTinyTokens);
  const auto tokens = words.tokenize("own fox<|im_end|>").value();
  CHECK(tokens == std::vector<Token>{piece_token("own"), piece_token(" fox"), kTinyEnd});
  CHECK(words.detokenize(tokens).value() == "own fox<|im_end|>");
  check_error(words.session(), ErrorCode::invalid_state, "vocabulary_only");

  // An unknown pre-tokenizer: an error for texts, or by option the default with a warning.
  no_weights.set_string("tokenizer.ggml.pre", "unheard-of");
  check_error(no_weights.load(options).tokenize("x"), ErrorCode::unsupported, "unheard-of");
  std::string said;
  options.default_pre_tokenizer = true;
  options.log_user = &said;
  options.log = [](void* user, decant::LogLevel, std::string_view line) {
    static_cast<std::string*>(user)->append(line);
  };
  CHECK(no_weights.load(options).tokenize("own fox").value() ==
        std::vector<Token>{piece_token("own"), piece_token(" fox")});
  CHECK(said.find("unheard-of") != std::string::npos);

  // A model without a known chat format says so.
  auto plain = random_model().load(tiny_options());
  auto talk = plain.session().value();
  REQUIRE(talk.append(Message{"user", "hi"}));
  check_error(talk.generate(), ErrorCode::unsupported, "chat format");
  check_error(plain.render(std::vector<Message>{{"user", "hi"}}), ErrorCode::unsupported);
}

TEST_CASE("seeds: drawn when absent, reported, and enough to repeat the reply") {
  auto model = random_model().load(tiny_options());
  GenerateOptions options;
  options.max_tokens = 30;
  options.ignore_end = true;
  std::set<std::uint64_t> seeds;
  std::set<std::vector<Token>> replies;
  for (int i = 0; i < 4; ++i) {
    auto session = session_with(model, byte_tokens("seed"));
    options.sampler.seed.reset();
    auto reply = session.generate(options).value();
    reply.wait().value();
    seeds.insert(reply.stats().seed);
    replies.insert(reply.tokens());
    options.sampler.seed = reply.stats().seed;
    auto twin = session_with(model, byte_tokens("seed"));
    auto again = twin.generate(options).value();
    again.wait().value();
    CHECK(again.tokens() == reply.tokens());
    CHECK(again.stats().seed == reply.stats().seed);
    // One reply of 30 tokens or two of 15 are the same.
    auto halves = session_with(model, byte_tokens("seed"));
    options.max_tokens = 15;
    for (int half = 0; half < 2; ++half) halves.generate(options).value().wait().value();
    options.max_tokens = 30;
    CHECK(copy(halves.tokens()) == copy(twin.tokens()));
  }
  CHECK(seeds.size() == 4);
  CHECK(replies.size() == 4);
}
