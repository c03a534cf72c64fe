// What Python's string methods know about code points: classes, case mappings, spaces.
#pragma once

#include <cstdint>
#include <string>

#include "text/unicode.hpp"

namespace decant::detail::jinja {

/// Every `stride`-th code point from `first` to `last`; in a mapping each goes to itself plus
/// `distance`.
struct JinjaRun {
  std::uint32_t first, last;
  std::int32_t stride, distance;
};
/// A code point that maps to up to three; zeros are none.
struct JinjaSpecial {
  std::uint32_t from, to[3];
};

// Written by src/tools/jinja_tables.py (tables.cpp).
extern const std::uint32_t kJinjaPrintable[1400];
extern const std::uint32_t kJinjaDecimal[124];
extern const std::uint32_t kJinjaDigit[162];
extern const std::uint32_t kJinjaNumeric[412];
extern const JinjaRun kJinjaLower[187];
extern const JinjaRun kJinjaUpper[166];
extern const JinjaRun kJinjaToUpper[194];
extern const JinjaRun kJinjaToLower[181];
extern const JinjaSpecial kJinjaUpperSpecials[102];
extern const JinjaSpecial kJinjaTitleSpecials[135];

// The tests of one character, as str.isalpha() and its siblings make them.
bool is_letter(std::uint32_t c);
bool is_decimal(std::uint32_t c);
bool is_digit_char(std::uint32_t c);
bool is_numeric(std::uint32_t c);
bool is_blank(std::uint32_t c);
bool is_printable(std::uint32_t c);
bool is_lower_char(std::uint32_t c);
bool is_upper_char(std::uint32_t c);
bool is_title_char(std::uint32_t c);
inline bool is_cased(std::uint32_t c) {
  return is_lower_char(c) || is_upper_char(c) || is_title_char(c);
}
inline bool is_word_char(std::uint32_t c) { return c == '_' || is_letter(c) || is_numeric(c); }

// Case mappings, which may give several characters, appended as UTF-8. append_lower does not know
// the neighbours; the final sigma is the caller's.
void append_upper(std::string& to, std::uint32_t c);
void append_lower(std::string& to, std::uint32_t c);
void append_title(std::string& to, std::uint32_t c);

void append_utf8(std::string& to, std::uint32_t c);

/// The character that ends at the end of a text that is not empty, as utf8_decode.
Utf8Char utf8_decode_last(std::string_view text);

/// Characters; each byte that is not UTF-8 counts as one.
std::size_t utf8_length(std::string_view text);

/// The byte at which character `n` begins, at most text.size().
std::size_t utf8_offset(std::string_view text, std::size_t n);

}  // namespace decant::detail::jinja
