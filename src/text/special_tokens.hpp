// Finds special tokens in a text, leftmost first and longest among those, in time linear in the
// text: Aho-Corasick (Aho and Corasick 1975) over a byte trie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <decant/decant.hpp>

namespace decant::detail {

/// Add all texts, then find. Finding is thread-safe.
class SpecialTokens {
 public:
  struct Match {
    std::size_t begin, end;
    Token token;
  };

  /// `control`: found only where `find` is told that control tokens count. The first of equal
  /// texts wins; an empty text is ignored.
  void add(std::string_view text, Token token, bool control);
  /// Call once, after the last `add`.
  void build();

  /// All matches in text that do not overlap, in order; control tokens only if `control`.
  void find(std::string_view text, bool control, std::vector<Match>& out) const;
  std::size_t memory_bytes() const noexcept;
};

}  // namespace decant::detail
