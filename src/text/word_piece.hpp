// WordPiece (Schuster and Nakajima 2012; BERT's form): the text is cleaned, split at spaces and
// around punctuation and Han characters, and each word is written with the longest pieces that fit,
// from left to right. GGUF files mark the pieces that begin a word with U+2581; here with a space.
#pragma once

#include "text/tokenizer.hpp"

namespace decant::detail {

class WordPieceTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  void append_normalized(std::uint32_t c, std::string& out) const;
  void add_word(std::string_view word, std::vector<Token>& out) const;
  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  PieceTable table_;
  std::size_t longest_piece_ = 0;  // bytes
  Token unknown_ = 0;
  bool lowercase_ = true;
  bool strip_accents_ = true;
};

}  // namespace decant::detail
