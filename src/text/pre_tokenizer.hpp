// Pre-tokenizers of byte-level BPE by their names in GGUF files: they cut a text into the pieces in
// which bytes are merged. A pre-tokenizer is a short list of steps, each a matcher written by hand
// for one regular expression of the model's tokenizer; the step cuts every piece of the step before
// it at the beginning and the end of each match. Time is linear in the text, the stack constant.
#pragma once

#include <cstddef>
#include <string_view>

namespace decant::detail {

struct PreTokenMatch {
  std::size_t begin, end;
};

/// The first match of the step's expression at or after `from` (inside the text), which is the
/// beginning of the text or the end of the match before. No match: {text.size(), text.size()}. Any
/// bytes: what is not UTF-8 counts, byte by byte, as a symbol, as U+FFFD is one.
using PreTokenStep = PreTokenMatch (*)(std::string_view text, std::size_t from);

struct PreTokenizer {
  static constexpr std::size_t kMaxSteps = 6;

  std::string_view names;  ///< values of tokenizer.ggml.pre, separated by spaces
  PreTokenStep steps[kMaxSteps];
  bool ignore_merges = false;  ///< a piece that is in the vocabulary is not merged but taken
  bool add_bos = false;        ///< unless the file says otherwise
  /// Pieces are merged from characters instead of bytes, spaces are written U+2581, and characters
  /// that are no piece are written in byte pieces, as in SentencePiece.
  bool characters = false;
  bool whole_newlines = false;  ///< as ignore_merges, for runs of newlines alone
  bool space_prefix = false;  ///< a space goes in front of every line that does not begin with one
  /// What the last step does not match is dropped, and U+2581 is a character like any other.
  bool words_only = false;

  /// Calls use(piece) for the pieces of a text, in order.
  template <class Use>
  void split(std::string_view text, Use&& use, std::size_t step = 0) const {
    if (step == kMaxSteps || !steps[step]) {
      use(text);
      return;
    }
    for (std::size_t from = 0; from < text.size();) {
      const PreTokenMatch match = steps[step](text, from);
      if (match.begin > from && !words_only)
        split(text.substr(from, match.begin - from), use, step + 1);
      if (match.end > match.begin) {
        split(text.substr(match.begin, match.end - match.begin), use, step + 1);
      }
      from = match.end;
    }
  }
};

/// What files without a name get.
inline constexpr std::string_view kDefaultPreTokenizer = "default";

/// nullptr: not known.
const PreTokenizer* find_pre_tokenizer(std::string_view name);

}  // namespace decant::detail
