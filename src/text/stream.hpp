// Turns the bytes of generated tokens into text as it arrives: StopStrings first (it works on bytes
// and cuts the text before a stop string), then Utf8Stream (it lets only whole characters out), so
// that streamed text is exactly the text that is not streamed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace decant::detail {

/// Holds back the beginning of a UTF-8 character until its end arrives. Everything that comes out,
/// together, is exactly what went in.
class Utf8Stream {
 public:
  /// Appends to `out` whole characters, and unchanged the bytes that can no longer become one
  /// (strict UTF-8: over-long forms, surrogates and values above U+10FFFF end at their second byte).
  void push(std::string_view bytes, std::string& out);
  /// Appends the incomplete rest as it is.
  void finish(std::string& out);
  std::size_t held() const noexcept { return n_held_; }  ///< bytes, 0..3

 private:
  char held_[4] = {};
  std::size_t n_held_ = 0;
};

/// Finds the first of some stop strings in a stream of bytes: the match that begins earliest,
/// whatever the borders of the pieces pushed. Time is linear in the bytes pushed.
class StopStrings {
 public:
  StopStrings() = default;  ///< no stop strings: everything passes
  /// Errors: invalid_argument (an empty stop string).
  static Result<StopStrings> create(std::span<const std::string> stops);

  /// Appends to `out` the bytes that can no longer be part of a stop string, at most up to the
  /// match; only the longest suffix that a stop string could begin with is held. True once a stop
  /// string was found: then nothing is held and further pushes are ignored.
  bool push(std::string_view bytes, std::string& out);
  /// The end of the stream: appends what is held. True if a stop string was found, perhaps only
  /// now.
  bool finish(std::string& out);
  bool found() const noexcept { return found_; }
  std::size_t held() const noexcept { return held_.size(); }  ///< bytes

 private:
  bool found_ = false;
  std::string held_;
};

}  // namespace decant::detail
