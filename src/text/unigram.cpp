// Viterbi over the ends of pieces: an automaton over all pieces names, at each place of the text,
// those that end there.
#include "base/fp_contract.hpp"

#include "text/unigram.hpp"

#include <algorithm>
#include <limits>

#include "text/piece_text.hpp"
#include "text/unicode.hpp"

namespace decant::detail {

Result<std::unique_ptr<Tokenizer>> UnigramTokenizer::create(const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) {
    return make_error(ErrorCode::invalid_file, "tokenizer.ggml.scores is missing");
  }
  const std::size_t n_vocab = vocabulary.tokens.size();
  auto t = std::make_unique<UnigramTokenizer>();
  DECANT_ASSIGN(t->charsmap_, Charsmap::create(vocabulary.charsmap));
  t->kind_ = "t5";
  t->scores_ = vocabulary.scores;
  t->space_prefix_ = vocabulary.add_space_prefix.value_or(true);
  t->remove_extra_spaces_ = vocabulary.remove_extra_whitespaces.value_or(true);
  const bool add_eos = vocabulary.add_eos.value_or(true);
  if (add_eos) t->closing_ = vocabulary.eos;
  t->unknown_ = vocabulary.unk.value_or(static_cast<Token>(std::min<std::size_t>(2, n_vocab - 1)));
  t->byte_tokens_.fill(-1);
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());

  float lowest = std::numeric_limits<float>::max();
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const TokenType type = vocabulary.types[i];
    const auto token = static_cast<Token>(i);
    const int byte = type == TokenType::byte ? piece_byte(vocabulary.tokens[i]) : -1;
    piece.clear();
    if (byte >= 0) {
      piece.push_back(static_cast<char>(byte));
      t->byte_tokens_[static_cast<std::size_t>(byte)] = token;
    } else if (type == TokenType::normal) {
      append_unmarked(vocabulary.tokens[i], piece);
      DECANT_TRY(vocabulary.check_score(i));
      lowest = std::min(lowest, vocabulary.scores[i]);
      if (!piece.empty()) t->tokens_.push_back(token);
    } else if (type != TokenType::unused) {
      piece = vocabulary.tokens[i];
    }
    t->pieces_.add(piece);
  }
  std::vector<std::string_view> patterns;
  for (const Token token : t->tokens_)
    patterns.push_back(t->pieces_[static_cast<std::size_t>(token)]);
  t->automaton_ = PatternAutomaton(patterns);
  t->unknown_score_ = (t->tokens_.empty() ? 0.0 : lowest) - 10.0;  // SentencePiece's penalty
  return std::unique_ptr<Tokenizer>(std::move(t));
}

std::string UnigramTokenizer::normalize(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + 1);
  if (space_prefix_) out.push_back(' ');
  bool after_space = remove_extra_spaces_;
  while (!text.empty()) {
    const Charsmap::Match match = charsmap_.find(text);
    const Utf8Char c = utf8_decode(text);
    std::string_view part = match.replacement;
    if (match.length == 0)
      part = c.state == Utf8::whole ? text.substr(0, c.length) : "\xef\xbf\xbd";
    text.remove_prefix(match.length > 0 ? match.length : c.length);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;
    append_unmarked(part, out);
    after_space = remove_extra_spaces_ && part.ends_with(' ');
  }
  if (remove_extra_spaces_) {
    while (out.ends_with(' ')) out.pop_back();
  }
  return out;
}

Status UnigramTokenizer::tokenize_text(std::string_view raw, std::vector<Token>& out) const {
  const std::string text = normalize(raw);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<Step> best(text.size() + 1, Step{kNone, -1, 0});  // [place in the text]
  best[0].score = 0;
  std::size_t character = 0;  // where the one that goes on here begins
  std::size_t character_end = 0;
  auto state = PatternAutomaton::kStart;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    if (end > character_end) {
      character = end - 1;
      character_end = character + utf8_decode(std::string_view(text).substr(character)).length;
    }
    state = automaton_.step(state, text[end - 1]);
    Step& step = best[end];
    bool is_piece = false;  // the whole character
    for (auto match = automaton_.longest(state); match != PatternAutomaton::kStart;
         match = automaton_.shorter(match)) {
      const std::size_t begin = end - automaton_.depth(match);
      const Token token = tokens_[automaton_.pattern(match)];
      const double score = best[begin].score + scores_[static_cast<std::size_t>(token)];
      if (score > step.score) step = {score, token, static_cast<std::uint32_t>(begin)};
      is_piece = is_piece || begin == character;
    }
    if (end != character_end || is_piece) continue;
    const double score = best[character].score + unknown_score_;
    if (score > step.score) step = {score, -1, static_cast<std::uint32_t>(character)};
  }

  const std::size_t before = out.size();
  bool after_unknown = false;  // neighbouring unknown characters are one unknown token
  for (std::size_t end = text.size(); end > 0; end = best[end].begin) {
    const Step& step = best[end];
    const std::string_view bytes = std::string_view(text).substr(step.begin, end - step.begin);
    const auto byte_token = [&](char b) { return byte_tokens_[static_cast<std::uint8_t>(b)]; };
    const bool in_bytes =
        std::all_of(bytes.begin(), bytes.end(), [&](char b) { return byte_token(b) >= 0; });
    if (step.token >= 0) {
      out.push_back(step.token);
    } else if (in_bytes) {
      for (std::size_t i = bytes.size(); i-- > 0;) out.push_back(byte_token(bytes[i]));
    } else if (!after_unknown) {
      out.push_back(unknown_);
    }
    after_unknown = step.token < 0 && !in_bytes;
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
  return {};
}

std::size_t UnigramTokenizer::table_bytes() const noexcept {
  return sizeof *this + charsmap_.memory_bytes() + automaton_.memory_bytes() +
         tokens_.capacity() * sizeof(Token) + scores_.capacity() * sizeof(float);
}

}  // namespace decant::detail
