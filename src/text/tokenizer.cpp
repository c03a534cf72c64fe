// What all tokenizers share: special tokens, end tokens, joining spans, bytes of tokens.
#include "text/tokenizer.hpp"

#include <algorithm>

#include "text/bpe.hpp"
#include "text/plamo2.hpp"
#include "text/rwkv.hpp"
#include "text/spm.hpp"
#include "text/unicode.hpp"
#include "text/unigram.hpp"
#include "text/word_piece.hpp"

namespace decant::detail {

// Texts of special tokens that end a turn or a text, whatever the file names as its end.
static constexpr std::string_view kTokenizerEnds[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "<|EOT|>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
};

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const Vocabulary& vocabulary) {
  if (vocabulary.token_bytes() > UINT32_MAX) {
    return make_error(ErrorCode::unsupported,
                      "tokenizer.ggml.tokens: {} bytes of pieces; at most 2^32 - 1 are supported",
                      vocabulary.token_bytes());
  }
  std::unique_ptr<Tokenizer> t;
  if (vocabulary.model == "gpt2" || vocabulary.model == "gemma4" ||
      vocabulary.model == "whitespace") {
    DECANT_ASSIGN(t, BpeTokenizer::create(vocabulary));
  } else if (vocabulary.model == "llama") {
    DECANT_ASSIGN(t, SpmTokenizer::create(vocabulary));
  } else if (vocabulary.model == "t5") {
    DECANT_ASSIGN(t, UnigramTokenizer::create(vocabulary));
  } else if (vocabulary.model == "bert") {
    DECANT_ASSIGN(t, WordPieceTokenizer::create(vocabulary));
  } else if (vocabulary.model == "rwkv") {
    DECANT_ASSIGN(t, RwkvTokenizer::create(vocabulary));
  } else if (vocabulary.model == "plamo2") {
    DECANT_ASSIGN(t, Plamo2Tokenizer::create(vocabulary));
  } else {
    return make_error(ErrorCode::unsupported,
                      "the tokenizer '{}' (tokenizer.ggml.model) is not supported; token ids still "
                      "work",
                      vocabulary.model.substr(0, 64));
  }

  t->phi3_ = vocabulary.phi3;
  if (!t->bos_) t->bos_ = vocabulary.bos;
  t->add_bos_ = t->bos_ && vocabulary.add_bos.value_or(t->add_bos_);
  if (vocabulary.add_eos.value_or(false) && !t->closing_) t->closing_ = vocabulary.eos;
  t->is_special_.resize(t->size());
  std::vector<SpecialTokens::Entry> always, control;
  for (const auto& id : {vocabulary.eos, vocabulary.eot}) {
    if (id) t->end_tokens_.push_back(*id);
  }
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    const auto token = static_cast<Token>(i);
    const std::string_view text = t->pieces_[i];
    if (type == TokenType::user_defined) {
      always.push_back({std::string(text), token});
    } else if (type == TokenType::control || type == TokenType::unknown) {
      control.push_back({std::string(text), token});
    } else {
      continue;
    }
    t->is_special_[i] = true;
    const auto ends = std::span(kTokenizerEnds);
    if (std::find(ends.begin(), ends.end(), text) != ends.end()) t->end_tokens_.push_back(token);
  }
  std::vector<Token>& ends = t->end_tokens_;
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  t->specials_ = SpecialTokens(std::move(always), std::move(control));
  return t;
}

// Where the text goes on behind a special token. Those of Phi 3 but three have `rstrip` in its
// tokenizer.json, of which GGUF files say nothing.
std::size_t Tokenizer::after_special(std::string_view text,
                                     const SpecialTokens::Match& match) const {
  std::size_t end = match.end;
  const std::string_view token = text.substr(match.begin, end - match.begin);
  if (!phi3_ || token == "<unk>" || token == "<s>" || token == "<|endoftext|>") return end;
  while (end < text.size()) {
    const Utf8Char c = utf8_decode(text.substr(end));
    if (!unicode_is(c.code_point, kUnicodeSpace)) break;
    end += c.length;
  }
  return end;
}

Status Tokenizer::tokenize(std::span<const TextSpan> spans, std::vector<Token>& out) const {
  std::size_t size = 0;
  for (const TextSpan& span : spans) {
    if (span.text.size() > kMaxTextBytes - size) {
      return make_error(ErrorCode::invalid_argument,
                        "the text is longer than the {} bytes that can be tokenised at once",
                        kMaxTextBytes);
    }
    size += span.text.size();
  }
  std::string joined;
  std::vector<SpecialTokens::Range> special;
  if (spans.size() > 1) joined.reserve(size);
  size = 0;
  for (const TextSpan& span : spans) {
    const std::size_t begin = size;
    size += span.text.size();
    if (spans.size() > 1) joined.append(span.text);
    if (!span.special || span.text.empty()) continue;
    if (special.empty() || special.back().end != begin) special.push_back({begin, begin});
    special.back().end = size;
  }
  const std::string_view text = spans.size() == 1 ? spans[0].text : std::string_view(joined);

  const std::size_t n_before = out.size();
  const auto append_all = [&]() -> Status {
    std::size_t from = 0;
    for (const SpecialTokens::Match& match : specials_.find(text, special)) {
      if (match.begin < from) continue;  // a piece of spaces
      if (from < match.begin) DECANT_TRY(tokenize_text(text.substr(from, match.begin - from), out));
      out.push_back(match.token);
      from = after_special(text, match);
    }
    if (from < text.size()) DECANT_TRY(tokenize_text(text.substr(from), out));
    return {};
  };
  try {
    const Status appended = append_all();
    if (!appended) out.resize(n_before);
    return appended;
  } catch (...) {
    out.resize(n_before);
    throw;
  }
}

Status Tokenizer::detokenize(std::span<const Token> tokens, std::string& out) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && static_cast<std::size_t>(tokens[i]) < size()) continue;
    return make_error(ErrorCode::invalid_argument,
                      "token {} at position {} is outside the vocabulary (0 to {})", tokens[i], i,
                      size() - 1);
  }
  bool prefixed = space_prefix_;
  for (const Token token : tokens) {
    std::string_view piece = piece_bytes(token);
    const bool special = is_special_[static_cast<std::size_t>(token)];
    if (prefixed && !special && piece.starts_with(' ')) piece.remove_prefix(1);
    out.append(piece);
    prefixed = space_prefix_ && special;
  }
  return {};
}

std::string_view Tokenizer::piece_bytes(Token token) const noexcept {
  if (token < 0 || static_cast<std::size_t>(token) >= size()) return {};
  return pieces_[static_cast<std::size_t>(token)];
}

bool Tokenizer::is_end(Token token) const noexcept {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

std::size_t Tokenizer::memory_bytes() const noexcept {
  return table_bytes() + pieces_.memory_bytes() + specials_.memory_bytes() +
         end_tokens_.capacity() * sizeof(Token) + is_special_.capacity() / 8 + kind_.capacity();
}

}  // namespace decant::detail
