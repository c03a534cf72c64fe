// Reading a vocabulary from a GGUF file: what is there, and what is refused.
#include "text/vocabulary.hpp"

#include <functional>
#include <limits>

#include "support/gguf_writer.hpp"
#include "unit/text/text_support.hpp"

using namespace decant::detail;
using decant::ErrorCode;
using decant_test::GgufWriter;
using decant_test::OwnVocabulary;
using decant_test::Token;

static const std::vector<std::string> kPieces = {"<unk>", "<s>", "</s>", "a"};

// A good file of four pieces; `change` adds keys, `skip` leaves out the one of that name.
static std::vector<std::byte> vocabulary_file(std::string_view skip,
                                              const std::function<void(GgufWriter&)>& change) {
  GgufWriter w;
  const auto wanted = [&](std::string_view key) { return key != skip; };
  w.add_string("general.architecture", "llama");
  if (wanted("tokenizer.ggml.model")) w.add_string("tokenizer.ggml.model", "llama");
  if (wanted("tokenizer.ggml.tokens")) w.add_strings("tokenizer.ggml.tokens", kPieces);
  if (wanted("tokenizer.ggml.scores")) {
    w.add_f32s("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1});
  }
  if (wanted("tokenizer.ggml.token_type")) {
    w.add_i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 3, 1});
  }
  if (wanted("tokenizer.ggml.bos_token_id")) w.add_u32("tokenizer.ggml.bos_token_id", 1);
  if (change) change(w);
  return w.finish();
}

static decant::Result<std::size_t> try_read(const std::vector<std::byte>& bytes) {
  auto file = Gguf::open(std::span<const std::byte>(bytes));
  if (!file) FAIL(file.error().message());
  const auto v = read_vocabulary(*file);
  if (!v) return v.error();
  return v->tokens.size();
}

TEST_CASE("a vocabulary is read as the file says") {
  const auto bytes = vocabulary_file("", [](GgufWriter& w) {
    w.add_string("tokenizer.ggml.pre", "some");
    w.add_u32("tokenizer.ggml.eos_token_id", 2);
    w.add_i32("tokenizer.ggml.eot_token_id", 3);
    w.add_u64("tokenizer.ggml.unknown_token_id", 0);
    w.add_bool("tokenizer.ggml.add_bos_token", true);
    w.add_bool("tokenizer.ggml.add_space_prefix", false);
    w.add_strings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    w.add_string("tokenizer.chat_template", "{{ x }}");
  });
  auto file = Gguf::open(std::span<const std::byte>(bytes));
  REQUIRE(file);
  const auto v = read_vocabulary(*file);
  REQUIRE(v);
  CHECK(v->model == "llama");
  CHECK(v->pre == "some");
  CHECK(std::vector<std::string>(v->tokens.begin(), v->tokens.end()) == kPieces);
  CHECK(v->scores == std::vector<float>{0, 0, 0, -1});
  CHECK(v->types == std::vector<TokenType>{TokenType::unknown, TokenType::control,
                                           TokenType::control, TokenType::normal});
  CHECK(v->merges == std::vector<std::string_view>{"a b"});
  CHECK(v->bos == 1);
  CHECK(v->eos == 2);
  CHECK(v->eot == 3);
  CHECK(v->unk == 0);
  CHECK(v->add_bos == true);
  CHECK_FALSE(v->add_eos);
  CHECK(v->add_space_prefix == false);
  CHECK(v->chat_template == "{{ x }}");
  CHECK(v->token_bytes() == 13);
}

TEST_CASE("what a file leaves out has its plain meaning") {
  for (const char* key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores",
                          "tokenizer.ggml.model", "tokenizer.ggml.bos_token_id"}) {
    CAPTURE(key);
    const auto bytes = vocabulary_file(key, nullptr);
    auto file = Gguf::open(std::span<const std::byte>(bytes));
    REQUIRE(file);
    const auto v = read_vocabulary(*file);
    REQUIRE(v);
    CHECK(v->pre == "default");
    CHECK(v->types.size() == 4);
  }
  const auto none = try_read(vocabulary_file("tokenizer.ggml.tokens", nullptr));
  REQUIRE_FALSE(none);
  CHECK(none.error().code() == ErrorCode::unsupported);
}

TEST_CASE("bad values are refused by the name of their key") {
  struct Case {
    const char* key;
    std::function<void(GgufWriter&, std::string_view)> add;
  };
  const auto i32s = [](std::vector<std::int32_t> values) {
    return [values](GgufWriter& w, std::string_view key) { w.add_i32s(key, values); };
  };
  const auto f32s = [](std::vector<float> values) {
    return [values](GgufWriter& w, std::string_view key) { w.add_f32s(key, values); };
  };
  const auto u32 = [](GgufWriter& w, std::string_view key) { w.add_u32(key, 4); };
  const auto text = [](GgufWriter& w, std::string_view key) { w.add_string(key, "1"); };
  const auto nothing = [](GgufWriter& w, std::string_view key) { w.add_strings(key, {}); };
  const Case cases[] = {
      {"tokenizer.ggml.token_type", i32s({2, 3, 3})},
      {"tokenizer.ggml.token_type", i32s({2, 3, 3, 1, 1})},
      {"tokenizer.ggml.token_type", i32s({2, 3, 0, 1})},
      {"tokenizer.ggml.token_type", i32s({2, 3, 7, 1})},
      {"tokenizer.ggml.token_type", i32s({2, 3, -1, 1})},
      {"tokenizer.ggml.token_type", text},
      {"tokenizer.ggml.scores", f32s({0, 0, 0})},
      {"tokenizer.ggml.scores", f32s({0, 0, 0, 0, 0})},
      {"tokenizer.ggml.scores", text},
      {"tokenizer.ggml.tokens", nothing},
      {"tokenizer.ggml.tokens", text},
      {"tokenizer.ggml.tokens", i32s({1, 2, 3, 4})},
      {"tokenizer.ggml.merges", i32s({1})},
      {"tokenizer.ggml.model", u32},
      {"tokenizer.ggml.pre", u32},
      {"tokenizer.chat_template", u32},
      {"tokenizer.ggml.bos_token_id", text},
      {"tokenizer.ggml.bos_token_id", i32s({1})},
      {"tokenizer.ggml.bos_token_id", i32s({-1, -1})},
      {"tokenizer.ggml.add_bos_token", text},
      {"tokenizer.ggml.add_eos_token", text},
      {"tokenizer.ggml.add_space_prefix", text},
  };
  for (const Case& c : cases) {
    const auto result = try_read(vocabulary_file(c.key, [&](GgufWriter& w) { c.add(w, c.key); }));
    CAPTURE(c.key);
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == ErrorCode::invalid_file);
    CHECK(result.error().message().find(c.key) != std::string_view::npos);
  }
}

TEST_CASE("special ids outside the vocabulary are absent, with a warning that names the key") {
  const std::pair<const char*, std::optional<Token> Vocabulary::*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &Vocabulary::bos},
      {"tokenizer.ggml.eos_token_id", &Vocabulary::eos},
      {"tokenizer.ggml.eot_token_id", &Vocabulary::eot},
      {"tokenizer.ggml.unknown_token_id", &Vocabulary::unk},
      {"tokenizer.ggml.cls_token_id", &Vocabulary::cls},
      {"tokenizer.ggml.seperator_token_id", &Vocabulary::sep},
  };
  using Add = void (*)(GgufWriter&, const char*);
  for (const auto& [key, member] : ids)
    for (const Add add : {Add([](GgufWriter&w, const char*k) { w.add_u32(k, 4); }),
                          Add([](GgufWriter&w, const char*k) { w.add_u32(k, 0xffffffff); }),
                          Add([](GgufWriter&w, const char*k) { w.add_i32(k, -1); }),
                          Add([](GgufWriter&w, const char*k) { w.add_u64(k, UINT64_MAX); })}) {
      CAPTURE(key);
      const auto bytes = vocabulary_file(key, [add, k = key](GgufWriter& w) { add(w, k); });
      auto file = Gguf::open(std::span<const std::byte>(bytes));
      REQUIRE(file);
      const auto v = read_vocabulary(*file);
      REQUIRE(v);
      CHECK_FALSE((*v).*member);
      REQUIRE(v->warnings.size() == 1);
      CHECK(v->warnings[0].find(key) == 0);
      CHECK(Tokenizer::create(*v));
    }
  // The padding token is nobody's concern.
  const auto bytes = vocabulary_file(
      "", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.padding_token_id", 0xffffffff); });
  std::vector<std::string> lines;
  decant::ModelOptions options;
  options.vocabulary_only = true;
  options.log_user = &lines;
  options.log = [](void* user, decant::LogLevel, std::string_view line) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(line);
  };
  CHECK(decant::Model::load(std::span<const std::byte>(bytes), options));
  CHECK(lines.empty());
  const auto eos = vocabulary_file(
      "", [](GgufWriter& w) { w.add_u32("tokenizer.ggml.eos_token_id", 0xffffffff); });
  CHECK(decant::Model::load(std::span<const std::byte>(eos), options));
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("tokenizer.ggml.eos_token_id") != std::string::npos);
}

TEST_CASE("scores must be finite where they are compared, and only there") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()})
    for (const std::string model : {"llama", "t5", "gpt2"})
      for (const std::size_t token : {2u, 3u}) {  // </s>, a control token; a piece
        CAPTURE(bad, model, token);
        OwnVocabulary own;
        own.v.model = model;
        own.v.pre = "gpt-2";
        own.add("<unk>", TokenType::unknown);
        own.add("<s>", TokenType::control);
        own.add("</s>", TokenType::control);
        own.add("a");
        own.v.scores[token] = bad;
        const auto t = Tokenizer::create(own.view());
        const bool wanted = model == "gpt2" || token == 2;
        REQUIRE(bool(t) == wanted);
        if (wanted) continue;
        CHECK(t.error().code() == ErrorCode::invalid_file);
        CHECK(t.error().message() == "tokenizer.ggml.scores of token 3 is not a finite number");
      }
}
