// WordPiece and unigram tokenizers on small vocabularies, against the tokenizers and sentencepiece
// packages of PyPI (tests/support/tokenizer_cases.py writes tests/data/tokenizers/kinds.json).
#include "text/tokenizer.hpp"

#include "unit/text/text_support.hpp"

using namespace decant_test;
using Ids = std::vector<Token>;

static OwnVocabulary vocabulary_of(const nlohmann::json& data) {
  OwnVocabulary own;
  own.tokens = data["tokens"].get<std::vector<std::string>>();
  own.v.model = data["model"] == "bert" ? "bert" : "t5";
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

TEST_CASE("WordPiece and unigram: ids and texts of the reference implementations") {
  const auto data = text_data("kinds.json");
  CHECK(data.size() == 4);
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
