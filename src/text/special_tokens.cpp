// Two automata over reversed texts: one for what is found everywhere, one for control tokens.
#include "text/special_tokens.hpp"

#include <algorithm>

namespace decant::detail {

SpecialTokens::Set::Set(std::vector<Entry> entries) {
  std::vector<std::string_view> patterns;
  for (Entry& entry : entries) {
    std::reverse(entry.text.begin(), entry.text.end());
    patterns.push_back(entry.text);
    tokens.push_back(entry.token);
  }
  reversed = PatternAutomaton(patterns);
}

void SpecialTokens::Set::find(std::string_view text, Range range, std::vector<Match>& out) const {
  if (tokens.empty()) return;
  auto state = PatternAutomaton::kStart;
  for (std::size_t i = range.end; i-- > range.begin;) {
    state = reversed.step(state, text[i]);
    const auto match = reversed.longest(state);
    if (match == PatternAutomaton::kStart) continue;
    out.push_back({{i, i + reversed.depth(match)}, tokens[reversed.pattern(match)]});
  }
}

std::vector<SpecialTokens::Match> SpecialTokens::find(std::string_view text,
                                                      std::span<const Range> special) const {
  std::vector<Match> candidates[2];  // by falling begin
  always_.find(text, {0, text.size()}, candidates[0]);
  for (std::size_t i = special.size(); i-- > 0;) control_.find(text, special[i], candidates[1]);

  std::vector<Match> matches;
  std::size_t from = 0;
  for (;;) {
    const Match* best = nullptr;
    for (auto& list : candidates) {
      while (!list.empty() && list.back().begin < from) list.pop_back();
      if (list.empty()) continue;
      const Match& match = list.back();
      if (!best || match.begin < best->begin ||
          (match.begin == best->begin && match.end > best->end)) {
        best = &match;
      }
    }
    if (!best) return matches;
    matches.push_back(*best);
    from = best->end;
  }
}

std::size_t SpecialTokens::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Set* set : {&always_, &control_}) {
    bytes += set->reversed.memory_bytes() + set->tokens.capacity() * sizeof(Token);
  }
  return bytes;
}

}  // namespace decant::detail
