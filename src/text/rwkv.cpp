// A pass from right to left gives the longest piece that begins at each place, so that the time is
// linear in the text whatever the pieces are.
#include "text/rwkv.hpp"

#include <algorithm>

namespace decant::detail {

static int rwkv_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char letter = static_cast<char>(c | 0x20);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// Appends the bytes of a piece. False: it ends inside an escape, or has no two digits after \x.
static bool rwkv_unescape(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out.push_back(text[i]);
      continue;
    }
    if (++i == text.size()) return false;
    if (text[i] != 'x') {
      const std::size_t letter = std::string_view("tnr").find(text[i]);
      out.push_back(letter == std::string_view::npos ? text[i] : "\t\n\r"[letter]);
      continue;
    }
    if (text.size() - i < 3) return false;
    const int high = rwkv_digit(text[i + 1]), low = rwkv_digit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

Result<std::unique_ptr<Tokenizer>> RwkvTokenizer::create(const Vocabulary& vocabulary) {
  const std::size_t n_vocab = vocabulary.tokens.size();
  auto t = std::make_unique<RwkvTokenizer>();
  t->kind_ = "rwkv";
  t->unknown_ = vocabulary.unk;
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  std::vector<std::string> patterns;
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const TokenType type = vocabulary.types[i];
    piece.clear();
    if (type != TokenType::unused && !rwkv_unescape(vocabulary.tokens[i], piece)) {
      return make_error(ErrorCode::invalid_file,
                        "tokenizer.ggml.tokens: piece {} ('{}') has a broken escape", i,
                        vocabulary.tokens[i].substr(0, 64));
    }
    t->pieces_.add(piece);
    if (type != TokenType::normal) continue;
    t->tokens_.push_back(static_cast<Token>(i));
    patterns.emplace_back(piece.rbegin(), piece.rend());
  }
  t->reversed_ = PatternAutomaton({patterns.begin(), patterns.end()});
  return std::unique_ptr<Tokenizer>(std::move(t));
}

Status RwkvTokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  std::vector<PatternAutomaton::State> longest(text.size());  // that begins here
  auto state = PatternAutomaton::kStart;
  for (std::size_t i = text.size(); i-- > 0;) {
    state = reversed_.step(state, text[i]);
    longest[i] = reversed_.longest(state);
  }
  for (std::size_t at = 0; at < text.size();) {
    if (longest[at] != PatternAutomaton::kStart) {
      out.push_back(tokens_[reversed_.pattern(longest[at])]);
      at += reversed_.depth(longest[at]);
      continue;
    }
    if (unknown_) out.push_back(*unknown_);
    ++at;
  }
  return {};
}

std::size_t RwkvTokenizer::table_bytes() const noexcept {
  return sizeof *this + reversed_.memory_bytes() + tokens_.capacity() * sizeof(Token);
}

}  // namespace decant::detail
