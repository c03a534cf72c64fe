// SentencePiece's BPE with a heap of candidate merges: O(n log n) on a text of n bytes. No merge
// can cross two bytes that stand side by side in no piece, so that the text is cut there first:
// words in practice, and the work stays in the cache.
#include "base/fp_contract.hpp"

#include "text/spm.hpp"

#include <algorithm>

#include "text/piece_text.hpp"
#include "text/unicode.hpp"

namespace decant::detail {

static constexpr std::uint32_t kSpmNone = 0xffffffff;

Result<std::unique_ptr<Tokenizer>> SpmTokenizer::create(const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) {
    return make_error(ErrorCode::invalid_file, "tokenizer.ggml.scores is missing");
  }
  auto t = std::make_unique<SpmTokenizer>();
  t->kind_ = "llama";
  t->add_bos_ = true;
  t->scores_ = vocabulary.scores;
  t->space_prefix_ = vocabulary.add_space_prefix.value_or(true);
  t->unknown_ = vocabulary.unk.value_or(-1);
  t->byte_tokens_.fill(-1);
  const std::size_t n_vocab = vocabulary.tokens.size();
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  t->table_ = PieceTable(n_vocab);
  t->joined_.assign(256 * 256, false);
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const auto token = static_cast<Token>(i);
    const TokenType type = vocabulary.types[i];
    const std::string_view text = vocabulary.tokens[i];
    piece.clear();
    if (type == TokenType::byte) {
      const int byte = piece_byte(text);
      if (byte < 0) {
        return make_error(ErrorCode::invalid_file,
                          "tokenizer.ggml.tokens: byte piece {} ('{}') does not look like <0x0A>",
                          i, text.substr(0, 64));
      }
      piece.push_back(static_cast<char>(byte));
      t->byte_tokens_[static_cast<std::size_t>(byte)] = token;
    } else if (type == TokenType::normal || type == TokenType::user_defined) {
      append_unmarked(text, piece);
    } else if (type != TokenType::unused) {
      piece = text;
    }
    t->pieces_.add(piece);
    if (type == TokenType::unknown && t->unknown_ < 0) t->unknown_ = token;
    // A normal piece with a plain space cannot occur in a text whose spaces are marks.
    const bool reachable = type == TokenType::user_defined ||
                           (type == TokenType::normal && text.find(' ') == std::string_view::npos);
    if (!reachable || piece.empty()) continue;
    DECANT_TRY(vocabulary.check_score(i));
    t->table_.insert(t->pieces_, token);
    t->longest_piece_ = std::max(t->longest_piece_, piece.size());
    for (std::size_t k = 1; k < piece.size(); ++k) {
      t->joined_[static_cast<std::uint8_t>(piece[k - 1]) * 256u +
                 static_cast<std::uint8_t>(piece[k])] = true;
    }
  }
  return std::unique_ptr<Tokenizer>(std::move(t));
}

void SpmTokenizer::add_candidate(Work& work, std::uint32_t left, std::uint32_t right) const {
  if (left == kSpmNone || right == kSpmNone) return;
  const Symbol& l = work.symbols[left];
  const std::uint32_t length = l.length + work.symbols[right].length;
  if (length > longest_piece_) return;
  const Token token = table_.find(pieces_, work.text.substr(l.begin, length));
  if (token < 0) return;
  work.heap.push_back({scores_[static_cast<std::size_t>(token)], left, token});
  std::push_heap(work.heap.begin(), work.heap.end());
}

Status SpmTokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  std::string plain;
  if (space_prefix_ || text.find(kSpaceMark) != std::string_view::npos) {
    if (space_prefix_) plain.push_back(' ');
    append_unmarked(text, plain);
    text = plain;
  }

  Work work = {text, {}, {}};
  auto& symbols = work.symbols;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t length = utf8_decode(text.substr(at)).length;
    const auto i = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back(
        {static_cast<std::uint32_t>(at), length, i == 0 ? kSpmNone : i - 1, i + 1, -1});
    at += length;
    if (at < text.size() && joined(text[at - 1], text[at])) continue;
    symbols.back().next = kSpmNone;
    merge_symbols(work, out);
    symbols.clear();
  }
  return {};
}

void SpmTokenizer::merge_symbols(Work& work, std::vector<Token>& out) const {
  auto& symbols = work.symbols;
  for (std::uint32_t i = 1; i < symbols.size(); ++i) add_candidate(work, i - 1, i);
  while (!work.heap.empty()) {
    const Candidate c = work.heap.front();
    std::pop_heap(work.heap.begin(), work.heap.end());
    work.heap.pop_back();
    // One of the two may have been merged since; it is longer then, or gone.
    Symbol& left = symbols[c.left];
    if (left.length == 0 || left.next == kSpmNone) continue;
    Symbol& right = symbols[left.next];
    const std::size_t length = pieces_[static_cast<std::size_t>(c.token)].size();
    if (left.length + right.length != length) continue;
    left.length += right.length;
    left.token = c.token;
    left.next = right.next;
    right.length = 0;
    if (left.next != kSpmNone) symbols[left.next].previous = c.left;
    add_candidate(work, left.previous, c.left);
    add_candidate(work, c.left, left.next);
  }

  for (std::uint32_t i = 0; i != kSpmNone; i = symbols[i].next) {
    const std::string_view bytes = work.text.substr(symbols[i].begin, symbols[i].length);
    Token token = symbols[i].token;
    if (token < 0) token = table_.find(pieces_, bytes);
    const auto has_byte = [&](char b) { return byte_tokens_[static_cast<std::uint8_t>(b)] >= 0; };
    if (token >= 0) {
      out.push_back(token);
    } else if (std::all_of(bytes.begin(), bytes.end(), has_byte)) {
      for (const char b : bytes) out.push_back(byte_tokens_[static_cast<std::uint8_t>(b)]);
    } else {
      if (unknown_ >= 0 && !work.after_unknown) out.push_back(unknown_);
      work.after_unknown = true;
      continue;
    }
    work.after_unknown = false;
  }
}

std::size_t SpmTokenizer::table_bytes() const noexcept {
  return sizeof *this + table_.memory_bytes() + scores_.capacity() * sizeof(float) +
         joined_.capacity() / 8;
}

}  // namespace decant::detail
