// Small vocabularies and helpers for the tests of text.
#pragma once

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "format/gguf.hpp"
#include "support/catch.hpp"
#include "text/tokenizer.hpp"

namespace decant_test {

using decant::Token;
using decant::detail::TextSpan;
using decant::detail::Tokenizer;
using decant::detail::TokenType;
using decant::detail::Vocabulary;

/// A vocabulary that owns its texts.
struct OwnVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  Vocabulary v;

  Token add(std::string text, TokenType type = TokenType::normal, float score = 0) {
    tokens.push_back(std::move(text));
    v.types.push_back(type);
    v.scores.push_back(score);
    return static_cast<Token>(tokens.size() - 1);
  }
  /// A merge and the piece that it makes.
  Token merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
  const Vocabulary& view() {
    v.tokens.assign(tokens.begin(), tokens.end());
    v.merges.assign(merges.begin(), merges.end());
    return v;
  }
  std::unique_ptr<Tokenizer> make() {
    auto t = Tokenizer::create(view());
    if (!t) FAIL(t.error().message());
    return *std::move(t);
  }
};

/// GPT-2's printable character for a byte, as UTF-8; written from the published table.
inline std::string gpt2_character(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int c = byte;
  if (!printable(byte)) {
    c = 256;
    for (int b = 0; b < byte; ++b) c += !printable(b);
  }
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

/// Byte-level BPE: token b is byte b; then the caller's own pieces.
inline OwnVocabulary byte_level(std::string_view pre = "gpt-2") {
  OwnVocabulary own;
  own.v.model = "gpt2";
  own.v.pre = pre;
  for (int b = 0; b < 256; ++b) own.add(gpt2_character(b));
  return own;
}

/// SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3 + b the byte b; then the caller's own pieces.
inline OwnVocabulary sentence_piece() {
  OwnVocabulary own;
  own.v.model = "llama";
  own.v.pre = "default";
  own.add("<unk>", TokenType::unknown);
  own.v.bos = own.add("<s>", TokenType::control);
  own.v.eos = own.add("</s>", TokenType::control);
  own.v.unk = 0;
  constexpr const char* kDigits = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    own.add(std::string("<0x") + kDigits[b >> 4] + kDigits[b & 15] + ">", TokenType::byte);
  }
  return own;
}

inline std::vector<Token> ids(const Tokenizer& t, std::vector<TextSpan> spans) {
  std::vector<Token> out;
  const auto status = t.tokenize(spans, out);
  if (!status) FAIL(status.error().message());
  return out;
}
inline std::vector<Token> ids(const Tokenizer& t, std::string_view text, bool special = true) {
  return ids(t, {TextSpan{text, special}});
}
inline std::string text_of(const Tokenizer& t, const std::vector<Token>& tokens) {
  std::string out;
  const auto status = t.detokenize(tokens, out);
  if (!status) FAIL(status.error().message());
  return out;
}

inline std::unique_ptr<Tokenizer> tokenizer_of_file(const std::string& path) {
  auto file = decant::detail::Gguf::open(std::string_view(path), false);
  if (!file) FAIL(file.error().message());
  auto vocabulary = decant::detail::read_vocabulary(*file);
  if (!vocabulary) FAIL(vocabulary.error().message());
  auto t = Tokenizer::create(*vocabulary);
  if (!t) FAIL(t.error().message());
  return *std::move(t);
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) FAIL("cannot open " << path);
  return nlohmann::json::parse(file);
}
inline nlohmann::json text_data(const std::string& name) {
  return read_json(DECANT_TEST_DATA "/tokenizers/" + name);
}

inline std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

}  // namespace decant_test
