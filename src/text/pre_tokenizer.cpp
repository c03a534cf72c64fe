// Expressions are given as the models' tokenizer.json files have them (\s is White_Space); the
// names are those of llama.cpp (src/llama-vocab.cpp), which writes most GGUF files. Where it
// approximates an expression, the published one counts: the model was trained with it.
#include "text/pre_tokenizer.hpp"

#include <algorithm>
#include <array>

#include "text/unicode.hpp"

namespace decant::detail {

// The character at `at`, or one of length 0 and of no class at the end of the text.
struct PreTokenChar {
  UnicodeSet kind = 0;
  std::uint32_t code_point = kNoCodePoint;
  std::size_t length = 0;

  bool is(UnicodeSet set) const { return (kind & set) != 0; }
  bool is_newline() const { return code_point == '\r' || code_point == '\n'; }
};

static PreTokenChar pre_token_char(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const Utf8Char c = utf8_decode(text.substr(at));
  const UnicodeClass kind =
      c.state == Utf8::whole ? unicode_class(c.code_point) : UnicodeClass::symbol;
  return {unicode_set(kind), c.code_point, c.length};
}

// The character that ends at `at`.
static PreTokenChar pre_token_before(std::string_view text, std::size_t at) {
  for (std::size_t n = 1; n <= 4 && n <= at; ++n) {
    const PreTokenChar c = pre_token_char(text, at - n);
    if (c.length == n && c.code_point != kNoCodePoint) return c;
  }
  return {};
}

// The end of the run of characters of a set that goes on at `at`, at most `limit` of them.
static std::size_t pre_token_run(std::string_view text, std::size_t at, UnicodeSet set,
                                 std::size_t limit = SIZE_MAX) {
  for (; limit > 0; --limit) {
    const PreTokenChar c = pre_token_char(text, at);
    if (!c.is(set)) break;
    at += c.length;
  }
  return at;
}

static constexpr UnicodeSet kPreTokenAll = 0xffff;
static constexpr UnicodeSet kPreTokenPlain =  // [^\s\p{L}\p{N}]
    kPreTokenAll & ~(kUnicodeSpace | kUnicodeLetter | kUnicodeNumber);
static constexpr UnicodeSet kPreTokenWord =  // \w
    kUnicodeLetter | kUnicodeMark |
    unicode_set(UnicodeClass::digit, UnicodeClass::numeral, UnicodeClass::connector);

// (?i:'s|'t|'re|'ve|'m|'ll|'d) or, without regard to case, (?i:...) of it, where U+017F is an s.
// Returns the end, or `at`.
static std::size_t pre_token_contraction(std::string_view text, std::size_t at, bool any_case) {
  if (at >= text.size() || text[at] != '\'') return at;
  std::array<char, 2> letters = {};
  std::array<std::size_t, 2> ends = {};
  std::size_t end = at + 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const PreTokenChar c = pre_token_char(text, end);
    ends[i] = end += c.length;
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
  return at;
}

// \s+(?!\S)|\s+ on a run of spaces that is not empty: all of it at the end of the text, else all
// but its last character, which goes with what follows.
static std::size_t pre_token_spaces(std::string_view text, std::size_t begin) {
  std::size_t last = begin, end = begin;
  PreTokenChar c = pre_token_char(text, begin);
  for (; c.is(kUnicodeSpace); c = pre_token_char(text, end)) {
    last = end;
    end += c.length;
  }
  return c.length == 0 || last == begin ? end : last;
}

// \s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1} on a run that is not empty.
static std::size_t pre_token_spaces_by_powers(std::string_view text, std::size_t begin) {
  std::size_t n = 0, end = begin;
  PreTokenChar c = pre_token_char(text, begin);
  for (; c.is(kUnicodeSpace) && n < 513; ++n) c = pre_token_char(text, end += c.length);
  if (c.length > 0) n -= 1;  // (?!\S): the last one is not taken, or there are more
  std::size_t take = n < 4 ? std::clamp<std::size_t>(n, 1, 2) : 512;
  while (take > n && take > 2) take /= 2;
  return pre_token_run(text, begin, kUnicodeSpace, take);
}

// GPT-2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
static std::size_t pre_token_gpt2(std::string_view text, std::size_t begin) {
  if (const std::size_t end = pre_token_contraction(text, begin, false); end > begin) return end;
  std::size_t at = begin;
  PreTokenChar c = pre_token_char(text, begin);
  if (c.code_point == ' ' && !pre_token_char(text, begin + 1).is(kUnicodeSpace)) {
    c = pre_token_char(text, at = begin + 1);
  }
  for (const UnicodeSet set : {kUnicodeLetter, kUnicodeNumber, kPreTokenPlain}) {
    if (c.is(set)) return pre_token_run(text, at, set);
  }
  return pre_token_spaces(text, begin);
}

// The Unicode script Han, for Kimi K2.
static bool pre_token_han(const PreTokenChar& c) {
  static constexpr std::uint32_t kRanges[][2] = {
      {0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},
      {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},
      {0x4e00, 0x9fff},   {0xf900, 0xfa6d},   {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3},
      {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b738}, {0x2b740, 0x2b81d},
      {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2f800, 0x2fa1d}, {0x30000, 0x3134a},
  };
  if (c.code_point < kRanges[0][0]) return false;
  return std::any_of(std::begin(kRanges), std::end(kRanges), [&](const auto& range) {
    return c.code_point >= range[0] && c.code_point <= range[1];
  });
}

// The family of Llama 3's expression,
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// and what its members have in place of its parts.
struct PreTokenRules {
  enum Contraction { none, before, after };  // an alternative, none, or the end of a word
  enum Word {
    letters,  // \p{L}+
    cased,  // with A = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], B = [\p{Ll}\p{Lm}\p{Lo}\p{M}]: A*B+ or A+B*
    phrase,  // (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+
  };
  Contraction contraction = before;
  Word word = letters;
  UnicodeSet word_set = kUnicodeLetter;                  // for `letters`
  UnicodeSet no_lead = kUnicodeLetter | kUnicodeNumber;  // and no \r, \n
  bool tag = false;  // [!-/:-@\[-`{-~][A-Za-z]+ before everything
  bool han = false;  // \p{Han}+ before everything; words end before Han
  std::size_t digits = 3;
  UnicodeSet plain = kPreTokenPlain;
  std::size_t tail = SIZE_MAX;  // [\r\n]*, so many at most
  bool slash_tail = false;      // [\r\n/]*
  bool newlines = true;         // false: [\r\n] in place of \s*[\r\n]+
  bool powers = false;          // pre_token_spaces_by_powers
};

// A*B+ at `at`, or `at`. What is in both sets may end the A's.
template <PreTokenRules kRules>
static std::size_t pre_token_cased(std::string_view text, std::size_t at) {
  constexpr UnicodeSet kBoth =
      unicode_set(UnicodeClass::modifier, UnicodeClass::caseless) | kUnicodeMark;
  constexpr UnicodeSet kUpper = kBoth | unicode_set(UnicodeClass::upper, UnicodeClass::title);
  constexpr UnicodeSet kLower = kBoth | unicode_set(UnicodeClass::lower);
  const auto run = [&](std::size_t from, UnicodeSet set, std::size_t& last_both) {
    for (;;) {
      const PreTokenChar c = pre_token_char(text, from);
      if (!c.is(set) || (kRules.han && pre_token_han(c))) return from;
      from += c.length;
      if (c.is(kBoth)) last_both = from;
    }
  };
  std::size_t both = at;
  const std::size_t upper = run(at, kUpper, both);
  const std::size_t lower = run(upper, kLower, both);
  return lower > upper ? lower : both;
}

template <PreTokenRules kRules>
static std::size_t pre_token_word(std::string_view text, std::size_t begin,
                                  const PreTokenChar& first) {
  const bool lead = !first.is_newline() && !first.is(kRules.no_lead);
  const std::size_t after_lead = lead ? begin + first.length : begin;
  if constexpr (kRules.word == PreTokenRules::letters) {
    // A lead that is itself of the set (a mark) belongs to the run either way.
    const std::size_t end = pre_token_run(text, after_lead, kRules.word_set);
    return end > after_lead ? end : pre_token_run(text, begin, kRules.word_set);
  } else if constexpr (kRules.word == PreTokenRules::phrase) {
    std::size_t end = begin;
    for (std::size_t at = after_lead; pre_token_char(text, at).is(kUnicodeLetter);) {
      end = pre_token_run(text, pre_token_run(text, at, kUnicodeLetter, 1), kUnicodeMark);
      at = end < text.size() && text[end] == ' ' ? end + 1 : end;
    }
    return end;
  } else {
    // A*B+ with the lead, A*B+ without, A+ with, A+ without: no B can follow that A+.
    constexpr UnicodeSet kUpper = unicode_set(UnicodeClass::upper, UnicodeClass::title);
    std::size_t end = pre_token_cased<kRules>(text, after_lead);
    if (end == after_lead && lead && first.is(kUnicodeMark)) {
      end = pre_token_cased<kRules>(text, begin);
    } else if (end == after_lead) {
      end = pre_token_run(text, after_lead, kUpper);
      if (end == after_lead) return begin;
    }
    return kRules.contraction == PreTokenRules::after ? pre_token_contraction(text, end, true)
                                                      : end;
  }
}

// The end of the match that begins at `begin`, or `begin`.
template <PreTokenRules kRules>
static std::size_t pre_token_rules(std::string_view text, std::size_t begin) {
  const PreTokenChar first = pre_token_char(text, begin);
  const PreTokenChar second = pre_token_char(text, begin + first.length);
  std::size_t end = begin;
  if constexpr (kRules.tag) {
    const auto is_letter = [&](std::size_t i) {
      return i < text.size() && ((text[i] | 0x20) >= 'a' && (text[i] | 0x20) <= 'z');
    };
    if (first.code_point < 0x80 && first.is(kUnicodePunctuation | kUnicodeSymbol)) {
      for (end = begin + 1; is_letter(end);) ++end;
      if (end > begin + 1) return end;
    }
  }
  if constexpr (kRules.han) {
    for (PreTokenChar c = first; pre_token_han(c); c = pre_token_char(text, end)) end += c.length;
    if (end > begin) return end;
  }
  if constexpr (kRules.contraction == PreTokenRules::before) {
    end = pre_token_contraction(text, begin, true);
    if (end > begin) return end;
  }
  end = pre_token_word<kRules>(text, begin, first);
  if (end > begin) return end;
  if (first.is(kUnicodeNumber)) {
    return pre_token_run(text, begin, kUnicodeNumber, kRules.digits);
  }
  const bool space = first.code_point == ' ';
  if (first.is(kRules.plain) || (space && second.is(kRules.plain))) {
    end = pre_token_run(text, space ? begin + 1 : begin, kRules.plain);
    for (std::size_t n = 0; n < kRules.tail && end < text.size(); ++n, ++end) {
      const char c = text[end];
      if (c != '\r' && c != '\n' && !(kRules.slash_tail && c == '/')) break;
    }
    return end;
  }
  if (!first.is(kUnicodeSpace)) return begin;
  if constexpr (kRules.newlines) {
    // \s*[\r\n]+ ends at the run's last newline. `powers` takes a long run in many matches: after a
    // space that is no newline none is left, as the match before would have taken it.
    const PreTokenChar before = kRules.powers ? pre_token_before(text, begin) : PreTokenChar();
    const bool looked = before.is(kUnicodeSpace) && !before.is_newline();
    std::size_t at = begin;
    for (PreTokenChar c = first; !looked && c.is(kUnicodeSpace); c = pre_token_char(text, at)) {
      at += c.length;
      if (c.is_newline()) end = at;
    }
    if (end > begin) return end;
  } else if (first.is_newline()) {
    return begin + 1;
  }
  return kRules.powers ? pre_token_spaces_by_powers(text, begin) : pre_token_spaces(text, begin);
}

// A step from a function that says where the match that begins at a place ends. It must not look
// far in vain, as it is asked at each character.
template <auto kMatch>
static PreTokenMatch pre_token_step(std::string_view text, std::size_t from) {
  for (std::size_t at = from; at < text.size(); at += utf8_decode(text.substr(at)).length) {
    if (const std::size_t end = kMatch(text, at); end > at) return {at, end};
  }
  return {text.size(), text.size()};
}

// [set]{1,limit}, with \s? or a plain space in front.
enum class PreTokenFront { nothing, any_space, space };
template <UnicodeSet kSet, std::size_t kLimit = SIZE_MAX,
          PreTokenFront kFront = PreTokenFront::nothing>
static std::size_t pre_token_set(std::string_view text, std::size_t begin) {
  std::size_t at = begin;
  if (kFront == PreTokenFront::any_space) at = pre_token_run(text, begin, kUnicodeSpace, 1);
  const std::size_t end = pre_token_run(text, at, kSet, kLimit);
  return end > at ? end : begin;
}

struct PreTokenRange {
  std::uint32_t first, last;
};

// [ranges]+, or what is in none of the ranges and no space.
template <const auto& kRanges, PreTokenFront kFront = PreTokenFront::nothing, bool kOutside = false>
static std::size_t pre_token_ranges(std::string_view text, std::size_t begin) {
  const auto in_set = [](const PreTokenChar& c) {
    const auto* range = std::lower_bound(
        std::begin(kRanges), std::end(kRanges), c.code_point,
        [](const PreTokenRange& r, std::uint32_t value) { return r.last < value; });
    const bool inside = range != std::end(kRanges) && range->first <= c.code_point;
    return c.length > 0 && (kOutside ? !inside && !c.is(kUnicodeSpace) : inside);
  };
  const auto run = [&](std::size_t at) {
    std::size_t end = at;
    for (auto c = pre_token_char(text, end); in_set(c); c = pre_token_char(text, end)) {
      end += c.length;
    }
    return end;
  };
  const PreTokenChar first = pre_token_char(text, begin);
  const bool front = kFront == PreTokenFront::any_space
                         ? first.is(kUnicodeSpace)
                         : kFront == PreTokenFront::space && first.code_point == ' ';
  const std::size_t at = front ? begin + first.length : begin;
  const std::size_t end = run(at);
  if (end > at || !front) return end;
  return run(begin);  // U+3000 is a space and in some of the sets
}

// [\r\n]
static std::size_t pre_token_newline(std::string_view text, std::size_t at) {
  return text[at] == '\r' || text[at] == '\n' ? at + 1 : at;
}

// [^\n]+|[\n]+
static std::size_t pre_token_lines(std::string_view text, std::size_t at) {
  const std::size_t end = text[at] == '\n' ? text.find_first_not_of('\n', at) : text.find('\n', at);
  return std::min(end, text.size());
}

//  ?[^ ]*
static std::size_t pre_token_spaced_word(std::string_view text, std::size_t at) {
  return std::min(text.find(' ', at + 1), text.size());
}

// \w+|[^\w\s]+ as Rust's regex has it: \w also holds alphabetic symbols and the two joiners.
static std::size_t pre_token_word_or_signs(std::string_view text, std::size_t begin) {
  enum Kind { space, word, signs };
  const auto kind = [](const PreTokenChar& c) {
    static constexpr std::uint32_t kRanges[][2] = {{0x200c, 0x200d},
                                                   {0x24b6, 0x24e9},
                                                   {0x1f130, 0x1f149},
                                                   {0x1f150, 0x1f169},
                                                   {0x1f170, 0x1f189}};
    if (c.length == 0 || c.is(kUnicodeSpace)) return space;
    const bool other = std::any_of(std::begin(kRanges), std::end(kRanges), [&](const auto& range) {
      return c.code_point >= range[0] && c.code_point <= range[1];
    });
    return c.is(kPreTokenWord) || other ? word : signs;
  };
  PreTokenChar c = pre_token_char(text, begin);
  const Kind first = kind(c);
  std::size_t end = begin;
  for (; first != space && kind(c) == first; c = pre_token_char(text, end)) end += c.length;
  return end;
}

// [0-9][0-9][0-9]
static std::size_t pre_token_three_digits(std::string_view text, std::size_t at) {
  const auto is_digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  return is_digit(at) && is_digit(at + 1) && is_digit(at + 2) ? at + 3 : at;
}

// [\p{P}$+<=>^~|`]+ (Falcon), [\p{P}$+<=>^~|]+ (default), [\p{P}!-/:-@\[-`{-~] (Chameleon)
template <bool kBacktick, std::size_t kLimit = SIZE_MAX>
static std::size_t pre_token_punctuation(std::string_view text, std::size_t at) {
  for (std::size_t n = 0; n < kLimit; ++n) {
    const PreTokenChar c = pre_token_char(text, at);
    const bool ascii_symbol = c.code_point < 0x80 && c.is(kUnicodeSymbol);
    if (!c.is(kUnicodePunctuation) && !(ascii_symbol && (kBacktick || c.code_point != '`'))) break;
    at += c.length;
  }
  return at;
}

// [\t\n]|    |  (Chameleon)
static std::size_t pre_token_chameleon_spaces(std::string_view text, std::size_t at) {
  if (text[at] == '\t' || text[at] == '\n') return at + 1;
  for (const std::string_view spaces : {"    ", "  "}) {
    if (text.substr(at, spaces.size()) == spaces) return at + spaces.size();
  }
  return at;
}

// \s+$
static PreTokenMatch pre_token_last_spaces(std::string_view text, std::size_t from) {
  std::size_t begin = from;
  for (std::size_t at = from; at < text.size();) {
    const PreTokenChar c = pre_token_char(text, at);
    at += c.length;
    if (!c.is(kUnicodeSpace)) begin = at;
  }
  return {begin, text.size()};
}

// \d{1,3}(?=(?:\d{3})*\b), first half: the runs of digits that do not go on as a word.
static PreTokenMatch pre_token_whole_digits(std::string_view text, std::size_t from) {
  constexpr UnicodeSet kDigit = unicode_set(UnicodeClass::digit);
  for (std::size_t at = from; at < text.size();) {
    const std::size_t end = pre_token_run(text, at, kDigit);
    const PreTokenChar next = pre_token_char(text, end);
    if (end > at && !next.is(kPreTokenWord)) return {at, end};
    at = end + next.length;
  }
  return {text.size(), text.size()};
}

// (?=(\d{3})+(?!\d)): cuts before each group of three, counted from the right in runs of the set.
// A match goes from one cut to the next. `kOnly`: in texts that are nothing but one run.
template <UnicodeSet kSet, bool kOnly>
static PreTokenMatch pre_token_groups(std::string_view text, std::size_t from) {
  const auto next_cut = [&](std::size_t at) {  // of the runs that begin at `at` or later
    while (at < text.size()) {
      std::size_t n = 0, end = at;
      PreTokenChar c = pre_token_char(text, at);
      for (; c.is(kSet); c = pre_token_char(text, end)) {
        end += c.length;
        ++n;
      }
      if (kOnly && end < text.size()) break;
      if (n >= 3) return pre_token_run(text, at, kSet, n % 3);
      at = end + c.length;
    }
    return text.size();
  };
  const std::size_t begin = from == 0 ? next_cut(0) : from;
  std::size_t end = pre_token_run(text, begin, kSet, 3);
  if (!pre_token_char(text, end).is(kSet)) end = next_cut(end);
  return {begin, end};
}

// Hangul, CJK punctuation, Bopomofo, Han and kana, each [...]+ (Youtu).
static std::size_t pre_token_youtu(std::string_view text, std::size_t at) {
  static constexpr PreTokenRange kHangul[] = {{0x3131, 0x318e}, {0xac00, 0xd7a3}};
  static constexpr PreTokenRange kMarks[] = {{0x2014, 0x2014}, {0x2018, 0x2019}, {0x201c, 0x201d},
                                             {0x2026, 0x2026}, {0x3001, 0x303f}, {0xfe30, 0xfe4f},
                                             {0xff01, 0xff01}, {0xff0c, 0xff0c}, {0xff1a, 0xff1b}};
  static constexpr PreTokenRange kBopomofo[] = {{0x3105, 0x312f}};
  static constexpr PreTokenRange kHanKana[] = {{0x3040, 0x30ff}, {0x4e00, 0x9fa5}};
  for (const auto match : {pre_token_ranges<kHangul>, pre_token_ranges<kMarks>,
                           pre_token_ranges<kBopomofo>, pre_token_ranges<kHanKana>}) {
    if (const std::size_t end = match(text, at); end > at) return end;
  }
  return at;
}

// Han and kana of DeepSeek V3.
static constexpr PreTokenRange kPreTokenHanKana[] = {{0x3040, 0x30ff}, {0x4e00, 0x9fa5}};
// DeepSeek's first models: everything from U+0800 to the end of Han, and Hangul.
static constexpr PreTokenRange kPreTokenCjk[] = {{0x800, 0x9fa5}, {0xac00, 0xd7ff}};
// AFMoE: Han, kana, Thai, Lao, Khmer, Myanmar, Hangul.
static constexpr PreTokenRange kPreTokenAsian[] = {
    {0xe40, 0xe7f},   {0xe80, 0xeff},   {0x1000, 0x109f}, {0x1100, 0x11ff}, {0x1780, 0x17ff},
    {0x2f00, 0x2fdf}, {0x3040, 0x30ff}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xa9e0, 0xa9ff},
    {0xaa60, 0xaa7f}, {0xac00, 0xd7af}, {0xf900, 0xfaff}, {0xff65, 0xff9f}};
// [!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002], which holds the ASCII letters.
static constexpr PreTokenRange kPreTokenDeepseekMarks[] = {{0x21, 0x2f},     {0x3a, 0x7e},
                                                           {0x2018, 0x201f}, {0x3000, 0x3002},
                                                           {0xff01, 0xff0f}, {0xff1a, 0xff5e}};
// Bloom: ( ) | . , ! ? and the full stops and commas of other scripts.
static constexpr PreTokenRange kPreTokenBloomStops[] = {
    {0x21, 0x21},   {0x28, 0x29},     {0x2c, 0x2c},     {0x2e, 0x2e},
    {0x3f, 0x3f},   {0x7c, 0x7c},     {0x60c, 0x60c},   {0x6d4, 0x6d4},
    {0x964, 0x964}, {0x2026, 0x2026}, {0x3001, 0x3002}, {0xff0c, 0xff0c}};
// Letters with case as DeepSeek's first tokenizer lists them, without those of later Unicode.
static constexpr PreTokenRange kPreTokenCasedLetters[] = {
    {0x41, 0x5a},       {0x61, 0x7a},       {0xb5, 0xb5},       {0xc0, 0xd6},
    {0xd8, 0xf6},       {0xf8, 0x1ba},      {0x1bc, 0x1bf},     {0x1c4, 0x293},
    {0x295, 0x2af},     {0x370, 0x373},     {0x376, 0x377},     {0x37b, 0x37d},
    {0x37f, 0x37f},     {0x386, 0x386},     {0x388, 0x38a},     {0x38c, 0x38c},
    {0x38e, 0x3a1},     {0x3a3, 0x3f5},     {0x3f7, 0x481},     {0x48a, 0x52f},
    {0x531, 0x556},     {0x10a0, 0x10c5},   {0x13a0, 0x13f5},   {0x13f8, 0x13fd},
    {0x1c90, 0x1cba},   {0x1cbd, 0x1cbf},   {0x1d00, 0x1d2b},   {0x1d6b, 0x1d77},
    {0x1d79, 0x1d9a},   {0x1e00, 0x1f15},   {0x1f18, 0x1f1d},   {0x1f20, 0x1f45},
    {0x1f48, 0x1f4d},   {0x1f50, 0x1f57},   {0x1f59, 0x1f59},   {0x1f5b, 0x1f5b},
    {0x1f5d, 0x1f5d},   {0x1f5f, 0x1f7d},   {0x1f80, 0x1fb4},   {0x1fb6, 0x1fbc},
    {0x1fbe, 0x1fbe},   {0x1fc2, 0x1fc4},   {0x1fc6, 0x1fcc},   {0x1fd0, 0x1fd3},
    {0x1fd6, 0x1fdb},   {0x1fe0, 0x1fec},   {0x1ff2, 0x1ff4},   {0x1ff6, 0x1ffc},
    {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210a, 0x2113},   {0x2115, 0x2115},
    {0x2119, 0x211d},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
    {0x212a, 0x212d},   {0x212f, 0x2134},   {0x2139, 0x2139},   {0x213c, 0x213f},
    {0x2145, 0x2149},   {0x214e, 0x214e},   {0x2183, 0x2184},   {0x2c00, 0x2c7b},
    {0x2c7e, 0x2ce4},   {0x2ceb, 0x2cee},   {0x2cf2, 0x2cf3},   {0xa640, 0xa66d},
    {0xa680, 0xa69b},   {0xa722, 0xa76f},   {0xa771, 0xa787},   {0xa78b, 0xa78e},
    {0xab70, 0xabbf},   {0xfb00, 0xfb06},   {0xfb13, 0xfb17},   {0xff21, 0xff3a},
    {0xff41, 0xff5a},   {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};

static constexpr UnicodeSet kPreTokenDigit = unicode_set(UnicodeClass::digit);
static constexpr UnicodeSet kPreTokenMarked = kUnicodeLetter | kUnicodeMark;
static constexpr UnicodeSet kPreTokenSigns = kUnicodePunctuation | kUnicodeSymbol;

static constexpr PreTokenRules kPreTokenLlama3;
static constexpr PreTokenRules kPreTokenJais2 = {.powers = true};
static constexpr PreTokenRules kPreTokenQwen2 = {.digits = 1};
static constexpr PreTokenRules kPreTokenUfakzeka = {.contraction = PreTokenRules::none,
                                                    .digits = 1};
static constexpr PreTokenRules kPreTokenQwen35 = {
    .word_set = kPreTokenMarked, .digits = 1, .plain = kPreTokenPlain & ~kUnicodeMark};
static constexpr PreTokenRules kPreTokenSeedCoder = {.digits = 1, .tail = 0};
static constexpr PreTokenRules kPreTokenExaoneMoe = {
    .word = PreTokenRules::phrase, .digits = 1, .tail = 1, .slash_tail = true};
static constexpr PreTokenRules kPreTokenTekken = {.contraction = PreTokenRules::none,
                                                  .word = PreTokenRules::cased,
                                                  .digits = 1,
                                                  .slash_tail = true};
static constexpr PreTokenRules kPreTokenGpt4o = {
    .contraction = PreTokenRules::after, .word = PreTokenRules::cased, .slash_tail = true};
static constexpr PreTokenRules kPreTokenYoutu = {.contraction = PreTokenRules::after,
                                                 .word = PreTokenRules::cased,
                                                 .digits = 1,
                                                 .slash_tail = true};
static constexpr PreTokenRules kPreTokenKimi = {
    .contraction = PreTokenRules::after, .word = PreTokenRules::cased, .han = true};
// [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+; Spark has ` ?[\p{P}\p{S}]+|[\r\n]` in the middle.
static constexpr PreTokenRules kPreTokenDeepseek3 = {.contraction = PreTokenRules::none,
                                                     .word_set = kPreTokenMarked,
                                                     .no_lead = kUnicodeLetter | kPreTokenSigns,
                                                     .tag = true,
                                                     .plain = kPreTokenSigns};
static constexpr PreTokenRules kPreTokenSpark = {.contraction = PreTokenRules::none,
                                                 .word_set = kPreTokenMarked,
                                                 .no_lead = kUnicodeLetter | kPreTokenSigns,
                                                 .tag = true,
                                                 .plain = kPreTokenSigns,
                                                 .tail = 0,
                                                 .newlines = false};

template <PreTokenRules kRules>
static constexpr PreTokenStep kPreTokenRulesStep = pre_token_step<pre_token_rules<kRules>>;
template <std::size_t kLimit>
static constexpr PreTokenStep kPreTokenNumbers =  // \p{N}{1,kLimit}
    pre_token_step<pre_token_set<kUnicodeNumber, kLimit>>;

static constexpr PreTokenStep kPreTokenGpt2Step = pre_token_step<pre_token_gpt2>;
static constexpr PreTokenStep kPreTokenLinesStep = pre_token_step<pre_token_lines>;
static constexpr PreTokenStep kPreTokenBloomStep =  //  ?[^(\s|.,!?...)]+
    pre_token_step<pre_token_ranges<kPreTokenBloomStops, PreTokenFront::space, true>>;

static constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
     "modern-bert jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
     {kPreTokenGpt2Step}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     {kPreTokenNumbers<1>, kPreTokenGpt2Step}},
    {"llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {kPreTokenRulesStep<kPreTokenLlama3>},
     true,
     true},
    {"dbrx smaug-bpe chatglm-bpe", {kPreTokenRulesStep<kPreTokenLlama3>}},
    {"glm4 glm5", {kPreTokenRulesStep<kPreTokenLlama3>}, true},
    {"minicpm5", {kPreTokenNumbers<3>, kPreTokenRulesStep<kPreTokenLlama3>}, true},
    {"jais-2", {kPreTokenRulesStep<kPreTokenJais2>}},
    // Bailing's has `\s*[\r\n]` and possessive quantifiers, which match the same.
    {"qwen2 stablelm2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2 bailingmoe "
     "bailingmoe2 llada-moe",
     {kPreTokenRulesStep<kPreTokenQwen2>}},
    {"laguna", {kPreTokenLinesStep, kPreTokenRulesStep<kPreTokenQwen2>}},
    {"ufakzeka", {kPreTokenRulesStep<kPreTokenUfakzeka>}},
    {"qwen35", {kPreTokenRulesStep<kPreTokenQwen35>}},
    {"seed-coder", {kPreTokenRulesStep<kPreTokenSeedCoder>}},
    {"exaone-moe", {kPreTokenRulesStep<kPreTokenExaoneMoe>}},
    {"tekken", {kPreTokenRulesStep<kPreTokenTekken>}, true, true},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {kPreTokenRulesStep<kPreTokenGpt4o>}},
    {"granite-embed-multi-97m", {kPreTokenRulesStep<kPreTokenGpt4o>}, true},
    {"tiny_aya cohere2moe",
     {pre_token_whole_digits, pre_token_groups<kPreTokenDigit, true>,
      kPreTokenRulesStep<kPreTokenGpt4o>}},
    {"youtu", {pre_token_step<pre_token_youtu>, kPreTokenRulesStep<kPreTokenYoutu>}, true},
    {"kimi-k2", {kPreTokenRulesStep<kPreTokenKimi>}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     {kPreTokenNumbers<3>, pre_token_step<pre_token_ranges<kPreTokenHanKana>>,
      kPreTokenRulesStep<kPreTokenDeepseek3>}},
    {"spark2_5",
     {kPreTokenNumbers<3>, pre_token_step<pre_token_ranges<kPreTokenHanKana>>,
      kPreTokenRulesStep<kPreTokenSpark>, kPreTokenNumbers<1>}},
    {"afmoe",
     {kPreTokenNumbers<SIZE_MAX>, pre_token_groups<kUnicodeNumber, true>,
      pre_token_step<pre_token_ranges<kPreTokenAsian>>, kPreTokenRulesStep<kPreTokenDeepseek3>}},
    // [\r\n], \s?[cased letters]+, \s?[marks]+, \s+$, [CJK]+, \p{N}+
    {"deepseek-llm",
     {pre_token_step<pre_token_newline>,
      pre_token_step<pre_token_ranges<kPreTokenCasedLetters, PreTokenFront::any_space>>,
      pre_token_step<pre_token_ranges<kPreTokenDeepseekMarks, PreTokenFront::any_space>>,
      pre_token_last_spaces, pre_token_step<pre_token_ranges<kPreTokenCjk>>,
      kPreTokenNumbers<SIZE_MAX>}},
    // [\r\n], \s?\p{L}+, \s?\p{P}+, [CJK]+, \p{N}
    {"deepseek-coder",
     {pre_token_step<pre_token_newline>,
      pre_token_step<pre_token_set<kUnicodeLetter, SIZE_MAX, PreTokenFront::any_space>>,
      pre_token_step<pre_token_set<kUnicodePunctuation, SIZE_MAX, PreTokenFront::any_space>>,
      pre_token_step<pre_token_ranges<kPreTokenCjk>>, kPreTokenNumbers<1>}},
    {"falcon",
     {pre_token_step<pre_token_punctuation<true>>, kPreTokenGpt2Step,
      pre_token_step<pre_token_three_digits>}},
    {"default",
     {pre_token_step<pre_token_punctuation<false>>, kPreTokenGpt2Step, kPreTokenNumbers<SIZE_MAX>,
      pre_token_step<pre_token_three_digits>}},
    // Its first two expressions cut out special tokens, which are found before.
    {"chameleon",
     {pre_token_step<pre_token_chameleon_spaces>, kPreTokenNumbers<1>,
      pre_token_step<pre_token_punctuation<true, 1>>, kPreTokenGpt2Step},
     false,
     true},
    {"poro-chat bloom gpt3-finnish", {kPreTokenBloomStep}},
    {"viking", {kPreTokenBloomStep, kPreTokenNumbers<1>}},
    // \p{N}+ and (?=(\d{3})+(?!\d)); pieces may be several words.
    {"superbpe", {kPreTokenNumbers<SIZE_MAX>, pre_token_groups<kPreTokenDigit, false>}},
    {"gemma4 granite-embed-multi-311m", {kPreTokenLinesStep}, false, true, true, true},
    {"sarvam-moe", {kPreTokenLinesStep}, false, false, true},
    {.names = "mmbert",
     .steps = {kPreTokenLinesStep, pre_token_step<pre_token_spaced_word>},
     .characters = true,
     .whole_newlines = true,
     .space_prefix = true},
    // llama.cpp has \S+.
    {.names = "whitespace",
     .steps = {pre_token_step<pre_token_word_or_signs>},
     .characters = true,
     .words_only = true},
};

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return nullptr;
  for (const PreTokenizer& p : kPreTokenizers) {
    for (std::string_view rest = p.names; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == name) return &p;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return nullptr;
}

}  // namespace decant::detail
