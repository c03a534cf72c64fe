// Turns the bytes of generated tokens into text as it arrives: StopStrings first (it works on bytes
// and cuts the text before a stop string), then Utf8Stream (it lets only whole characters out), so
// that streamed text is exactly the text that is not streamed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/automaton.hpp"

namespace decant::detail {

/// Holds back the beginning of a UTF-8 character until its end arrives. Everything that comes out,
/// together, is exactly what went in.
class Utf8Stream {
 public:
  /// Appends to `out` whole characters, and unchanged the bytes that can no longer become one
  /// (strict UTF-8: over-long forms, surrogates and values above U+10FFFF end at their second
  /// byte).
  void push(std::string_view bytes, std::string& out);
  /// Appends the incomplete rest as it is.
  void finish(std::string& out);
  std::size_t held() const noexcept { return n_held_; }  ///< bytes, 0..3

 private:
  char held_[4] = {};
  std::size_t n_held_ = 0;
};

/// Finds the first of some stop strings in a stream of bytes: the match that begins earliest,
/// whatever the borders of the pieces pushed and whichever match ends first. Time is linear in the
/// bytes pushed.
class StopStrings {
 public:
  StopStrings() = default;  ///< no stop strings: everything passes
  /// Errors: invalid_argument (an empty stop string).
  static Result<StopStrings> create(std::span<const std::string> stops);

  /// Appends to `out` the bytes that can no longer be part of a match, at most up to where it
  /// begins; only the longest suffix that a stop string begins with is held. True once it is
  /// certain where the first match begins: then nothing is held and further pushes are ignored.
  bool push(std::string_view bytes, std::string& out);
  /// The end of the stream. A match that still waited for an earlier one to complete counts now;
  /// otherwise what is held is appended. True if there was a match.
  bool finish(std::string& out);
  bool found() const noexcept { return found_; }
  std::size_t held() const noexcept { return automaton_.depth(state_); }  ///< bytes

 private:
  static constexpr std::uint64_t kNoMatch = UINT64_MAX;
  std::string_view held_text() const;

  PatternAutomaton automaton_;
  std::vector<std::string> stops_;
  PatternAutomaton::State state_ = PatternAutomaton::kStart;  // what it stands for is held

  std::uint64_t position_ = 0;      // bytes pushed
  std::uint64_t match_ = kNoMatch;  // where the earliest complete match so far begins
  bool found_ = false;
};

}  // namespace decant::detail
