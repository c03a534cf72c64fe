// Template text to tokens, as jinja2's lexer with trim_blocks and lstrip_blocks cuts it.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.hpp"

namespace decant::detail::jinja {

enum class TokenType : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  add,
  sub,
  mul,
  div,
  floordiv,
  mod,
  pow,
  tilde,
  eq,
  ne,
  lt,
  lteq,
  gt,
  gteq,
  assign,
  dot,
  colon,
  pipe,
  comma,
  semicolon,
  lparen,
  rparen,
  lbracket,
  rbracket,
  lbrace,
  rbrace,
  end,
};

struct Token {
  TokenType type = TokenType::end;
  std::uint32_t line = 1;
  std::string_view text;  // data, names, strings (unescaped), otherwise the source
  Value number;           // of integer and real
};

/// `source` has \n alone as line end and stays alive with the tokens; unescaped strings are kept in
/// `strings`. The last token is `end`. Errors go to `heap`.
std::vector<Token> tokenize_template(Heap& heap, std::string_view source,
                                     std::deque<std::string>& strings);

/// \r\n and \r become \n; one newline at the end is dropped.
std::string normalize_newlines(std::string_view source);

/// A token as an error shows it.
std::string_view describe(const Token& token);

}  // namespace decant::detail::jinja
