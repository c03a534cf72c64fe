// The vocabulary of a GGUF file as validated plain data: pieces, scores, types, merges and the
// special ids (metadata keys tokenizer.ggml.* and tokenizer.chat_template). It does not decide
// whether a tokenizer for it exists; text/tokenizer.hpp does.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace decant::detail {

class Gguf;

/// Values as in the files (tokenizer.ggml.token_type).
enum class TokenType : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

/// All views point into the Gguf and live as long as it does.
struct Vocabulary {
  std::string_view model;  ///< "gpt2", "llama", "bert", "t5", ...
  std::string_view pre;    ///< the pre-tokenizer's name; "default" if the file has none
  std::string_view
      pattern;  ///< the host's expression for a pre-tokenizer that is not known, or empty
  std::vector<std::string_view> tokens;  // [n_vocab]
  std::vector<float> scores;             // [n_vocab], or empty
  std::vector<TokenType> types;          // [n_vocab]; all normal if the file says nothing
  std::vector<std::string_view> merges;  ///< "left right", best first
  std::optional<Token> bos, eos, eot, unk, cls, sep;  ///< of the vocabulary
  // Empty: the tokenizer's default.
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::optional<bool> lowercase, strip_accents;  ///< of WordPiece's normalizer
  bool phi3 = false;  ///< the model is a Phi 3, whose special tokens take the spaces behind them
  std::vector<std::uint8_t> charsmap;  ///< SentencePiece's normalizer, or empty
  std::string_view chat_template;      ///< Jinja source, or empty
  std::vector<std::string> warnings;   ///< what of the file was ignored

  /// Errors: invalid_file (a score that is to be compared is not a finite number).
  Status check_score(std::size_t token) const;
  std::size_t token_bytes() const {
    std::size_t n = 0;
    for (const std::string_view token : tokens) n += token.size();
    return n;
  }
};

/// Errors: unsupported (the file has no vocabulary), invalid_file naming the key (a value of a
/// wrong type, sizes that differ, unknown token types). A special id outside the vocabulary is
/// absent, with a warning. Scores may be any floats: the tokenizers check those they use.
Result<Vocabulary> read_vocabulary(const Gguf& file);

}  // namespace decant::detail
