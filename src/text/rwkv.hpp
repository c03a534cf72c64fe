// RWKV's "world" tokenizer: the longest piece that fits, again and again from left to right. Files
// write the bytes of a piece as Python does in a bytes literal: \t, \n, \r, \xff; a backslash takes
// any other character as it is.
#pragma once

#include "text/automaton.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

class RwkvTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  PatternAutomaton reversed_;  // of the pieces that texts are written in, read backwards
  std::vector<Token> tokens_;  // [n_patterns]
  std::optional<Token> unknown_;
};

}  // namespace decant::detail
