// The expressions, as the models' tokenizer.json files give them (\s is White_Space):
//   GPT-2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   SmolLM:  the same after every \p{N} was cut off as a piece of its own
//   Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//            ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   Qwen 2:  Llama 3's with \p{N} in place of \p{N}{1,3}
#include "text/pre_tokenizer.hpp"

#include <array>

#include "text/unicode.hpp"

namespace decant::detail {

// The character at `at`, or one of length 0 at the end of the text.
struct PreTokenChar {
  UnicodeClass kind = UnicodeClass::space;
  std::uint32_t code_point = kNoCodePoint;
  std::size_t length = 0;

  bool is(UnicodeClass k) const { return length > 0 && kind == k; }
};

static PreTokenChar pre_token_char(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const Utf8Char c = utf8_decode(text.substr(at));
  return {unicode_class(c.code_point), c.code_point, c.length};
}

// The end of the run of one class that goes on at `at`, at most `limit` characters.
static std::size_t pre_token_run(std::string_view text, std::size_t at, UnicodeClass kind,
                                 std::size_t limit = SIZE_MAX) {
  for (; limit > 0; --limit) {
    const PreTokenChar c = pre_token_char(text, at);
    if (!c.is(kind)) break;
    at += c.length;
  }
  return at;
}

// Length of a contraction ('s, 're, ...) at `at`, or 0. Without regard to case, U+017F is an s.
static std::size_t pre_token_contraction(std::string_view text, std::size_t at, bool any_case) {
  if (text[at] != '\'') return 0;
  std::array<char, 2> letters = {};
  std::array<std::size_t, 2> ends = {};
  std::size_t end = at + 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const PreTokenChar c = pre_token_char(text, end);
    end += c.length;
    ends[i] = end - at;
    std::uint32_t letter = c.code_point;
    if (any_case && letter == 0x17f) letter = 's';
    if (any_case && letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
    if (letter < 0x80) letters[i] = static_cast<char>(letter);
  }
  for (const char c : {'s', 't', 'm', 'd'}) {
    if (letters[0] == c) return ends[0];
  }
  for (const char* pair : {"re", "ve", "ll"}) {
    if (letters[0] == pair[0] && letters[1] == pair[1]) return ends[1];
  }
  return 0;
}

// \s+(?!\S)|\s+ on a run of spaces that is not empty: all of it at the end of the text, else all
// but its last character, which goes with what follows.
static std::size_t pre_token_spaces(std::string_view text, std::size_t begin, bool digits_alone) {
  std::size_t last = begin, end = begin;
  PreTokenChar c = pre_token_char(text, begin);
  for (; c.is(UnicodeClass::space); c = pre_token_char(text, end)) {
    last = end;
    end += c.length;
  }
  const bool at_end = c.length == 0 || (digits_alone && c.kind == UnicodeClass::number);
  return at_end || last == begin ? end : last;
}

static std::size_t pre_token_gpt2(std::string_view text, std::size_t begin, bool digits_alone) {
  const PreTokenChar first = pre_token_char(text, begin);
  if (digits_alone && first.kind == UnicodeClass::number) return begin + first.length;
  if (const std::size_t n = pre_token_contraction(text, begin, false)) return begin + n;
  std::size_t at = begin;
  PreTokenChar c = first;
  if (first.code_point == ' ') c = pre_token_char(text, at += 1);
  if (c.length == 0 || c.kind == UnicodeClass::space ||
      (digits_alone && c.kind == UnicodeClass::number)) {
    if (first.kind == UnicodeClass::space) return pre_token_spaces(text, begin, digits_alone);
  }
  return pre_token_run(text, at, c.kind);
}

static std::size_t pre_token_gpt2_plain(std::string_view text, std::size_t begin) {
  return pre_token_gpt2(text, begin, false);
}

static std::size_t pre_token_smollm(std::string_view text, std::size_t begin) {
  return pre_token_gpt2(text, begin, true);
}

static bool pre_token_newline(const PreTokenChar& c) {
  return c.code_point == '\r' || c.code_point == '\n';
}

static std::size_t pre_token_llama3_like(std::string_view text, std::size_t begin,
                                         std::size_t max_digits) {
  if (const std::size_t n = pre_token_contraction(text, begin, true)) return begin + n;
  const PreTokenChar first = pre_token_char(text, begin);
  const PreTokenChar second = pre_token_char(text, begin + first.length);
  if (first.kind == UnicodeClass::letter) {
    return pre_token_run(text, begin, UnicodeClass::letter);
  }
  if (first.kind == UnicodeClass::number) {
    return pre_token_run(text, begin, UnicodeClass::number, max_digits);
  }
  if (!pre_token_newline(first) && second.is(UnicodeClass::letter)) {
    return pre_token_run(text, begin + first.length, UnicodeClass::letter);
  }
  const bool space = first.code_point == ' ';
  if (first.kind == UnicodeClass::other || (space && second.is(UnicodeClass::other))) {
    std::size_t end = pre_token_run(text, space ? begin + 1 : begin, UnicodeClass::other);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  std::size_t after_newline = begin, at = begin;  // \s*[\r\n]+ ends at the run's last newline
  for (PreTokenChar c = first; c.is(UnicodeClass::space); c = pre_token_char(text, at)) {
    at += c.length;
    if (pre_token_newline(c)) after_newline = at;
  }
  return after_newline > begin ? after_newline : pre_token_spaces(text, begin, false);
}

static std::size_t pre_token_llama3(std::string_view text, std::size_t begin) {
  return pre_token_llama3_like(text, begin, 3);
}

static std::size_t pre_token_qwen2(std::string_view text, std::size_t begin) {
  return pre_token_llama3_like(text, begin, 1);
}

// clang-format off
static constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2", pre_token_gpt2_plain, false, false},
    {"smollm", pre_token_smollm, false, false},
    {"qwen2", pre_token_qwen2, false, false},
    {"llama-bpe", pre_token_llama3, true, true},
    {"llama-v3", pre_token_llama3, true, true},
    {"llama3", pre_token_llama3, true, true},
};
// clang-format on

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizer& p : kPreTokenizers) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

}  // namespace decant::detail
