// Text to token ids and back. A Tokenizer is built from a Vocabulary and keeps its own copy of what
// it needs. Here: what all kinds share (pieces, special tokens, end tokens, splitting a text at
// special tokens); the kinds themselves are in bpe.cpp, spm.cpp, unigram.cpp, word_piece.cpp,
// rwkv.cpp and plamo2.cpp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/piece_table.hpp"
#include "text/special_tokens.hpp"
#include "text/vocabulary.hpp"

namespace decant::detail {

/// A part of a text. In a special part, text that looks like a control token becomes that token
/// (template text); elsewhere it stays text (content).
struct TextSpan {
  std::string_view text;
  bool special = false;
};

/// The longest text that can be tokenised, in bytes.
inline constexpr std::size_t kMaxTextBytes = 0x7fffffff;

/// Immutable and thread-safe after creation.
class Tokenizer {
 public:
  /// Errors: unsupported (names the model or pre-tokenizer this build does not know), invalid_file.
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);
  virtual ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Appends the ids of the spans, which are one text: any bytes, no begin token added. Control
  /// tokens are recognised only inside special spans (neighbouring ones count as one), user-defined
  /// pieces everywhere; what lies between is tokenised across the borders of spans. Bytes for which
  /// a byte-level vocabulary has no piece are dropped, as its own tokenizer does.
  /// Errors: invalid_argument (more than kMaxTextBytes bytes); then `out` is unchanged.
  Status tokenize(std::span<const TextSpan> spans, std::vector<Token>& out) const;

  /// Appends the text of the tokens: the bytes of the pieces one after another, without the space
  /// that the tokenizer itself puts in front of a text and after control tokens.
  /// Errors: invalid_argument (an id outside the vocabulary); then `out` is unchanged.
  Status detokenize(std::span<const Token> tokens, std::string& out) const;

  /// The bytes of one token, special tokens by their text; empty for unused tokens and for ids
  /// outside the vocabulary. Lives as long as the tokenizer.
  std::string_view piece_bytes(Token token) const noexcept;

  /// The model ends its turn with this token: the file's eos and eot, and special tokens whose text
  /// is a known end of a turn or text.
  bool is_end(Token token) const noexcept;
  std::span<const Token> end_tokens() const noexcept { return end_tokens_; }  ///< ascending
  std::optional<Token> bos() const noexcept { return bos_; }
  bool add_bos() const noexcept { return add_bos_; }  ///< raw text begins with bos(), which exists
  /// What raw text ends with, if anything: the end of the text, or BERT's separator.
  std::optional<Token> closing() const noexcept { return closing_; }
  std::size_t size() const noexcept { return pieces_.size(); }
  std::string_view kind() const noexcept { return kind_; }  ///< "gpt2/smollm", "llama", ...
  /// What this object holds.
  std::size_t memory_bytes() const noexcept;

 protected:
  Tokenizer() = default;
  /// The ids of a text, not empty, in which no special token is left.
  virtual Status tokenize_text(std::string_view text, std::vector<Token>& out) const = 0;
  virtual std::size_t table_bytes() const noexcept = 0;

  std::size_t after_special(std::string_view text, const SpecialTokens::Match& match) const;

  Pieces pieces_;
  SpecialTokens specials_;
  std::vector<Token> end_tokens_;
  std::vector<bool> is_special_;  // [n_vocab] control, unknown or user-defined
  std::optional<Token> bos_, closing_;
  bool add_bos_ = false;
  bool phi3_ = false;
  bool space_prefix_ = false;  // a space goes in front of every text and after special tokens
  std::string kind_;
};

}  // namespace decant::detail
