// Pre-tokenizers of byte-level BPE by their names in GGUF files: they cut a text into the pieces in
// which bytes are merged. Each is a matcher written by hand for the regular expression of the
// model's tokenizer; it looks at a run of equal characters a constant number of times and uses
// constant stack.
#pragma once

#include <cstddef>
#include <string_view>

namespace decant::detail {

struct PreTokenizer {
  std::string_view name;  ///< tokenizer.ggml.pre
  /// Where the piece that begins at `begin` (inside the text) ends. Any bytes: what is not UTF-8
  /// counts as punctuation, byte by byte.
  std::size_t (*next)(std::string_view text, std::size_t begin);
  bool ignore_merges;  ///< a piece that is in the vocabulary is not merged but taken
  bool add_bos;        ///< unless the file says otherwise
};

/// nullptr: not known.
const PreTokenizer* find_pre_tokenizer(std::string_view name);

}  // namespace decant::detail
