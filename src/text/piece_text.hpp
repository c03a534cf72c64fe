// How vocabularies of SentencePiece's making write their pieces: U+2581 stands for a space, and
// <0x0A> for the byte 10. Tokenizers keep pieces as the bytes that they stand for.
#pragma once

#include <string>
#include <string_view>

namespace decant::detail {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

/// Appends a text with spaces in place of its marks.
inline void append_unmarked(std::string_view text, std::string& out) {
  for (std::size_t mark; (mark = text.find(kSpaceMark)) != std::string_view::npos;) {
    out.append(text, 0, mark);
    out.push_back(' ');
    text.remove_prefix(mark + kSpaceMark.size());
  }
  out.append(text);
}

/// The byte that a piece like <0x0A> stands for, or -1.
inline int piece_byte(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return -1;
  int byte = 0;
  for (const char c : piece.substr(3, 2)) {
    const std::size_t digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return -1;
    byte = byte * 16 + static_cast<int>(digit);
  }
  return byte;
}

}  // namespace decant::detail
