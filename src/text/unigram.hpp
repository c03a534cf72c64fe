// SentencePiece's unigram model (Kudo 2018; T5, XLM-R): the text is normalized, and of all ways to
// write it in pieces the one with the greatest sum of scores is taken (Viterbi).
#pragma once

#include <array>
#include <cstdint>

#include "text/charsmap.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

class UnigramTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  struct Step {  // the best way to write the text up to a place
    double score;
    Token token;  // the last piece; -1: a character that is no piece
    std::uint32_t begin;
  };

  std::string normalize(std::string_view text) const;
  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  Charsmap charsmap_;
  PatternAutomaton automaton_;          // of the pieces that texts are written in
  std::vector<Token> tokens_;           // [n_patterns]
  std::vector<float> scores_;           // [n_vocab]
  std::array<Token, 256> byte_tokens_;  // -1: none
  double unknown_score_ = 0;
  Token unknown_ = 0;
  bool remove_extra_spaces_ = true;
};

}  // namespace decant::detail
