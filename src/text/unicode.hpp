// UTF-8 decoding (strict: no over-long forms, surrogates or values above U+10FFFF) and the classes
// of code points that tokenizers and templates ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::detail {

/// General categories, as far as anything asks for them, and White_Space (which comes first).
enum class UnicodeClass : std::uint8_t {
  unassigned,  // Cn; also what is no code point
  upper,       // Lu
  lower,       // Ll
  title,       // Lt
  modifier,    // Lm
  caseless,    // Lo
  accent,      // Mn
  mark,        // Mc, Me
  digit,       // Nd
  numeral,     // Nl
  number,      // No
  connector,   // Pc
  punctuation,
  symbol,
  space,
  control,  // Cc, Cf, Co, Cs
};

/// A set of classes: one bit each.
using UnicodeSet = std::uint16_t;
template <class... Classes>
constexpr UnicodeSet unicode_set(Classes... classes) {
  return static_cast<UnicodeSet>((0 | ... | (1 << static_cast<int>(classes))));
}
inline constexpr UnicodeSet kUnicodeLetter =
    unicode_set(UnicodeClass::upper, UnicodeClass::lower, UnicodeClass::title,
                UnicodeClass::modifier, UnicodeClass::caseless);
inline constexpr UnicodeSet kUnicodeMark = unicode_set(UnicodeClass::accent, UnicodeClass::mark);
inline constexpr UnicodeSet kUnicodeNumber =
    unicode_set(UnicodeClass::digit, UnicodeClass::numeral, UnicodeClass::number);
inline constexpr UnicodeSet kUnicodePunctuation =
    unicode_set(UnicodeClass::connector, UnicodeClass::punctuation);
inline constexpr UnicodeSet kUnicodeSymbol = unicode_set(UnicodeClass::symbol);
inline constexpr UnicodeSet kUnicodeSpace = unicode_set(UnicodeClass::space);

/// A character that loses its accents by becoming several; zeros are none.
struct UnicodeBareSplit {
  std::uint32_t from, to[3];
};

// Written by src/tools/unicode_tables.py (unicode_tables.cpp).
extern const std::uint8_t kUnicodeBlocks[1600];    // of 128 code points, below U+32000
extern const std::uint64_t kUnicodeClasses[1912];  // 16 code points each
extern const std::uint64_t kUnicodeBare[2000];     // from << 21 | to, ascending
extern const UnicodeBareSplit kUnicodeBareSplits[43];

inline UnicodeClass unicode_class(std::uint32_t c) {
  if (c >= 0x32000) {  // no letters: variation selectors, tags, private use
    if (c >= 0xe0100 && c < 0xe01f0) return UnicodeClass::accent;
    const bool tag = c == 0xe0001 || (c >= 0xe0020 && c < 0xe0080);
    const bool own = c >= 0xf0000 && c < 0x110000 && (c & 0xffff) < 0xfffe;
    return tag || own ? UnicodeClass::control : UnicodeClass::unassigned;
  }
  const std::uint64_t sixteen = kUnicodeClasses[kUnicodeBlocks[c >> 7] * 8u + (c >> 4 & 7)];
  return static_cast<UnicodeClass>(sixteen >> 4 * (c & 15) & 15);
}
inline bool unicode_is(std::uint32_t c, UnicodeSet set) {
  return (set >> static_cast<int>(unicode_class(c)) & 1) != 0;
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
