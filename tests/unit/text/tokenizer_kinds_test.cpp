// The kinds of tokenizers on small vocabularies, against the tokenizers and sentencepiece packages
// of PyPI, rwkv and plamo2 against plain loops in Python (tests/support/tokenizer_cases.py writes
// tests/data/tokenizers/kinds.json).
#include <limits>

#include "text/tokenizer.hpp"

#include "unit/text/text_support.hpp"

using namespace decant_test;
using Ids = std::vector<Token>;

static OwnVocabulary vocabulary_of(const nlohmann::json& data) {
  OwnVocabulary own;
  own.tokens = data["tokens"].get<std::vector<std::string>>();
  for (const char* model : {"bert", "t5", "gpt2", "whitespace", "rwkv", "plamo2"}) {
    if (data["model"] == model) own.v.model = model;
  }
  for (const char* pre : {"mmbert", "whitespace"}) {
    if (data.value("pre", "") == pre) own.v.pre = pre;
  }
  own.merges = data.value("merges", std::vector<std::string>());
  for (const int type : data["types"]) own.v.types.push_back(static_cast<TokenType>(type));
  own.v.scores = data["scores"].get<std::vector<float>>();
  const auto id = [&](const char* key) {
    return data.contains(key) ? std::optional(data[key].get<Token>()) : std::nullopt;
  };
  own.v.unk = id("unk");
  own.v.cls = id("cls");
  own.v.sep = id("sep");
  own.v.bos = id("bos");
  own.v.eos = id("eos");
  for (const char c : from_hex(data.value("charsmap", ""))) {
    own.v.charsmap.push_back(static_cast<std::uint8_t>(c));
  }
  const auto flag = [&](const char* key) {
    return data.contains(key) ? std::optional(data[key].get<bool>()) : std::nullopt;
  };
  own.v.lowercase = flag("lowercase");
  own.v.add_space_prefix = flag("add_space_prefix");
  own.v.remove_extra_whitespaces = flag("remove_extra_whitespaces");
  return own;
}

TEST_CASE("kinds of tokenizers: ids and texts of the reference implementations") {
  const auto data = text_data("kinds.json");
  CHECK(data.size() == 9);
  for (const auto& [name, kind] : data.items()) {
    const auto t = vocabulary_of(kind).make();
    CHECK(kind["cases"].size() > 40);
    for (const auto& c : kind["cases"]) {
      const auto text = c[0].get<std::string>();
      CAPTURE(name, text);
      const Ids tokens = ids(*t, text, false);
      CHECK(tokens == c[1].get<Ids>());
      if (c[2].is_string()) CHECK(text_of(*t, tokens) == c[2].get<std::string>());
    }
  }
}

// Outcomes by hand.
TEST_CASE("rwkv: escapes, and bytes without a piece") {
  OwnVocabulary own;
  own.v.model = "rwkv";
  own.add("<s>", TokenType::control);
  for (const char* piece : {"a", "\\\\", "\\'\\\"", "\\xe6\\xB1", "\\t\\n\\r", "aab"})
    own.add(piece);
  own.add("aaaa", TokenType::unused);
  const std::string text = "aaaa\\'\"\xe6\xb1\t\n\raab<s>?";
  auto t = own.make();
  CHECK(ids(*t, text, false) == Ids{1, 1, 1, 1, 2, 3, 4, 5, 6});
  CHECK(ids(*t, text, true) == Ids{1, 1, 1, 1, 2, 3, 4, 5, 6, 0});
  CHECK(text_of(*t, Ids{1, 2, 3, 4, 5, 6, 7, 0}) == "a\\'\"\xe6\xb1\t\n\raab<s>");
  own.v.unk = 0;
  CHECK(ids(*own.make(), "a??a", false) == Ids{1, 0, 0, 1});
  for (const char* broken : {"\\", "a\\x", "\\x4", "\\x4g", "\\xg4"}) {
    OwnVocabulary bad = own;
    bad.add(broken);
    const auto made = Tokenizer::create(bad.view());
    CAPTURE(broken);
    REQUIRE_FALSE(made);
    CHECK(made.error().code() == decant::ErrorCode::invalid_file);
    CHECK(made.error().message().find("piece 8") != std::string_view::npos);
  }
}

TEST_CASE("plamo2: any bytes come back; what a file must have") {
  OwnVocabulary own = sentence_piece();
  own.v.model = "plamo2";
  own.add("\xb1", TokenType::normal, -1);  // in the middle of a character, where no piece begins
  const Token ab = own.add("ab", TokenType::normal, -1);
  const std::string text = "\xff\xe6\xb1\x89\xe6<s>ab";
  const auto t = own.make();
  Ids expected;
  for (const char c : text) expected.push_back(3 + static_cast<std::uint8_t>(c));
  expected.resize(expected.size() - 2);
  expected.push_back(ab);
  CHECK(ids(*t, text, false) == expected);
  CHECK(text_of(*t, expected) == text);

  const auto refuse = [&](auto change, const char* word) {
    OwnVocabulary bad = own;
    change(bad);
    const auto made = Tokenizer::create(bad.view());
    REQUIRE_FALSE(made);
    CHECK(made.error().code() == decant::ErrorCode::invalid_file);
    CHECK(made.error().message().find(word) != std::string_view::npos);
  };
  refuse([](OwnVocabulary& v) { v.tokens[3 + 65] = "A"; }, "byte 65");
  refuse([](OwnVocabulary& v) { v.v.scores[260] = 10001; }, "token 260");
  refuse([](OwnVocabulary& v) { v.v.scores[260] = std::numeric_limits<float>::quiet_NaN(); },
         "token 260");
  refuse([](OwnVocabulary& v) { v.v.scores.clear(); }, "scores is missing");
}
