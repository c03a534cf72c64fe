// Finds special tokens in a text: leftmost first, the longest of those that begin there, in time
// linear in the text. A pass from right to left over the reversed texts gives, at each place, the
// longest one that begins there.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <decant/decant.hpp>

#include "text/automaton.hpp"

namespace decant::detail {

/// Thread-safe after creation.
class SpecialTokens {
 public:
  struct Entry {
    std::string text;  // not empty; the first of equal ones counts
    Token token;
  };
  struct Range {
    std::size_t begin, end;
  };
  struct Match : Range {
    Token token;
  };

  SpecialTokens() = default;
  /// `always`: found everywhere. `control`: found only inside ranges that allow it.
  SpecialTokens(std::vector<Entry> always, std::vector<Entry> control)
      : always_(std::move(always)), control_(std::move(control)) {}

  /// The matches, in order and without overlap. `special`: where control tokens count, ascending,
  /// without overlap.
  std::vector<Match> find(std::string_view text, std::span<const Range> special) const;
  std::size_t memory_bytes() const noexcept;

 private:
  struct Set {
    Set() = default;
    explicit Set(std::vector<Entry> entries);
    /// Appends the longest match that begins at each place of the range, from right to left.
    void find(std::string_view text, Range range, std::vector<Match>& out) const;

    PatternAutomaton reversed;
    std::vector<Token> tokens;  // [n_entries]
  };
  Set always_, control_;
};

}  // namespace decant::detail
