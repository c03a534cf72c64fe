// UTF-8 decoding (strict: no over-long forms, surrogates or values above U+10FFFF) and the classes
// of code points that pre-tokenizers ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::detail {

enum class UnicodeClass : std::uint8_t { other, letter, number, space };

// Blocks of 128 code points, 2 bits each (unicode_tables.cpp).
extern const std::uint8_t kUnicodeBlocks[8704];
extern const std::uint8_t kUnicodeClasses[6304];

/// `other` for anything that is not a code point.
inline UnicodeClass unicode_class(std::uint32_t c) {
  if (c >= 0x110000) return UnicodeClass::other;
  const std::uint8_t four = kUnicodeClasses[kUnicodeBlocks[c >> 7] * 32u + ((c & 127) >> 2)];
  return static_cast<UnicodeClass>(four >> 2 * (c & 3) & 3);
}

enum class Utf8 : std::uint8_t {
  whole,       ///< a character of `length` bytes
  incomplete,  ///< the text ends inside a character that more bytes could complete
  invalid,     ///< the first byte begins no character
};

inline constexpr std::uint32_t kNoCodePoint = 0xffffffff;

struct Utf8Char {
  Utf8 state;
  std::uint8_t length;       // bytes; 1 unless whole
  std::uint32_t code_point;  // kNoCodePoint unless whole
};

/// The character at the beginning of a text that is not empty.
inline Utf8Char utf8_decode(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8::whole, 1, lead};
  const std::uint8_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {Utf8::invalid, 1, kNoCodePoint};
  // The second byte's range excludes over-long forms, surrogates and what lies above U+10FFFF.
  std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  std::uint32_t c = lead & (0x7fu >> length);
  for (std::uint8_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8::incomplete, 1, kNoCodePoint};
    if (at(i) < low || at(i) > high) return {Utf8::invalid, 1, kNoCodePoint};
    c = c << 6 | (at(i) & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8::whole, length, c};
}

}  // namespace decant::detail
