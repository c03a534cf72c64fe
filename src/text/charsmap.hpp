// SentencePiece's normalizer as its models carry it (precompiled_charsmap): a double array trie
// (Yata et al. 2007, in the layout of darts-clone) from texts to replacements, laid out as
//   size of the trie in bytes (32 bits), trie (32 bits a node), replacements (each ends with a 0).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace decant::detail {

class Charsmap {
 public:
  /// Longer keys and replacements than honest ones are not found, so that time and output stay in
  /// proportion to the text whatever the trie says.
  static constexpr std::size_t kMaxBytes = 256;

  Charsmap() = default;  ///< replaces nothing
  /// Errors: invalid_file (sizes that do not fit).
  static Result<Charsmap> create(std::vector<std::uint8_t> bytes);

  struct Match {
    std::size_t length;  ///< bytes of the text, 0 if nothing is replaced
    std::string_view replacement;
  };
  /// The longest key that the text begins with.
  Match find(std::string_view text) const;
  std::size_t memory_bytes() const noexcept { return trie_.capacity() * 4 + texts_.capacity(); }

 private:
  std::vector<std::uint32_t> trie_;
  std::string texts_;
};

}  // namespace decant::detail
