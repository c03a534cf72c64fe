// StopStrings never stores what it holds: that is the suffix its automaton's state stands for, the
// beginning of a stop string.
#include "text/stream.hpp"

#include <algorithm>
#include <cstring>

#include "text/unicode.hpp"

namespace decant::detail {

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  while (n_held_ > 0 && !bytes.empty()) {
    held_[n_held_++] = bytes.front();
    bytes.remove_prefix(1);
    while (n_held_ > 0) {
      const Utf8Char c = utf8_decode({held_, n_held_});
      if (c.state == Utf8::incomplete) break;
      out.append(held_, c.length);
      n_held_ -= c.length;
      std::memmove(held_, held_ + c.length, n_held_);
    }
  }
  std::size_t end = 0;
  while (end < bytes.size()) {
    const Utf8Char c = utf8_decode(bytes.substr(end));
    if (c.state == Utf8::incomplete) break;
    end += c.length;
  }
  out.append(bytes, 0, end);
  // If something is left, nothing was held: the loop above ends with one of them empty.
  n_held_ += bytes.copy(held_ + n_held_, bytes.size() - end, end);
}

void Utf8Stream::finish(std::string& out) {
  out.append(held_, n_held_);
  n_held_ = 0;
}

Result<StopStrings> StopStrings::create(std::span<const std::string> stops) {
  StopStrings result;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty()) continue;
    return make_error(ErrorCode::invalid_argument, "stop string {} is empty; leave it out", i);
  }
  result.stops_.assign(stops.begin(), stops.end());
  result.automaton_ =
      PatternAutomaton(std::vector<std::string_view>(result.stops_.begin(), result.stops_.end()));
  return result;
}

std::string_view StopStrings::held_text() const {
  if (state_ == PatternAutomaton::kStart) return {};
  return std::string_view(stops_[automaton_.pattern(state_)]).substr(0, held());
}

bool StopStrings::push(std::string_view bytes, std::string& out) {
  if (found_) return true;
  const std::string_view before = held_text();
  const std::uint64_t begin = position_ - before.size();  // of what is not yet out
  const auto append = [&](std::uint64_t to) {             // all from `begin` to there
    std::uint64_t n = to - begin;
    out.append(before, 0, static_cast<std::size_t>(n));
    n -= std::min<std::uint64_t>(n, before.size());
    out.append(bytes, 0, static_cast<std::size_t>(n));
  };
  for (const char byte : bytes) {
    state_ = automaton_.step(state_, byte);
    ++position_;
    const auto longest = automaton_.longest(state_);
    if (longest != PatternAutomaton::kStart) {
      match_ = std::min(match_, position_ - automaton_.depth(longest));
    }
    // Every stop string still open begins at or after the held suffix.
    if (match_ <= position_ - held()) {
      append(match_);
      found_ = true;
      state_ = PatternAutomaton::kStart;
      return true;
    }
  }
  append(position_ - held());
  return false;
}

bool StopStrings::finish(std::string& out) {
  if (found_) return true;
  const std::string_view rest = held_text();
  found_ = match_ != kNoMatch;
  out.append(rest, 0,
             found_ ? static_cast<std::size_t>(match_ - (position_ - rest.size())) : rest.size());
  state_ = PatternAutomaton::kStart;
  return found_;
}

}  // namespace decant::detail
