// The normalizer is that of BertTokenizer: control characters go, accents are taken away (canonical
// decomposition without nonspacing marks), letters become lower case.
#include "text/word_piece.hpp"

#include <algorithm>

#include "text/jinja/unicode.hpp"
#include "text/piece_text.hpp"
#include "text/unicode.hpp"

namespace decant::detail {

// A word of more characters is unknown, as in BertTokenizer.
static constexpr std::size_t kWordPieceMaxCharacters = 100;

static bool word_piece_is_han(std::uint32_t c) {
  static constexpr std::uint32_t kRanges[][2] = {
      {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
      {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f},
  };
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const auto& range) { return c >= range[0] && c <= range[1]; });
}

static bool word_piece_stands_alone(std::uint32_t c) {
  return unicode_is(c, kUnicodePunctuation) || (c < 0x80 && unicode_is(c, kUnicodeSymbol)) ||
         word_piece_is_han(c);
}

// Calls use(letter) for what is left of a character without its accents.
template <class Use>
static void word_piece_bare(std::uint32_t c, Use&& use) {
  if (c >= 0xac00 && c < 0xd7a4) {  // Hangul: 19 leads, 21 vowels, 28 tails with none
    const std::uint32_t i = c - 0xac00;
    use(0x1100 + i / 588);
    use(0x1161 + i % 588 / 28);
    if (i % 28 != 0) use(0x11a7 + i % 28);
    return;
  }
  const auto* one = std::lower_bound(std::begin(kUnicodeBare), std::end(kUnicodeBare),
                                     static_cast<std::uint64_t>(c) << 21);
  if (one != std::end(kUnicodeBare) && *one >> 21 == c) {
    use(static_cast<std::uint32_t>(*one & 0x1fffff));
    return;
  }
  for (const UnicodeBareSplit& split : kUnicodeBareSplits) {
    if (split.from != c) continue;
    for (const std::uint32_t to : split.to) {
      if (to != 0) use(to);
    }
    return;
  }
  use(c);
}

Result<std::unique_ptr<Tokenizer>> WordPieceTokenizer::create(const Vocabulary& vocabulary) {
  const std::size_t n_vocab = vocabulary.tokens.size();
  const auto known = [&](std::optional<Token> id, Token otherwise) -> std::optional<Token> {
    if (!id && static_cast<std::size_t>(otherwise) < n_vocab) id = otherwise;
    return id;
  };
  auto t = std::make_unique<WordPieceTokenizer>();
  t->kind_ = "bert";
  t->space_prefix_ = true;
  t->bos_ = known(vocabulary.cls ? vocabulary.cls : vocabulary.bos, 101);  // BERT's own numbers
  t->closing_ = known(vocabulary.sep, 102);
  const std::optional<Token> unknown = known(vocabulary.unk, 100);
  if (!unknown) {
    return make_error(ErrorCode::invalid_file, "tokenizer.ggml.unknown_token_id is missing");
  }
  t->unknown_ = *unknown;
  t->add_bos_ = true;
  t->lowercase_ = vocabulary.lowercase.value_or(true);
  t->strip_accents_ = vocabulary.strip_accents.value_or(t->lowercase_);
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  t->table_ = PieceTable(n_vocab);
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    piece.clear();
    const TokenType type = vocabulary.types[i];
    if (type == TokenType::normal) {
      append_unmarked(vocabulary.tokens[i], piece);
    } else if (type != TokenType::unused) {
      piece = vocabulary.tokens[i];
    }
    t->pieces_.add(piece);
    if (type != TokenType::normal || piece.empty()) continue;
    t->table_.insert(t->pieces_, static_cast<Token>(i));
    t->longest_piece_ = std::max(t->longest_piece_, piece.size());
  }
  return std::unique_ptr<Tokenizer>(std::move(t));
}

void WordPieceTokenizer::append_normalized(std::uint32_t c, std::string& out) const {
  const auto append = [&](std::uint32_t letter) {
    if (strip_accents_ && unicode_class(letter) == UnicodeClass::accent) return;
    if (lowercase_) {
      jinja::append_lower(out, letter);
    } else {
      jinja::append_utf8(out, letter);
    }
  };
  if (strip_accents_) {
    word_piece_bare(c, append);
  } else {
    append(c);
  }
}

// `word` begins with a space.
void WordPieceTokenizer::add_word(std::string_view word, std::vector<Token>& out) const {
  const std::size_t before = out.size();
  bool known = jinja::utf8_length(word) <= kWordPieceMaxCharacters + 1;
  for (std::size_t at = 0; known && at < word.size();) {
    Token token = -1;
    std::size_t length = std::min(longest_piece_, word.size() - at);
    for (; length > 0; --length) {
      token = table_.find(pieces_, word.substr(at, length));
      if (token >= 0) break;
    }
    known = token >= 0;
    if (known) out.push_back(token);
    at += length;
  }
  if (known) return;
  out.resize(before);
  out.push_back(unknown_);
}

Status WordPieceTokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  std::string word = " ";
  const auto finish = [&] {
    if (word.size() > 1) add_word(word, out);
    word.resize(1);
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_decode(text.substr(at));
    at += c.length;
    if (unicode_is(c.code_point, kUnicodeSpace)) {
      finish();
      continue;
    }
    const bool dropped = c.state != Utf8::whole || c.code_point == 0xfffd ||
                         unicode_class(c.code_point) == UnicodeClass::control;
    if (dropped) continue;
    const bool alone = word_piece_stands_alone(c.code_point);
    if (alone) finish();
    append_normalized(c.code_point, word);
    if (alone) finish();
  }
  finish();
  return {};
}

std::size_t WordPieceTokenizer::table_bytes() const noexcept {
  return sizeof *this + table_.memory_bytes();
}

}  // namespace decant::detail
