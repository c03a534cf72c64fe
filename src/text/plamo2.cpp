// Viterbi from the end of the text, over the pieces that begin at each place: an automaton over
// reversed pieces names them, the longest first.
#include "base/fp_contract.hpp"

#include "text/plamo2.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/piece_text.hpp"
#include "text/unicode.hpp"

namespace decant::detail {

// The sum of 2^31 costs stays far below 2^63.
static constexpr double kPlamo2MaxScore = 10000;
static constexpr std::int32_t kPlamo2Unknown = 10'000'000;  // 1000, in units of 1e-4
static constexpr std::int32_t kPlamo2Never = 20'000'000;    // pieces of this cost are not used

Result<std::unique_ptr<Tokenizer>> Plamo2Tokenizer::create(const Vocabulary& vocabulary) {
  if (vocabulary.scores.empty()) {
    return make_error(ErrorCode::invalid_file, "tokenizer.ggml.scores is missing");
  }
  const std::size_t n_vocab = vocabulary.tokens.size();
  auto t = std::make_unique<Plamo2Tokenizer>();
  t->kind_ = "plamo2";
  t->byte_tokens_.fill(-1);
  t->pieces_.reserve(n_vocab, vocabulary.token_bytes());
  std::vector<std::string> patterns;
  std::string piece;
  for (std::size_t i = 0; i < n_vocab; ++i) {
    const TokenType type = vocabulary.types[i];
    const auto token = static_cast<Token>(i);
    const int byte = type == TokenType::byte ? piece_byte(vocabulary.tokens[i]) : -1;
    piece.clear();
    if (byte >= 0) {
      piece.push_back(static_cast<char>(byte));
      t->byte_tokens_[static_cast<std::size_t>(byte)] = token;
    } else if (type != TokenType::unused) {
      piece = vocabulary.tokens[i];
    }
    t->pieces_.add(piece);
    if (type != TokenType::normal) continue;
    DECANT_TRY(vocabulary.check_score(i));
    const double score = vocabulary.scores[i];
    if (score > kPlamo2MaxScore) {
      return make_error(ErrorCode::invalid_file, "tokenizer.ggml.scores of token {} is above {}", i,
                        kPlamo2MaxScore);
    }
    const double cost = -std::round(score * 1e4);
    if (cost >= kPlamo2Never) continue;
    t->tokens_.push_back(token);
    t->costs_.push_back(static_cast<std::int32_t>(cost));
    patterns.emplace_back(piece.rbegin(), piece.rend());
  }
  const auto missing = std::find(t->byte_tokens_.begin(), t->byte_tokens_.end(), -1);
  if (missing != t->byte_tokens_.end()) {
    return make_error(ErrorCode::invalid_file,
                      "tokenizer.ggml.tokens has no piece for byte {} (like <0x0A>)",
                      missing - t->byte_tokens_.begin());
  }
  t->reversed_ = PatternAutomaton({patterns.begin(), patterns.end()});
  return std::unique_ptr<Tokenizer>(std::move(t));
}

Status Plamo2Tokenizer::tokenize_text(std::string_view text, std::vector<Token>& out) const {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();  // inside a character
  std::vector<Step> best(text.size() + 1, Step{kNone, -1, 0});              // [place in the text]
  best.back().cost = 0;
  for (std::size_t at = 0; at < text.size(); at += best[at].length) {
    best[at].length = utf8_decode(text.substr(at)).length;
  }
  auto state = PatternAutomaton::kStart;
  for (std::size_t begin = text.size(); begin-- > 0;) {
    state = reversed_.step(state, text[begin]);
    Step& step = best[begin];
    const auto try_step = [&](std::int64_t cost, Token token, std::uint32_t length) {
      const std::int64_t rest = best[begin + length].cost;
      if (rest != kNone && rest + cost < step.cost) step = {rest + cost, token, length};
    };
    const std::uint32_t character = step.length;  // 0: none begins here
    for (auto match = reversed_.longest(state); match != PatternAutomaton::kStart;
         match = reversed_.shorter(match)) {
      const std::uint32_t pattern = reversed_.pattern(match);
      try_step(costs_[pattern], tokens_[pattern], reversed_.depth(match));
    }
    if (character > 0) try_step(kPlamo2Unknown, -1, character);
  }
  for (std::size_t at = 0; at < text.size(); at += best[at].length) {
    if (best[at].token >= 0) {
      out.push_back(best[at].token);
      continue;
    }
    for (const char byte : text.substr(at, best[at].length)) {
      out.push_back(byte_tokens_[static_cast<std::uint8_t>(byte)]);
    }
  }
  return {};
}

std::size_t Plamo2Tokenizer::table_bytes() const noexcept {
  return sizeof *this + reversed_.memory_bytes() + tokens_.capacity() * sizeof(Token) +
         costs_.capacity() * sizeof(std::int32_t);
}

}  // namespace decant::detail
