// Builds the trie breadth first from the sorted patterns: a node is a range of patterns that share
// their first `depth` bytes. Suffix links of a level follow from those of the levels above.
#include "text/automaton.hpp"

#include <algorithm>
#include <numeric>

namespace decant::detail {

PatternAutomaton::PatternAutomaton(const std::vector<std::string_view>& patterns) {
  std::vector<std::uint32_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return patterns[a] < patterns[b]; });

  struct Range {
    std::uint32_t begin, end;  // of `order`
  };
  std::vector<Range> ranges = {{0, static_cast<std::uint32_t>(order.size())}};  // [n_nodes]
  nodes_.emplace_back();
  start_next_.fill(kStart);
  for (State at = 0; at < nodes_.size(); ++at) {
    auto [begin, end] = ranges[at];
    const std::uint32_t depth = nodes_[at].depth;
    const auto ends_here = [&](std::uint32_t i) { return patterns[order[i]].size() == depth; };
    nodes_[at].longest = nodes_[nodes_[at].fail].longest;
    if (begin < end) nodes_[at].pattern = order[begin];
    if (depth > 0 && ends_here(begin)) nodes_[at].longest = at;
    while (begin < end && ends_here(begin)) ++begin;

    nodes_[at].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = patterns[order[begin]][depth];
      std::uint32_t stop = begin;
      while (stop < end && patterns[order[stop]][depth] == byte) ++stop;
      Node node;
      node.byte = static_cast<std::uint8_t>(byte);
      node.depth = depth + 1;
      node.fail = at == kStart ? kStart : step(nodes_[at].fail, byte);
      if (at == kStart) start_next_[node.byte] = static_cast<State>(nodes_.size());
      nodes_.push_back(node);
      ranges.push_back({begin, stop});
      begin = stop;
    }
    nodes_[at].end_child = static_cast<std::uint32_t>(nodes_.size());
  }
  nodes_.shrink_to_fit();
}

PatternAutomaton::State PatternAutomaton::child(State state, std::uint8_t byte) const {
  const auto begin = nodes_.begin() + nodes_[state].first_child;
  const auto end = nodes_.begin() + nodes_[state].end_child;
  const auto it = std::lower_bound(begin, end, byte,
                                   [](const Node& node, std::uint8_t b) { return node.byte < b; });
  if (it == end || it->byte != byte) return kStart;
  return static_cast<State>(it - nodes_.begin());
}

PatternAutomaton::State PatternAutomaton::step(State state, char byte) const {
  const auto b = static_cast<std::uint8_t>(byte);
  while (state != kStart) {
    if (const State next = child(state, b); next != kStart) return next;
    state = nodes_[state].fail;
  }
  return start_next_[b];
}

}  // namespace decant::detail
