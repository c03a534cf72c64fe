// Streaming: whole characters only, and stop strings whatever the borders of the pieces.
#include "text/stream.hpp"

#include <random>

#include "support/catch.hpp"

using namespace decant::detail;

namespace {

// Strict UTF-8 by the table of well-formed sequences in the Unicode standard (table 3-7).
bool well_formed_prefix(const std::string& s, std::size_t& length) {
  static constexpr unsigned char kRows[][10] = {
      // length, then low and high of each byte
      {1, 0x00, 0x7f},
      {2, 0xc2, 0xdf, 0x80, 0xbf},
      {3, 0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
      {3, 0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
      {3, 0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
      {3, 0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
      {4, 0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
      {4, 0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
      {4, 0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf},
  };
  for (const auto& row : kRows) {
    bool fits = s.size() <= row[0];
    for (std::size_t i = 0; fits && i < s.size(); ++i) {
      const auto b = static_cast<unsigned char>(s[i]);
      fits = b >= row[1 + 2 * i] && b <= row[2 + 2 * i];
    }
    if (fits) {
      length = row[0];
      return true;
    }
  }
  return false;
}

// What may have come out after `in` bytes: everything but a tail that is a proper prefix of a
// well-formed character.
std::size_t expected_out(const std::string& in) {
  for (std::size_t tail = std::min<std::size_t>(3, in.size()); tail > 0; --tail) {
    std::size_t length = 0;
    if (!well_formed_prefix(in.substr(in.size() - tail), length) || length <= tail) continue;
    return in.size() - tail;  // lead bytes and continuation bytes never mix up: one tail at most
  }
  return in.size();
}

std::string stream_one_by_one(const std::string& in) {
  Utf8Stream stream;
  std::string out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    stream.push(in.substr(i, 1), out);
    REQUIRE(out == in.substr(0, expected_out(in.substr(0, i + 1))));
    REQUIRE(stream.held() == i + 1 - out.size());
  }
  stream.finish(out);
  REQUIRE(stream.held() == 0);
  return out;
}

const std::string kText =
    "\xec\x82\xbc\xea\xb2\xb9\xec\x82\xb4 "  // three Hangul syllables
    "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "  // a family emoji
    "\xc3\xa9 \xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87";  // Hindi

}  // namespace

TEST_CASE("a stream lets whole characters out as soon as they are whole") {
  CHECK(stream_one_by_one(kText) == kText);
}

TEST_CASE("bytes that can never become a character come out at once") {
  // Lone 0xff, 0xc3 before '(', surrogate halves, over-long forms, above U+10FFFF, lone
  // continuations.
  for (const std::string bad : {"a\xff"
                                "b",
                                "\xc3(", "\xed\xa0\x80\xed\xb0\x80x",
                                "\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf", "\xf4\x90\x80\x80\xf5\x80",
                                "\x80\xbf\xe2\x82(", "\xe2\x82\xe2\x82\xac", "\xf0\x9f\xf0\x9f"}) {
    CHECK(stream_one_by_one(bad) == bad);
  }
}

TEST_CASE("an incomplete tail is held and flushed once") {
  Utf8Stream stream;
  std::string out;
  stream.push("ok \xf0\x9f\x91", out);
  CHECK(out == "ok ");
  CHECK(stream.held() == 3);
  stream.finish(out);
  CHECK(out == "ok \xf0\x9f\x91");
  stream.finish(out);
  CHECK(out == "ok \xf0\x9f\x91");
  stream.push("\xa8", out);  // a new stream: a lone continuation byte
  CHECK(out == "ok \xf0\x9f\x91\xa8");
}

TEST_CASE("every split of a text gives the same stream") {
  for (std::size_t a = 0; a <= kText.size(); ++a) {
    for (std::size_t b = a; b <= kText.size(); ++b) {
      Utf8Stream stream;
      std::string out;
      stream.push(kText.substr(0, a), out);
      REQUIRE(out.size() == expected_out(kText.substr(0, a)));
      stream.push(kText.substr(a, b - a), out);
      REQUIRE(out.size() == expected_out(kText.substr(0, b)));
      stream.push(kText.substr(b), out);
      REQUIRE(out == kText);
    }
  }
}

TEST_CASE("random bytes stream unchanged") {
  std::mt19937 random(1);
  const unsigned char interesting[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                       0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed,
                                       0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
  for (int n = 0; n < 20000; ++n) {
    std::string in;
    for (unsigned i = random() % 9; i > 0; --i) {
      in.push_back(static_cast<char>(interesting[random() % sizeof interesting]));
    }
    REQUIRE(stream_one_by_one(in) == in);
  }
}

namespace {

// The first match by definition: the smallest position where some stop string lies.
std::size_t first_match(const std::vector<std::string>& stops, const std::string& text) {
  std::size_t first = std::string::npos;
  for (const auto& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

std::size_t longest_open(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t n = text.size(); n > 0; --n) {
    for (const auto& stop : stops) {
      if (n < stop.size() && stop.compare(0, n, text, text.size() - n) == 0) return n;
    }
  }
  return 0;
}

void check_stops(const std::vector<std::string>& stops, const std::string& text,
                 std::size_t chunk) {
  auto made = StopStrings::create(stops);
  REQUIRE(made);
  StopStrings finder = *made;
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += chunk) {
    const std::string seen = text.substr(0, i + chunk);
    const bool found = finder.push(text.substr(i, chunk), out);
    REQUIRE(found == finder.found());
    const std::size_t match = first_match(stops, seen);
    REQUIRE(out.size() <= std::min(match, seen.size()));
    if (found) {
      REQUIRE(out == text.substr(0, match));
      REQUIRE(finder.held() == 0);
      break;
    }
    // Only what a stop string begins with is held back.
    REQUIRE(out == seen.substr(0, seen.size() - longest_open(stops, seen)));
    REQUIRE(finder.held() == seen.size() - out.size());
    // Not found though there is a match: an earlier one must still be possible.
    if (match != std::string::npos) REQUIRE(out.size() < match);
  }
  const std::size_t match = first_match(stops, text);
  REQUIRE(finder.finish(out) == (match != std::string::npos));
  REQUIRE(out == text.substr(0, match));
  REQUIRE(finder.held() == 0);
}

}  // namespace

TEST_CASE("stop strings are found across every split") {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
  };
  const Case cases[] = {
      {{"own fox"}, "The quick brown fox jumps"},
      {{"\nUser:"}, "Hello.\nUse it.\nUser: me"},
      {{"\xc3\xa9"}, "caf\xc3\xa8 and caf\xc3\xa9 noir"},
      {{"aab"}, "aaab"},
      {{"ab", "b"}, "xxab"},
      {{"whole"}, "whole"},
      {{"abcd", "bc"}, "zabce"},  // "bc" completes while the earlier "abcd" is still open
      {{"abcd", "bc"}, "zabcd"},  // and here the earlier one wins
      {{"abcd", "bc"}, "zabc"},   // or the text ends
      {{"abcabd", "cab"}, "abcabcabd"},
      {{"x"}, ""},
      {{}, "no stops at all"},
      {{"long stop that never comes"}, "a long stop that"},
      {{"aa", "aaa", "aaaa"}, "baaaa"},
      {{"same", "same"}, "the same"},
  };
  for (const Case& c : cases) {
    for (std::size_t chunk = 1; chunk <= c.text.size() + 1; ++chunk) {
      CAPTURE(c.text, chunk);
      check_stops(c.stops, c.text, chunk);
    }
  }
}

TEST_CASE("random stop strings agree with the definition") {
  std::mt19937 random(2);
  for (int n = 0; n < 30000; ++n) {
    const auto word = [&](unsigned longest) {
      std::string s;
      for (unsigned i = random() % longest + 1; i > 0; --i) s.push_back("ab"[random() % 2]);
      return s;
    };
    std::vector<std::string> stops;
    for (unsigned i = random() % 4; i > 0; --i) stops.push_back(word(6));
    check_stops(stops, word(14), random() % 4 + 1);
  }
}

TEST_CASE("an empty stop string is refused") {
  const auto made = StopStrings::create(std::vector<std::string>{"a", ""});
  REQUIRE_FALSE(made);
  CHECK(made.error().code() == decant::ErrorCode::invalid_argument);
}

TEST_CASE("nothing comes out after a stop string") {
  auto finder = *StopStrings::create(std::vector<std::string>{"END"});
  std::string out;
  CHECK(finder.push("text END more", out));
  CHECK(finder.push("still more", out));
  CHECK(finder.finish(out));
  CHECK(out == "text ");
}
