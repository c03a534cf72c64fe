// Reads tokenizer.ggml.* and checks everything that the tokenizers rely on.
#include "base/fp_contract.hpp"

#include "text/vocabulary.hpp"

#include <cmath>

#include "format/gguf.hpp"
#include "text/pre_tokenizer.hpp"

namespace decant::detail {

static constexpr std::string_view kVocabularyTokens = "tokenizer.ggml.tokens";

static Status vocabulary_same_length(std::string_view key, std::size_t found, std::size_t wanted) {
  if (found == wanted) return {};
  return make_error(ErrorCode::invalid_file, "{} has {} entries, but {} has {}", key, found,
                    kVocabularyTokens, wanted);
}

// Writers say "none" with an id that no vocabulary has, mostly -1 in 32 bits.
static Status vocabulary_id(const Gguf& file, std::string_view key, Vocabulary& v,
                            std::optional<Token>& to) {
  if (!file.has(key)) return {};
  const std::size_t n_vocab = v.tokens.size();
  std::uint64_t id = UINT64_MAX;
  if (const auto number = file.uint(key, 0)) {
    id = *number;
  } else {
    DECANT_ASSIGN(const std::vector<std::int64_t> numbers, file.integers(key));
    if (numbers.size() != 1 || numbers[0] >= 0) return number.error();
  }
  if (id < n_vocab) {
    to = static_cast<Token>(id);
    return {};
  }
  v.warnings.push_back(std::string(key) + " is outside the vocabulary of " +
                       std::to_string(n_vocab) + " tokens; it is taken as absent");
  return {};
}

static Result<std::optional<bool>> vocabulary_flag(const Gguf& file, std::string_view key) {
  if (!file.has(key)) return std::optional<bool>();
  DECANT_ASSIGN(const bool flag, file.boolean(key, false));
  return std::optional(flag);
}

static Result<std::vector<TokenType>> vocabulary_types(const Gguf& file, std::size_t n_vocab) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  std::vector<TokenType> types(n_vocab, TokenType::normal);
  if (!file.has(kKey)) return types;
  DECANT_ASSIGN(const std::vector<std::int64_t> numbers, file.integers(kKey));
  DECANT_TRY(vocabulary_same_length(kKey, numbers.size(), n_vocab));
  for (std::size_t i = 0; i < n_vocab; ++i) {
    if (numbers[i] < 1 || numbers[i] > 6) {
      return make_error(ErrorCode::invalid_file, "{} of token {} is {}, not one of 1 to 6", kKey, i,
                        numbers[i]);
    }
    types[i] = static_cast<TokenType>(numbers[i]);
  }
  return types;
}

static Result<std::vector<float>> vocabulary_scores(const Gguf& file, std::size_t n_vocab) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  if (!file.has(kKey)) return std::vector<float>();
  DECANT_ASSIGN(std::vector<float> scores, file.floats(kKey));
  DECANT_TRY(vocabulary_same_length(kKey, scores.size(), n_vocab));
  return scores;
}

static Result<std::vector<std::uint8_t>> vocabulary_bytes(const Gguf& file, std::string_view key) {
  DECANT_ASSIGN(const std::vector<std::int64_t> numbers, file.integers(key));
  std::vector<std::uint8_t> bytes;
  bytes.reserve(numbers.size());
  for (const std::int64_t n : numbers) {  // some writers have signed bytes
    if (n < -128 || n > 255) {
      return make_error(ErrorCode::invalid_file, "{} holds {}, which is no byte", key, n);
    }
    bytes.push_back(static_cast<std::uint8_t>(n));
  }
  return bytes;
}

Status Vocabulary::check_score(std::size_t token) const {
  if (std::isfinite(scores[token])) return {};
  return make_error(ErrorCode::invalid_file,
                    "tokenizer.ggml.scores of token {} is not a finite number", token);
}

Result<Vocabulary> read_vocabulary(const Gguf& file) {
  if (!file.has(kVocabularyTokens)) {
    return make_error(ErrorCode::unsupported, "the file has no vocabulary ({} is missing)",
                      kVocabularyTokens);
  }
  Vocabulary v;
  DECANT_ASSIGN(v.model, file.string("tokenizer.ggml.model", ""));
  DECANT_ASSIGN(v.pre, file.string("tokenizer.ggml.pre", kDefaultPreTokenizer));
  DECANT_ASSIGN(v.tokens, file.strings(kVocabularyTokens));
  const std::size_t n_vocab = v.tokens.size();
  if (n_vocab == 0 || n_vocab > 0x7fffffff) {
    return make_error(ErrorCode::invalid_file, "{} has {} entries; wanted 1 to 2^31 - 1",
                      kVocabularyTokens, n_vocab);
  }
  DECANT_ASSIGN(v.scores, vocabulary_scores(file, n_vocab));
  DECANT_ASSIGN(v.types, vocabulary_types(file, n_vocab));
  DECANT_ASSIGN(v.merges, file.strings("tokenizer.ggml.merges"));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.bos_token_id", v, v.bos));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.eos_token_id", v, v.eos));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.eot_token_id", v, v.eot));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.unknown_token_id", v, v.unk));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.cls_token_id", v, v.cls));
  DECANT_TRY(vocabulary_id(file, "tokenizer.ggml.seperator_token_id", v, v.sep));
  DECANT_ASSIGN(v.add_bos, vocabulary_flag(file, "tokenizer.ggml.add_bos_token"));
  DECANT_ASSIGN(v.add_eos, vocabulary_flag(file, "tokenizer.ggml.add_eos_token"));
  DECANT_ASSIGN(v.add_space_prefix, vocabulary_flag(file, "tokenizer.ggml.add_space_prefix"));
  DECANT_ASSIGN(v.remove_extra_whitespaces,
                vocabulary_flag(file, "tokenizer.ggml.remove_extra_whitespaces"));
  DECANT_ASSIGN(v.lowercase, vocabulary_flag(file, "tokenizer.ggml.normalizer.lowercase"));
  DECANT_ASSIGN(v.strip_accents, vocabulary_flag(file, "tokenizer.ggml.normalizer.strip_accents"));
  DECANT_ASSIGN(v.charsmap, vocabulary_bytes(file, "tokenizer.ggml.precompiled_charsmap"));
  DECANT_ASSIGN(v.chat_template, file.string("tokenizer.chat_template", ""));
  DECANT_ASSIGN(const std::string_view architecture, file.string("general.architecture", ""));
  v.phi3 = architecture == "phi3" && v.model == "llama";
  return v;
}

}  // namespace decant::detail
