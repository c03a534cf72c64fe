// Look-ups in the tables. ASCII, by far the most frequent, never reaches them.
#include "text/jinja/unicode.hpp"

#include <algorithm>
#include <iterator>

namespace decant::detail::jinja {

template <std::size_t N>
static bool jinja_in_borders(const std::uint32_t (&borders)[N], std::uint32_t c) {
  return (std::upper_bound(borders, borders + N, c) - borders) % 2 == 1;
}

template <std::size_t N>
static const JinjaRun* jinja_find_run(const JinjaRun (&runs)[N], std::uint32_t c) {
  const auto* run = std::upper_bound(
      runs, runs + N, c, [](std::uint32_t value, const JinjaRun& r) { return value < r.first; });
  // Runs of stride 2 may overlap the ones that follow them.
  for (int i = 0; i < 3 && run != runs; ++i) {
    --run;
    if (c <= run->last && (c - run->first) % static_cast<std::uint32_t>(run->stride) == 0) {
      return run;
    }
  }
  return nullptr;
}

template <std::size_t N>
static bool jinja_append_special(const JinjaSpecial (&specials)[N], std::uint32_t c,
                                 std::string& to) {
  const auto* found =
      std::lower_bound(specials, specials + N, c,
                       [](const JinjaSpecial& s, std::uint32_t value) { return s.from < value; });
  if (found == specials + N || found->from != c) return false;
  for (const std::uint32_t x : found->to) {
    if (x != 0) append_utf8(to, x);
  }
  return true;
}

template <std::size_t N>
static void jinja_append_mapped(const JinjaRun (&runs)[N], std::uint32_t c, std::string& to) {
  const JinjaRun* run = jinja_find_run(runs, c);
  const std::int32_t distance = run != nullptr ? run->distance : 0;
  append_utf8(to, static_cast<std::uint32_t>(static_cast<std::int32_t>(c) + distance));
}

static bool jinja_between(std::uint32_t c, char low, char high) {
  return c >= static_cast<std::uint32_t>(low) && c <= static_cast<std::uint32_t>(high);
}

bool is_letter(std::uint32_t c) { return unicode_is(c, kUnicodeLetter); }

bool is_decimal(std::uint32_t c) {
  return c < 0x80 ? jinja_between(c, '0', '9') : jinja_in_borders(kJinjaDecimal, c);
}

bool is_digit_char(std::uint32_t c) {
  return c < 0x80 ? jinja_between(c, '0', '9') : jinja_in_borders(kJinjaDigit, c);
}

bool is_numeric(std::uint32_t c) {
  return c < 0x80 ? jinja_between(c, '0', '9') : jinja_in_borders(kJinjaNumeric, c);
}

bool is_blank(std::uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return unicode_is(c, kUnicodeSpace);
}

bool is_printable(std::uint32_t c) {
  return c < 0x80 ? c >= 0x20 && c != 0x7f : jinja_in_borders(kJinjaPrintable, c);
}

bool is_lower_char(std::uint32_t c) {
  return c < 0x80 ? jinja_between(c, 'a', 'z') : jinja_find_run(kJinjaLower, c) != nullptr;
}

bool is_upper_char(std::uint32_t c) {
  return c < 0x80 ? jinja_between(c, 'A', 'Z') : jinja_find_run(kJinjaUpper, c) != nullptr;
}

bool is_title_char(std::uint32_t c) {
  return c == 0x1c5 || c == 0x1c8 || c == 0x1cb || c == 0x1f2 ||
         (c >= 0x1f88 && c <= 0x1faf && (c & 8) != 0) || c == 0x1fbc || c == 0x1fcc || c == 0x1ffc;
}

void append_upper(std::string& to, std::uint32_t c) {
  if (c < 0x80) {
    to += static_cast<char>(jinja_between(c, 'a', 'z') ? c - 32 : c);
  } else if (!jinja_append_special(kJinjaUpperSpecials, c, to)) {
    jinja_append_mapped(kJinjaToUpper, c, to);
  }
}

void append_lower(std::string& to, std::uint32_t c) {
  if (c < 0x80) {
    to += static_cast<char>(jinja_between(c, 'A', 'Z') ? c + 32 : c);
  } else if (c == 0x130) {  // the one character whose lower case is two
    append_utf8(to, 'i');
    append_utf8(to, 0x307);
  } else {
    jinja_append_mapped(kJinjaToLower, c, to);
  }
}

void append_title(std::string& to, std::uint32_t c) {
  if (c < 0x80 || !jinja_append_special(kJinjaTitleSpecials, c, to)) append_upper(to, c);
}

void append_utf8(std::string& to, std::uint32_t c) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    to += static_cast<char>(c);
  } else if (c < 0x800) {
    to += static_cast<char>(0xc0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    to += static_cast<char>(0xe0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    to += static_cast<char>(0xf0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

Utf8Char utf8_decode_last(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  const Utf8Char c = utf8_decode(text.substr(begin));
  if (c.length == text.size() - begin) return c;
  return {Utf8::invalid, 1, kNoCodePoint};
}

std::size_t utf8_length(std::string_view text) {
  std::size_t n = 0;
  while (!text.empty()) {
    text.remove_prefix(utf8_decode(text).length);
    ++n;
  }
  return n;
}

std::size_t utf8_offset(std::string_view text, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0 && at < text.size(); --n) at += utf8_decode(text.substr(at)).length;
  return at;
}

}  // namespace decant::detail::jinja
