// Finds many byte strings in one pass over a text: the automaton of Aho and Corasick ("Efficient
// string matching", 1975). A state is the longest suffix of the bytes seen that begins a pattern.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace decant::detail {

/// Immutable after creation. Holds 28 bytes for each byte of the patterns.
class PatternAutomaton {
 public:
  using State = std::uint32_t;
  static constexpr State kStart = 0;

  PatternAutomaton() : PatternAutomaton(std::vector<std::string_view>()) {}
  /// The views are not kept. Empty patterns are never found; of equal ones the first is.
  explicit PatternAutomaton(const std::vector<std::string_view>& patterns);

  /// The state after one more byte; constant time on average over a text.
  State step(State state, char byte) const;
  /// The length of the suffix that the state stands for.
  std::uint32_t depth(State state) const { return nodes_[state].depth; }
  /// A pattern that begins with that suffix. Only if there is any pattern.
  std::uint32_t pattern(State state) const { return nodes_[state].pattern; }
  /// The state of the longest pattern that ends here, or kStart if none does; its depth is the
  /// pattern's length and pattern() the pattern.
  State longest(State state) const { return nodes_[state].longest; }
  /// The next shorter pattern that ends where this one does, or kStart.
  State shorter(State match) const { return nodes_[nodes_[match].fail].longest; }
  std::size_t memory_bytes() const noexcept { return nodes_.capacity() * sizeof(Node); }

 private:
  struct Node {
    std::uint32_t first_child = 0;  // children lie side by side, ascending by byte
    std::uint32_t end_child = 0;
    State fail = kStart;  // the longest proper suffix that is a state
    State longest = kStart;
    std::uint32_t depth = 0;
    std::uint32_t pattern = 0;
    std::uint8_t byte = 0;  // the last one
  };
  State child(State state, std::uint8_t byte) const;  // kStart: none

  std::vector<Node> nodes_;            // breadth first; nodes_[0] is the start
  std::array<State, 256> start_next_;  // step(kStart, byte)
};

}  // namespace decant::detail
