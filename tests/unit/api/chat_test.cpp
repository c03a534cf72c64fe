// Conversations: the session renders all messages, keeps what it has computed of them, and answers.
// Gemma's turns (see tests of chat_builtin for the rendering itself).
#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::Message;

namespace {

TinySpec chat_spec() {
  TinySpec spec;
  spec.architecture = "gemma3";
  spec.n_layers = 2;
  spec.window = 512;  // nothing leaves it here
  return spec;
}
decant::Model chat_model(std::size_t context = 400) {
  decant::ModelOptions options;
  options.threads = 2;
  options.context = context;
  options.sessions = 3;
  options.prefix_cache = false;  // the counts below are of what the session itself holds
  return random_model(chat_spec()).load(options);
}

std::vector<Token> joined(std::initializer_list<std::vector<Token>> parts) {
  std::vector<Token> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
std::vector<Token> user_turn(const std::string& content) {
  return joined({{kTinyTurn, byte_token('u'), piece_token("ser")},
                 byte_tokens("\n" + content),
                 {kTinyEnd},
                 byte_tokens("\n")});
}
const std::vector<Token>& reply_turn() {
  static const std::vector<Token> turn = joined({{kTinyTurn}, byte_tokens("model\n")});
  return turn;
}

/// One reply whose tokens are forced.
decant::Reply say(decant::Session& session, Script& script, const GenerateOptions& base = {}) {
  GenerateOptions options = base;
  script.put_into(options);
  auto reply = session.generate(options).value();
  reply.wait().value();
  return reply;
}

}  // namespace

TEST_CASE("the first turn is the rendered conversation") {
  auto model = chat_model();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  CHECK(session.tokens().empty());
  Script script{byte_tokens("yo")};
  auto reply = say(session, script);
  CHECK(read_all(reply) == "yo");
  CHECK(reply.finish_reason() == FinishReason::end_token);
  const auto prompt = joined({user_turn("hi"), reply_turn()});
  CHECK(reply.stats().prompt_tokens == prompt.size());
  CHECK(reply.stats().cached_tokens == 0);
  CHECK(copy(session.tokens()) == joined({prompt, byte_tokens("yo"), {kTinyEnd}}));
  REQUIRE(session.messages().size() == 2);
  CHECK(session.messages()[1].role == "assistant");
  CHECK(session.messages()[1].content == "yo");
  CHECK(model.render(std::vector<Message>{{"user", "hi"}}).value() ==
        model.detokenize(prompt).value());
}

TEST_CASE("the second turn keeps all that it can, the generated span as it was") {
  auto model = chat_model();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  // "own" in three tokens, where the tokenizer would take one.
  Script script{byte_tokens("own")};
  say(session, script);
  REQUIRE(session.append(Message{"user", "go"}));
  Script second{byte_tokens("k")};
  auto reply = say(session, second);
  const auto prompt = joined({user_turn("hi"),
                              reply_turn(),
                              byte_tokens("own"),
                              {kTinyEnd},
                              byte_tokens("\n"),
                              user_turn("go"),
                              reply_turn()});
  CHECK(copy(session.tokens()) == joined({prompt, byte_tokens("k"), {kTinyEnd}}));
  CHECK(reply.stats().prompt_tokens == prompt.size());
  // All but the end token, which was chosen but never run.
  const std::size_t cached = user_turn("hi").size() + reply_turn().size() + 3;
  CHECK(reply.stats().cached_tokens == cached);
  CHECK(session.messages().size() == 4);

  // A raw session with the same tokens computes the same bits.
  auto raw = session_with(model, session.tokens());
  CHECK(same_bits(session.logits().value(), raw.logits().value()));
}

TEST_CASE("a fresh session with the same messages goes on the same way") {
  auto model = chat_model();
  GenerateOptions options;
  options.max_tokens = 12;
  options.sampler.seed = 8;
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  // Bytes round-trip through the tokenizer.
  Script script{byte_tokens("yes, sir")};
  say(session, script);
  REQUIRE(session.append(Message{"user", "why?"}));
  auto reply = session.generate(options).value();
  REQUIRE(reply.wait());
  auto fresh = model.session().value();
  for (const Message& m :
       {Message{"user", "hi"}, Message{"assistant", "yes, sir"}, Message{"user", "why?"}})
    REQUIRE(fresh.append(m));
  auto again = fresh.generate(options).value();
  REQUIRE(again.wait());
  CHECK(again.tokens() == reply.tokens());
  CHECK(copy(fresh.tokens()) == copy(session.tokens()));
  CHECK(again.stats().cached_tokens == 0);
  CHECK(reply.stats().cached_tokens > 20);
}

TEST_CASE("cancelled and failed replies leave the conversation as it was") {
  auto model = chat_model();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  // The template takes the spaces away, so that the next prompt parts from the tokens held.
  Script script{byte_tokens("yo  ")};
  say(session, script);
  const auto before = copy(session.tokens());
  const std::size_t common = user_turn("hi").size() + reply_turn().size() + 2;
  const auto shown = [&] { return copy(session.tokens()); };
  REQUIRE(session.append(Message{"user", "go"}));
  CHECK(shown() == before);
  struct Ending {
    std::atomic<decant::Reply*> reply{nullptr};
    int mode = 0, left = 2;
  };
  for (const int mode : {0, 1, 2}) {  // cancel, false, throw
    CAPTURE(mode);
    Ending ending;
    ending.mode = mode;
    GenerateOptions options;
    options.ignore_end = true;
    options.process_logits = [](void* e, std::span<const Token>, std::span<float>) {
      auto& ending = *static_cast<Ending*>(e);
      while (ending.reply == nullptr) std::this_thread::yield();
      if (ending.left-- > 0) return true;
      if (ending.mode == 2) throw std::runtime_error("host");
      if (ending.mode == 0) ending.reply.load()->cancel();
      return ending.mode != 1;
    };
    options.process_logits_user = &ending;
    auto reply = session.generate(options).value();
    // What it shows meanwhile stays whatever becomes of the reply.
    const auto during = session.tokens();
    CHECK(copy(during) == copy(std::span(before).first(during.size())));
    ending.reply = &reply;
    CHECK(bool(reply.wait()) == (mode == 0));
    CHECK(shown() == before);
    CHECK(session.messages().size() == 3);
  }
  // And it can still be answered, with the prefix from the cache.
  Script answer{byte_tokens("k")};
  auto reply = say(session, answer);
  CHECK(reply.stats().cached_tokens == common);
  CHECK(session.messages().size() == 4);
}

TEST_CASE("stopped, cut and full replies are messages of what came") {
  auto model = chat_model();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  Script cut{byte_tokens("abSTOPc")};
  GenerateOptions options;
  options.stop = {"STOP"};
  auto reply = say(session, cut, options);
  CHECK(reply.finish_reason() == FinishReason::stop_string);
  CHECK(session.messages()[1].content == "ab");
  CHECK(copy(session.tokens()) == joined({user_turn("hi"), reply_turn(), byte_tokens("ab")}));
  REQUIRE(session.append(Message{"user", "b"}));
  GenerateOptions two;
  two.max_tokens = 2;
  Script longer{byte_tokens("xyz")};
  CHECK(say(session, longer, two).finish_reason() == FinishReason::max_tokens);
  CHECK(session.messages()[3].content == "xy");
  REQUIRE(session.append(Message{"user", "c"}));
  two.max_tokens = 0;
  Script none{{}};
  say(session, none, two);
  CHECK(session.messages()[5].content.empty());

  // A context that ends in the reply.
  auto small = chat_model(20);
  auto full = small.session().value();
  REQUIRE(full.append(Message{"user", "hi"}));
  Script many{std::vector<Token>(50, byte_token('m'))};
  auto last = say(full, many);
  CHECK(last.finish_reason() == FinishReason::context_full);
  CHECK(full.tokens().size() == 20);
  CHECK(full.messages()[1].content == std::string(20 - user_turn("hi").size() - 7, 'm'));
  REQUIRE(full.append(Message{"user", "more"}));
  const auto error = full.generate();
  REQUIRE_FALSE(error);
  CHECK(error.error().code() == ErrorCode::context_full);
  CHECK(full.tokens().size() == 20);
  CHECK(full.messages().size() == 3);
}

TEST_CASE("a conversation that cannot be rendered changes nothing") {
  auto model = chat_model();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"assistant", "first"}));
  const auto wrong = session.generate();
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code() == ErrorCode::invalid_argument);
  CHECK(session.tokens().empty());
  REQUIRE(session.rewind(0));
  REQUIRE(session.append(Message{"user", "<end_of_turn>"}));
  Script script{byte_tokens("x")};
  say(session, script);
  // The user's text forged no turn.
  std::size_t ends = 0;
  for (const Token t : session.tokens()) ends += t == kTinyEnd;
  CHECK(ends == 2);
}

TEST_CASE("a begin token stands in front of the conversation once") {
  TinyModel tiny = random_model(chat_spec());
  tiny.set_bool("tokenizer.ggml.add_bos_token", true);
  auto model = tiny.load();
  auto session = model.session().value();
  REQUIRE(session.append(Message{"user", "hi"}));
  Script script{byte_tokens("yo")};
  say(session, script);
  CHECK(copy(session.tokens()) ==
        joined({{kTinyBos}, user_turn("hi"), reply_turn(), byte_tokens("yo"), {kTinyEnd}}));
  REQUIRE(session.append(Message{"user", "a"}));
  Script second{byte_tokens("b")};
  CHECK(say(session, second).stats().cached_tokens == 1 + user_turn("hi").size() + 7 + 2);
  CHECK(std::count(session.tokens().begin(), session.tokens().end(), kTinyBos) == 1);
}
