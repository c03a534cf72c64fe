// Byte pair encoding (Sennrich et al. 2016): a pre-tokenizer cuts the text into pieces; in each,
// the pair of neighbours with the best rank is merged until none is left. GPT-2's form starts from
// bytes and writes them as printable characters; Gemma 4's starts from characters and falls back to
// byte pieces. Here pieces are plain bytes.
#pragma once

#include <array>
#include <cstdint>

#include "text/pattern.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

class BpeTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

 private:
  // A merge may lead to a text that is no piece of the vocabulary, from which others go on. Such
  // texts have numbers too, size() and above; -1 is a character without any.
  struct Merge {
    Token left, right, result;
  };
  struct Symbol {
    Token token;  // -1 also: merged into its left neighbour
    std::uint32_t begin, previous, next;
  };
  struct Candidate {
    std::uint32_t rank, left, right;
    bool operator>(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : left > o.left;
    }
  };
  struct CachedWord {  // of at most 15 bytes and 3 tokens
    std::uint64_t key[2] = {};
    Token tokens[3] = {};
    std::uint32_t n_tokens = 0;  // 0: empty
  };
  struct Work {  // reused from piece to piece
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<CachedWord> words;  // a power of two; texts repeat their words
  };

  std::string_view normalize(std::string_view text, std::string& room) const;
  void read_merges(const Vocabulary& vocabulary);
  bool append_piece(std::string_view text, TokenType type, std::string& out) const;
  std::size_t find_slot(Token left, Token right) const;
  void add_candidate(Work& work, std::uint32_t left, std::uint32_t right) const;
  static std::size_t joint(char left, char right) {
    return static_cast<std::uint8_t>(left) * 256u + static_cast<std::uint8_t>(right);
  }
  bool joined(char left, char right) const { return joined_[joint(left, right)]; }
  void merge_symbols(std::string_view text, Work& work, std::vector<Token>& out) const;
  void merge_piece(std::string_view piece, Work& work, std::vector<Token>& out) const;
  void add_piece(std::string_view piece, Work& work, std::vector<Token>& out) const;
  Status tokenize_text(std::string_view text, std::vector<Token>& out) const override;
  std::size_t table_bytes() const noexcept override;

  const PreTokenizer* pre_ = nullptr;
  std::shared_ptr<const Pattern> pattern_;  // instead of pre_'s steps, or null
  std::array<Token, 256> byte_tokens_;      // -1: none
  std::vector<Merge> merges_;               // by rank
  std::vector<std::uint32_t> slots_;        // ranks by hash of (left, right), a power of two
  std::uint64_t seed_ = 0;                  // of that hash
  std::vector<bool> joined_;                // [256][256] a merge joins these two bytes
  PieceTable table_;                        // only if whole pieces are looked up
  bool lowercase_ = false;
};

}  // namespace decant::detail
