// SentencePiece's BPE (Kudo and Richardson 2018): starting from single characters, the neighbours
// that make the piece with the best score are merged until none is left; what is no piece then is
// written in byte pieces. Pieces mark spaces with U+2581; here they are plain spaces, and a U+2581
// in a text counts as one, as it does there.
#pragma once

#include <array>
#include <cstdint>

#include "text/tokenizer.hpp"

namespace decant::detail {

class SpmTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  struct Symbol {
    std::uint32_t begin, length;  // of the text; length 0: merged into its left neighbour
    std::uint32_t previous, next;
    Token token;  // -1: not known yet
  };
  struct Candidate {  // a symbol and the next one
    float score;
    std::uint32_t left;
    Token token;  // that they would make
    bool operator<(const Candidate& o) const {
      return score != o.score ? score < o.score : left > o.left;
    }
  };
  struct Work {
    std::string_view text;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    bool after_unknown = false;  // neighbouring unknown characters are one unknown token
  };

  bool joined(char left, char right) const {
    return joined_[static_cast<std::uint8_t>(left) * 256u + static_cast<std::uint8_t>(right)];
  }
  void merge_symbols(Work& work, std::vector<Token>& out) const;
  void add_candidate(Work& work, std::uint32_t left, std::uint32_t right) const;
  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  PieceTable table_;
  std::vector<float> scores_;           // [n_vocab]
  std::vector<bool> joined_;            // [256][256] some piece holds these two bytes side by side
  std::array<Token, 256> byte_tokens_;  // -1: none
  Token unknown_ = -1;                  // -1: none
  std::size_t longest_piece_ = 0;       // bytes
};

}  // namespace decant::detail
