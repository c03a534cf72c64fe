// PLaMo 2's tokenizer: of all ways to write a text in pieces the one with the greatest sum of
// scores, each rounded to 1e-4. A character that is no piece counts -1000 and is written in byte
// pieces. Of equal sums the one with the longest piece counts, at each place from left to right.
#pragma once

#include <array>
#include <cstdint>

#include "text/automaton.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

class Plamo2Tokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  struct Step {  // the best way to write the text from a place on
    std::int64_t cost;
    Token token;           // the first piece; -1: a character in byte pieces
    std::uint32_t length;  // of it, in bytes
  };

  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  PatternAutomaton reversed_;           // of the pieces that texts are written in, read backwards
  std::vector<Token> tokens_;           // [n_patterns]
  std::vector<std::int32_t> costs_;     // [n_patterns] in units of 1e-4
  std::array<Token, 256> byte_tokens_;  // all there
};

}  // namespace decant::detail
