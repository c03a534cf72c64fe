// Byte-level BPE with a heap of candidate merges: O(n log n) on a piece of n bytes.
#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>

#include "text/unicode.hpp"

namespace decant::detail {

static constexpr std::uint32_t kBpeNone = 0xffffffff;

// GPT-2's table the other way round: the byte that a character stands for, or -1. Printable Latin-1
// stands for itself, the other bytes are U+0100 and up in their order.
static int bpe_byte(std::uint32_t c) {
  const auto printable = [](std::uint32_t b) {
    return (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0x100 && b != 0xad);
  };
  if (printable(c)) return static_cast<int>(c);
  if (c < 0x100 || c >= 0x100 + 68) return -1;
  std::uint32_t n = c - 0x100;
  for (std::uint32_t b = 0;; ++b) {
    if (!printable(b) && n-- == 0) return static_cast<int>(b);
  }
}

// Appends the bytes of a piece; as it is, if a character in it stands for no byte.
static void bpe_decode(std::string_view piece, std::span<const std::int16_t> bytes,
                       std::string& out) {
  const std::size_t begin = out.size();
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Char c = utf8_decode(piece.substr(i));
    const int byte = c.code_point < bytes.size() ? bytes[c.code_point] : -1;
    if (byte < 0) {
      out.resize(begin);
      out.append(piece);
      return;
    }
    out.push_back(static_cast<char>(byte));
    i += c.length;
  }
}

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::create(const Vocabulary& vocabulary) {
  const PreTokenizer* pre = find_pre_tokenizer(vocabulary.pre);
  if (!pre) {
    return make_error(ErrorCode::unsupported,
                      "the pre-tokenizer '{}' (tokenizer.ggml.pre) is not supported; token ids "
                      "still work",
                      vocabulary.pre.substr(0, 64));
  }
  auto t = std::make_unique<BpeTokenizer>();
  t->pre_ = pre;
  t->kind_ = "gpt2/" + std::string(pre->name);
  t->add_bos_ = pre->add_bos;

  std::array<std::int16_t, 0x144> bytes;
  for (std::uint32_t c = 0; c < bytes.size(); ++c)
    bytes[c] = static_cast<std::int16_t>(bpe_byte(c));
  const std::size_t n_vocab = vocabulary.tokens.size();
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  PieceTable table(n_vocab);
  t->byte_tokens_.fill(-1);
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const TokenType type = vocabulary.types[i];
    piece.clear();
    if (type == TokenType::normal || type == TokenType::byte) {
      bpe_decode(vocabulary.tokens[i], bytes, piece);
    } else if (type != TokenType::unused) {
      piece = vocabulary.tokens[i];
    }
    t->pieces_.add(piece);
    if (type != TokenType::normal || piece.empty()) continue;
    table.insert(t->pieces_, static_cast<Token>(i));
    Token& byte_token = t->byte_tokens_[static_cast<std::uint8_t>(piece[0])];
    if (piece.size() == 1 && byte_token < 0) byte_token = static_cast<Token>(i);
  }

  const std::size_t n_merges = vocabulary.merges.size();
  t->merges_.reserve(n_merges);
  t->slots_.assign(std::bit_ceil(n_merges + n_merges / 2 + 1), kBpeNone);
  std::string left, right;
  for (std::size_t i = 0; i < n_merges; ++i) {
    const std::string_view text = vocabulary.merges[i];
    const std::size_t space = text.find(' ', 1);
    Token tokens[3] = {-1, -1, -1};
    if (space != std::string_view::npos) {
      left.clear();
      right.clear();
      bpe_decode(text.substr(0, space), bytes, left);
      bpe_decode(text.substr(space + 1), bytes, right);
      tokens[0] = table.find(t->pieces_, left);
      tokens[1] = table.find(t->pieces_, right);
      tokens[2] = table.find(t->pieces_, left + right);
    }
    if (std::min({tokens[0], tokens[1], tokens[2]}) < 0) {
      return make_error(ErrorCode::invalid_file,
                        "tokenizer.ggml.merges: entry {} ('{}') is not a pair of pieces of the "
                        "vocabulary that make a third",
                        i, text.substr(0, 64));
    }
    std::uint32_t& slot = t->slots_[t->find_slot(tokens[0], tokens[1])];
    if (slot == kBpeNone) slot = static_cast<std::uint32_t>(t->merges_.size());
    t->merges_.push_back({tokens[0], tokens[1], tokens[2]});
  }
  if (pre->ignore_merges) t->table_ = std::move(table);
  return std::unique_ptr<Tokenizer>(std::move(t));
}

// The slot that holds the pair's rank, or the empty one where it belongs.
std::size_t BpeTokenizer::find_slot(Token left, Token right) const {
  std::uint64_t h = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  h *= 0x9e3779b97f4a7c15u;
  std::size_t i = static_cast<std::size_t>(h >> 32) & (slots_.size() - 1);
  for (;; i = (i + 1) & (slots_.size() - 1)) {
    const std::uint32_t rank = slots_[i];
    if (rank == kBpeNone || (merges_[rank].left == left && merges_[rank].right == right)) {
      return i;
    }
  }
}

void BpeTokenizer::add_candidate(Work& work, std::uint32_t left, std::uint32_t right) const {
  if (left == kBpeNone || right == kBpeNone) return;
  const std::uint32_t rank = slots_[find_slot(work.symbols[left].token, work.symbols[right].token)];
  if (rank == kBpeNone) return;
  work.heap.push_back({rank, left, right});
  std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
}

void BpeTokenizer::merge_piece(std::string_view piece, Work& work, std::vector<Token>& out) const {
  auto& symbols = work.symbols;
  symbols.clear();
  for (const char byte : piece) {
    const Token token = byte_tokens_[static_cast<std::uint8_t>(byte)];
    if (token < 0) continue;
    const auto i = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({token, i == 0 ? kBpeNone : i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = kBpeNone;

  for (std::uint32_t i = 1; i < symbols.size(); ++i) add_candidate(work, i - 1, i);
  while (!work.heap.empty()) {
    const Candidate c = work.heap.front();
    std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
    work.heap.pop_back();
    const Merge& merge = merges_[c.rank];
    Symbol& left = symbols[c.left];
    Symbol& right = symbols[c.right];
    // One of the two may have been merged since: it is a longer piece then, or gone.
    if (left.token != merge.left || right.token != merge.right) continue;
    left.token = merge.result;
    left.next = right.next;
    right.token = -1;
    if (left.next != kBpeNone) symbols[left.next].previous = c.left;
    add_candidate(work, left.previous, c.left);
    add_candidate(work, c.left, left.next);
  }
  for (std::uint32_t i = 0; i != kBpeNone; i = symbols[i].next) out.push_back(symbols[i].token);
}

void BpeTokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  Work work;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = pre_->next(text, begin);
    const std::string_view piece = text.substr(begin, end - begin);
    begin = end;
    const Token whole = pre_->ignore_merges ? table_.find(pieces_, piece) : -1;
    if (whole >= 0) {
      out.push_back(whole);
    } else {
      merge_piece(piece, work, out);
    }
  }
}

std::size_t BpeTokenizer::table_bytes() const noexcept {
  return sizeof *this + merges_.capacity() * sizeof(Merge) +
         slots_.capacity() * sizeof(std::uint32_t) + table_.memory_bytes();
}

}  // namespace decant::detail
