// BPE with a heap of candidate merges: O(n log n) on a piece of n bytes. No merge can cross two
// bytes that no merge joins, so that a long piece is cut there first and the work stays in the
// cache. A small cache of the words of a text makes up for what English repeats.
#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "text/jinja/unicode.hpp"
#include "text/piece_text.hpp"
#include "text/unicode.hpp"

namespace decant::detail {

static constexpr std::uint32_t kBpeNone = 0xffffffff;

// GPT-2's table the other way round: the byte that a character stands for, or -1. Printable Latin-1
// stands for itself, the other bytes are U+0100 and up in their order.
static constexpr std::array<std::int16_t, 0x144> kBpeBytes = [] {
  std::array<std::int16_t, 0x144> bytes = {};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (std::int16_t b = 0; b < 0x100; ++b) {
    const bool printable = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
    bytes[printable ? static_cast<std::size_t>(b) : next++] = b;
  }
  return bytes;
}();

// Appends the bytes of a piece. If a character in it stands for no byte, appends it as it is and
// returns false: no text leads to it.
static bool bpe_decode(std::string_view piece, std::string& out) {
  const std::size_t begin = out.size();
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Char c = utf8_decode(piece.substr(i));
    const int byte = c.code_point < kBpeBytes.size() ? kBpeBytes[c.code_point] : -1;
    if (byte < 0) {
      out.resize(begin);
      out.append(piece);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    i += c.length;
  }
  return true;
}

// Appends the bytes of a piece of the vocabulary. True if merging may lead to it.
bool BpeTokenizer::append_piece(std::string_view text, TokenType type, std::string& out) const {
  if (type == TokenType::unused) return false;
  const int byte = type == TokenType::byte ? piece_byte(text) : -1;
  if (byte >= 0) {
    out.push_back(static_cast<char>(byte));
    return false;
  }
  const bool reachable = type == TokenType::normal && !text.empty();
  if (type != TokenType::normal && type != TokenType::byte) {
    out.append(text);
    return false;
  }
  if (!pre_->characters) return bpe_decode(text, out) && reachable;
  if (pre_->words_only) {
    out.append(text);
  } else {
    append_unmarked(text, out);
  }
  return reachable;
}

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::create(const Vocabulary& vocabulary) {
  const std::string_view name = vocabulary.model == "gemma4" ? "gemma4" : vocabulary.pre;
  auto t = std::make_unique<BpeTokenizer>();
  t->pre_ = find_pre_tokenizer(name);
  if (!t->pre_ && !vocabulary.pattern.empty()) {
    t->pre_ = find_pre_tokenizer(kDefaultPreTokenizer);  // for the rest of its rules
    DECANT_ASSIGN(t->pattern_, Pattern::create(vocabulary.pattern));
  }
  if (!t->pre_) {
    return make_error(ErrorCode::unsupported,
                      "the pre-tokenizer '{}' (tokenizer.ggml.pre) is not supported; token ids "
                      "still work, and ModelOptions::default_pre_tokenizer takes the default one, "
                      "pre_tokenizer_pattern one of your own",
                      name.substr(0, 64));
  }
  t->kind_ = "gpt2/" + std::string(name);
  t->add_bos_ = t->pre_->add_bos;
  t->space_prefix_ = t->pre_->space_prefix;
  t->lowercase_ = t->pre_->words_only && vocabulary.lowercase.value_or(false);

  const std::size_t n_vocab = vocabulary.tokens.size();
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  t->table_ = PieceTable(n_vocab);
  t->byte_tokens_.fill(-1);
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const TokenType type = vocabulary.types[i];
    const auto token = static_cast<Token>(i);
    piece.clear();
    const bool reachable = t->append_piece(vocabulary.tokens[i], type, piece);
    t->pieces_.add(piece);
    if (reachable) t->table_.insert(t->pieces_, token);
    const bool is_byte = t->pre_->characters ? type == TokenType::byte : reachable;
    if (piece.size() != 1 || !is_byte) continue;
    Token& byte_token = t->byte_tokens_[static_cast<std::uint8_t>(piece[0])];
    if (byte_token < 0) byte_token = token;
  }
  t->read_merges(vocabulary);
  if (!t->pre_->ignore_merges && !t->pre_->characters) t->table_ = {};
  return std::unique_ptr<Tokenizer>(std::move(t));
}

void BpeTokenizer::read_merges(const Vocabulary& vocabulary) {
  const std::size_t n_merges = vocabulary.merges.size();
  merges_.reserve(n_merges);
  joined_.assign(256 * 256, false);
  slots_.assign(std::bit_ceil(n_merges + n_merges / 2 + 1), kBpeNone);
  seed_ = random_seed();
  const auto hash = [this](const std::string& s) {
    return static_cast<std::size_t>(piece_hash(s, seed_));
  };
  std::unordered_map<std::string, Token, decltype(hash)> others(0, hash);  // texts of no piece
  const auto number = [&](const std::string& text) {
    const Token token = table_.find(pieces_, text);
    if (token >= 0) return token;
    return others.try_emplace(text, static_cast<Token>(size() + others.size())).first->second;
  };
  std::string left, right;
  for (const std::string_view text : vocabulary.merges) {
    const std::size_t space = text.find(' ', 1);
    if (space == std::string_view::npos) continue;
    left.clear();
    right.clear();
    if (!append_piece(text.substr(0, space), TokenType::normal, left) ||
        !append_piece(text.substr(space + 1), TokenType::normal, right)) {
      continue;
    }
    const Token pair[2] = {number(left), number(right)};
    std::uint32_t& slot = slots_[find_slot(pair[0], pair[1])];
    if (slot != kBpeNone) continue;  // the first of equal ones counts
    slot = static_cast<std::uint32_t>(merges_.size());
    merges_.push_back({pair[0], pair[1], number(left + right)});
    joined_[joint(left.back(), right.front())] = true;
  }
}

// The slot that holds the pair's rank, or the empty one where it belongs.
std::size_t BpeTokenizer::find_slot(Token left, Token right) const {
  const std::uint64_t pair =
      static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  std::size_t i = static_cast<std::size_t>(hash_mix(pair ^ seed_)) & (slots_.size() - 1);
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

// Merging begins with bytes or characters. A byte without a piece is left out, so that its
// neighbours meet; a character without one stays, for its byte pieces.
void BpeTokenizer::merge_piece(std::string_view piece, Work& work, std::vector<Token>& out) const {
  auto& symbols = work.symbols;
  symbols.clear();
  char last = 0;  // byte of the symbol before
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = pre_->characters ? utf8_decode(piece.substr(at)).length : 1;
    const Token token = pre_->characters ? table_.find(pieces_, piece.substr(at, length))
                                         : byte_tokens_[static_cast<std::uint8_t>(piece[at])];
    if (token >= 0 || pre_->characters) {
      if (!symbols.empty() && !joined(last, piece[at])) {
        merge_symbols(piece.substr(0, at), work, out);
        symbols.clear();
      }
      const auto i = static_cast<std::uint32_t>(symbols.size());
      const std::uint32_t previous = i == 0 ? kBpeNone : i - 1;
      symbols.push_back({token, static_cast<std::uint32_t>(at), previous, i + 1});
      last = piece[at + length - 1];
    }
    at += length;
  }
  if (!symbols.empty()) merge_symbols(piece, work, out);
}

// The symbols go to the end of `text`.
void BpeTokenizer::merge_symbols(std::string_view text, Work& work, std::vector<Token>& out) const {
  auto& symbols = work.symbols;
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
  for (std::uint32_t i = 0; i != kBpeNone; i = symbols[i].next) {
    const Symbol& symbol = symbols[i];
    if (symbol.token >= 0 && static_cast<std::size_t>(symbol.token) < size()) {
      out.push_back(symbol.token);
      continue;
    }
    const std::size_t end = symbol.next == kBpeNone ? text.size() : symbols[symbol.next].begin;
    for (const char byte : text.substr(symbol.begin, end - symbol.begin)) {
      const Token token = byte_tokens_[static_cast<std::uint8_t>(byte)];
      if (token >= 0) out.push_back(token);
    }
  }
}

void BpeTokenizer::add_piece(std::string_view piece, Work& work, std::vector<Token>& out) const {
  CachedWord word;
  CachedWord* slot = nullptr;
  if (piece.size() < sizeof word.key) {
    char bytes[sizeof word.key] = {};
    std::memcpy(bytes, piece.data(), piece.size());
    bytes[sizeof bytes - 1] = static_cast<char>(piece.size());
    std::memcpy(word.key, bytes, sizeof bytes);
    const std::uint64_t hash =
        (word.key[0] ^ word.key[1] * 0x9e3779b97f4a7c15u) * 0x9e3779b97f4a7c15u;
    slot = &work.words[static_cast<std::size_t>(hash >> 32) & (work.words.size() - 1)];
    if (slot->n_tokens > 0 && slot->key[0] == word.key[0] && slot->key[1] == word.key[1]) {
      out.insert(out.end(), slot->tokens, slot->tokens + slot->n_tokens);
      return;
    }
  }
  const std::size_t before = out.size();
  const bool look_up = pre_->ignore_merges || (pre_->whole_newlines && piece[0] == '\n');
  const Token whole = look_up ? table_.find(pieces_, piece) : -1;
  if (whole >= 0) {
    out.push_back(whole);
  } else {
    merge_piece(piece, work, out);
  }
  const std::size_t n = out.size() - before;
  if (!slot || n == 0 || n > std::size(word.tokens)) return;
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), word.tokens);
  word.n_tokens = static_cast<std::uint32_t>(n);
  *slot = word;
}

// The text that is cut and merged; `room` holds it where it differs.
std::string_view BpeTokenizer::normalize(std::string_view text, std::string& room) const {
  if (pre_->characters && !pre_->words_only && text.find(kSpaceMark) != std::string_view::npos) {
    append_unmarked(text, room);
    text = room;
  }
  if (pre_->space_prefix) {
    std::string lines;
    bool begins = true;
    for (const char c : text) {
      if (begins && c != '\n' && c != ' ') lines.push_back(' ');
      lines.push_back(c);
      begins = c == '\n';
    }
    room = std::move(lines);
    return room;
  }
  if (!lowercase_) return text;
  while (!text.empty()) {
    const Utf8Char c = utf8_decode(text);
    if (c.state == Utf8::whole) {
      jinja::append_lower(room, c.code_point);
    } else {
      room.append(text.substr(0, c.length));
    }
    text.remove_prefix(c.length);
  }
  return room;
}

Status BpeTokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  std::string room;
  text = normalize(text, room);
  constexpr std::size_t kFewWords = 16, kManyWords = 8192;
  Work work;
  work.words.resize(std::bit_ceil(std::clamp(text.size() / 16, kFewWords, kManyWords)));
  if (pattern_ == nullptr) {
    pre_->split(text, [&](std::string_view piece) { add_piece(piece, work, out); });
    return {};
  }
  std::vector<PreTokenMatch> pieces;
  DECANT_TRY(pattern_->cut(text, pieces));
  for (const PreTokenMatch& p : pieces) add_piece(text.substr(p.begin, p.end - p.begin), work, out);
  return {};
}

std::size_t BpeTokenizer::table_bytes() const noexcept {
  return sizeof *this + merges_.capacity() * sizeof(Merge) + joined_.capacity() / 8 +
         slots_.capacity() * sizeof(std::uint32_t) + table_.memory_bytes();
}

}  // namespace decant::detail
