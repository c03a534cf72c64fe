// One pass over the source. Outside of tags, text runs to the next {{, {% or {#; a sign behind the
// opening decides what happens to the white space before it, a sign before the closing to the white
// space after it.
#include "base/fp_contract.hpp"

#include "text/jinja/lexer.hpp"

#include <charconv>
#include <cmath>

#include "text/jinja/unicode.hpp"

namespace decant::detail::jinja {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::string_view describe(const Token& token) {
  switch (token.type) {
    case TokenType::data: return "template text";
    case TokenType::variable_begin: return "begin of print statement";
    case TokenType::variable_end: return "end of print statement";
    case TokenType::block_begin: return "begin of statement block";
    case TokenType::block_end: return "end of statement block";
    case TokenType::string: return "string";
    case TokenType::end: return "end of template";
    default: return token.text.substr(0, 100);
  }
}

namespace {

struct JinjaOperator {
  std::string_view text;
  TokenType type;
};
constexpr JinjaOperator kJinjaOperators[] = {
    {"//", TokenType::floordiv}, {"**", TokenType::pow},     {"==", TokenType::eq},
    {"!=", TokenType::ne},       {">=", TokenType::gteq},    {"<=", TokenType::lteq},
    {"+", TokenType::add},       {"-", TokenType::sub},      {"/", TokenType::div},
    {"*", TokenType::mul},       {"%", TokenType::mod},      {"~", TokenType::tilde},
    {"[", TokenType::lbracket},  {"]", TokenType::rbracket}, {"(", TokenType::lparen},
    {")", TokenType::rparen},    {"{", TokenType::lbrace},   {"}", TokenType::rbrace},
    {">", TokenType::gt},        {"<", TokenType::lt},       {"=", TokenType::assign},
    {".", TokenType::dot},       {":", TokenType::colon},    {"|", TokenType::pipe},
    {",", TokenType::comma},     {";", TokenType::semicolon}};

class JinjaLexer {
 public:
  JinjaLexer(Heap& heap, std::string_view source, std::deque<std::string>& strings)
      : heap_(heap), source_(source), strings_(strings) {}

  std::vector<Token> run() {
    while (at_ < source_.size() && !heap_.failed()) root();
    push(TokenType::end, {});
    return std::move(tokens_);
  }

 private:
  // ---- text

  void root() {
    std::size_t begin = at_;
    while (begin < source_.size() && !opens(begin)) ++begin;
    const std::string_view text = source_.substr(at_, begin - at_);
    if (begin == source_.size()) {
      push(TokenType::data, text);
      move(begin);
      return;
    }
    const char kind = source_[begin + 1];
    std::size_t inside = begin + 2;
    const char sign = sign_at(inside);
    if (sign != 0) ++inside;
    push_before_tag(text, sign, kind != '{');
    if (kind == '#') return comment(begin, inside);
    if (kind == '%') {
      if (const std::size_t end = raw_begin(inside)) return raw(begin, end);
    }
    push(kind == '%' ? TokenType::block_begin : TokenType::variable_begin,
         source_.substr(begin, inside - begin));
    move(inside);
    tag(kind == '%');
  }

  bool opens(std::size_t i) const {
    return source_[i] == '{' && i + 1 < source_.size() &&
           (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#');
  }

  char sign_at(std::size_t i) const {
    return i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : '\0';
  }

  void push_before_tag(std::string_view text, char sign, bool is_block) {
    std::string_view kept = text;
    if (sign == '-') {
      kept = text.substr(0, blank_suffix(text));
    } else if (sign != '+' && is_block) {
      const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || line_starting_) && blank_suffix(text) <= line) kept = text.substr(0, line);
    }
    push(TokenType::data, kept);
    move(at_ + text.size());
  }

  // Where the white space at the end begins.
  static std::size_t blank_suffix(std::string_view text) {
    while (!text.empty()) {
      const Utf8Char c = utf8_decode_last(text);
      if (!is_blank(c.code_point)) break;
      text.remove_suffix(c.length);
    }
    return text.size();
  }

  std::size_t skip_blanks(std::size_t i) const {
    while (i < source_.size()) {
      const Utf8Char c = utf8_decode(source_.substr(i));
      if (!is_blank(c.code_point)) break;
      i += c.length;
    }
    return i;
  }

  bool has(std::size_t i, std::string_view text) const {
    return source_.substr(i, text.size()) == text;
  }

  // The end of a closing at i with its sign and what it trims; 0 if there is none. Of blocks and
  // comments a plain closing takes the newline behind it.
  std::size_t closing(std::size_t i, std::string_view close, bool is_block) const {
    if (source_[i] == '-' && has(i + 1, close)) return skip_blanks(i + 1 + close.size());
    if (is_block && source_[i] == '+' && has(i + 1, close)) return i + 1 + close.size();
    if (!has(i, close)) return 0;
    i += close.size();
    return is_block && i < source_.size() && source_[i] == '\n' ? i + 1 : i;
  }

  void comment(std::size_t begin, std::size_t inside) {
    for (std::size_t i = inside; i < source_.size(); ++i) {
      if (const std::size_t end = closing(i, "#}", true)) return finish_tag(end);
    }
    if (inside == source_.size()) return move(inside);  // as jinja2 has it
    move(begin);
    fail("Missing end of comment tag");
  }

  // The end of `raw %}` at i, or 0. The newline behind it stays.
  std::size_t raw_begin(std::size_t i) const {
    i = skip_blanks(i);
    if (!has(i, "raw")) return 0;
    i = skip_blanks(i + 3);
    if (has(i, "-%}")) return skip_blanks(i + 3);
    return has(i, "%}") ? i + 2 : 0;
  }

  void raw(std::size_t begin, std::size_t inside) {
    finish_tag(inside);
    for (std::size_t i = inside; i < source_.size(); ++i) {
      if (!has(i, "{%")) continue;
      const char sign = sign_at(i + 2);
      std::size_t end = skip_blanks(i + (sign != 0 ? 3 : 2));
      if (!has(end, "endraw")) continue;
      end = skip_blanks(end + 6);
      end = end < source_.size() ? closing(end, "%}", true) : 0;
      if (end == 0) continue;
      push_before_tag(source_.substr(inside, i - inside), sign, true);
      return finish_tag(end);
    }
    if (inside == source_.size()) return;  // as jinja2 has it
    move(begin);
    fail("Missing end of raw directive");
  }

  void finish_tag(std::size_t end) {
    line_starting_ = source_[end - 1] == '\n';
    move(end);
  }

  // ---- tags

  void tag(bool is_block) {
    const std::string_view close = is_block ? "%}" : "}}";
    while (!heap_.failed()) {
      if (at_ == source_.size()) return;  // the parser misses the end
      if (brackets_.empty()) {
        if (const std::size_t end = closing(at_, close, is_block)) {
          push(is_block ? TokenType::block_end : TokenType::variable_end,
               source_.substr(at_, end - at_));
          return finish_tag(end);
        }
      }
      const std::size_t after = skip_blanks(at_);
      if (after > at_) {
        move(after);
      } else if (!number() && !name() && !string() && !punctuation()) {
        fail("unexpected character");
      }
    }
  }

  static bool is_number_char(char c, int base) {
    if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return true;
    return c >= '0' && c < '0' + std::min(base, 10);
  }

  // The end of digits with single underscores between them (and in front, if allowed), or i.
  std::size_t digits(std::size_t i, int base, bool leading_underscore = false) const {
    for (std::size_t end = i;;) {
      std::size_t next = end;
      const bool allowed = end > i || leading_underscore;
      if (next < source_.size() && source_[next] == '_' && allowed) ++next;
      if (next >= source_.size() || !is_number_char(source_[next], base)) return end;
      end = next + 1;
    }
  }

  bool number() {
    const char c = source_[at_];
    if (!is_number_char(c, 10)) return false;
    if (const std::size_t end = real_end()) {
      double x = 0;
      const std::string text = without_underscores(at_, end);
      const auto read = std::from_chars(text.data(), text.data() + text.size(), x);
      if (read.ec == std::errc::result_out_of_range) {
        x = text.find("e-") != text.npos || text.find("E-") != text.npos ? 0.0 : HUGE_VAL;
      }
      push(TokenType::real, source_.substr(at_, end - at_));
      tokens_.back().number = Value::of(x);
      move(end);
      return true;
    }
    int base = 10;
    std::size_t begin = at_, end = 0;
    if (c == '0' && at_ + 1 < source_.size()) {
      const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    if (base != 10) {
      end = digits(at_ + 2, base, true);
      if (end > at_ + 2) {
        begin = at_ + 2;
      } else {
        base = 10;
      }
    }
    if (base == 10) {
      end = digits(at_, 10);
      if (c == '0') {  // zeros alone; another digit begins the next token
        for (end = at_ + 1; end < source_.size() && source_[end] == '0';) ++end;
      }
    }
    const std::string text = without_underscores(begin, end);
    std::int64_t x = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), x, base);
    if (read.ec != std::errc()) {
      heap_.line = line_;
      heap_.fail(ErrorCode::unsupported, "integers beyond 64 bits");
      return true;
    }
    push(TokenType::integer, source_.substr(at_, end - at_));
    tokens_.back().number = Value::of(x);
    move(end);
    return true;
  }

  // The end of a number with a fraction or an exponent, or 0. Not behind a dot: x.0.1 are indexes.
  std::size_t real_end() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    const std::size_t whole = digits(at_, 10);
    std::size_t end = whole;
    if (end + 1 < source_.size() && source_[end] == '.' && is_number_char(source_[end + 1], 10)) {
      end = digits(end + 1, 10);
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      std::size_t power = end + 1;
      if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
      if (power < source_.size() && is_number_char(source_[power], 10)) return digits(power, 10);
    }
    return end > whole ? end : 0;
  }

  std::string without_underscores(std::size_t begin, std::size_t end) const {
    std::string out(source_.substr(begin, end - begin));
    std::erase(out, '_');
    return out;
  }

  bool name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const Utf8Char c = utf8_decode(source_.substr(end));
      if (c.state != Utf8::whole || !is_word_char(c.code_point)) break;
      end += c.length;
    }
    if (end == at_) return false;
    push(TokenType::name, source_.substr(at_, end - at_));
    move(end);
    return true;
  }

  bool string() {
    const char quote = source_[at_];
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = at_ + 1;
    bool escaped = false;
    while (end < source_.size() && source_[end] != quote) {
      escaped |= source_[end] == '\\';
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) return fail("unexpected character: a string without end"), true;
    std::string_view text = source_.substr(at_ + 1, end - at_ - 1);
    if (escaped) text = unescape(text);
    push(TokenType::string, text);
    move(end + 1);
    return true;
  }

  // Python's escapes. Pairs of surrogates become one character.
  std::string_view unescape(std::string_view in) {
    std::string out;
    std::uint32_t high = 0;  // a surrogate that waits for its other half
    const auto add = [&](std::uint32_t c) {
      if (c >= 0xdc00 && c < 0xe000 && high != 0) {
        c = 0x10000 + ((high - 0xd800) << 10) + (c - 0xdc00);
      } else if (high != 0) {
        append_utf8(out, 0xfffd);
      }
      high = c >= 0xd800 && c < 0xdc00 ? c : 0;
      if (high == 0) append_utf8(out, c >= 0xdc00 && c < 0xe000 ? 0xfffd : c);
    };
    for (std::size_t i = 0; i < in.size() && !heap_.failed(); ++i) {
      if (in[i] != '\\') {
        if (high != 0) append_utf8(out, 0xfffd);
        high = 0;
        out += in[i];
        continue;
      }
      const char c = in[++i];  // there is one: the string's end was found behind it
      switch (c) {
        case '\n': break;
        case 'n': add('\n'); break;
        case 't': add('\t'); break;
        case 'r': add('\r'); break;
        case 'a': add('\a'); break;
        case 'b': add('\b'); break;
        case 'f': add('\f'); break;
        case 'v': add('\v'); break;
        case '\\':
        case '\'':
        case '"': add(static_cast<std::uint32_t>(c)); break;
        case 'x': add(hex(in, i, 2)); break;
        case 'u': add(hex(in, i, 4)); break;
        case 'U': add(hex(in, i, 8)); break;
        case 'N':
          heap_.line = line_;
          heap_.fail(ErrorCode::unsupported, "characters by name (\\N)");
          break;
        default:
          if (c >= '0' && c <= '7') {
            std::uint32_t x = 0;
            std::size_t n = 0;
            for (; n < 3 && i + n < in.size() && in[i + n] >= '0' && in[i + n] <= '7'; ++n) {
              x = x * 8 + static_cast<std::uint32_t>(in[i + n] - '0');
            }
            i += n - 1;
            add(x);
          } else {
            add('\\');
            const Utf8Char other = utf8_decode(in.substr(i));
            if ((c & 0x80) == 0 || other.state != Utf8::whole) {
              out += c;
            } else {  // jinja2 escapes it first, and the escape is then behind two backslashes
              std::string escape;
              append_escape(escape, other.code_point);
              out += escape.substr(1);
              i += other.length - std::size_t{1};
            }
          }
      }
    }
    if (high != 0) append_utf8(out, 0xfffd);
    return strings_.emplace_back(std::move(out));
  }

  std::uint32_t hex(std::string_view in, std::size_t& i, std::size_t n) {
    std::uint32_t x = 0;
    const std::string_view text = in.substr(i + 1, n);
    const auto read = std::from_chars(text.data(), text.data() + text.size(), x, 16);
    if (text.size() < n || read.ptr != text.data() + n || x > 0x10ffff) {
      fail("a broken \\x, \\u or \\U escape");
    }
    i += n;
    return x;
  }

  bool punctuation() {
    for (const JinjaOperator& op : kJinjaOperators) {
      if (!has(at_, op.text)) continue;
      const char c = op.text[0];
      if (c == '(' || c == '[' || c == '{') brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (brackets_.empty() || brackets_.back() != c) return fail("unbalanced bracket"), true;
        brackets_.pop_back();
      }
      push(op.type, source_.substr(at_, op.text.size()));
      move(at_ + op.text.size());
      return true;
    }
    return false;
  }

  // ----

  void push(TokenType type, std::string_view text) {
    if (type == TokenType::data && text.empty()) return;
    if (!heap_.reserve(1, sizeof(Token))) return;
    tokens_.push_back({type, line_, text, {}});
  }

  // Line numbers follow the position.
  void move(std::size_t to) {
    for (; at_ < to; ++at_) line_ += source_[at_] == '\n' ? 1 : 0;
    at_ = to;
  }

  void fail(std::string_view what) {
    heap_.line = line_;
    heap_.fail("{}", what);
  }

  Heap& heap_;
  std::string_view source_;
  std::deque<std::string>& strings_;
  std::vector<Token> tokens_;
  std::string brackets_;  // the closing ones that are due
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize_template(Heap& heap, std::string_view source,
                                     std::deque<std::string>& strings) {
  return JinjaLexer(heap, source, strings).run();
}

}  // namespace decant::detail::jinja
