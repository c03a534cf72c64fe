#include "text/pattern.hpp"

#ifdef DECANT_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "text/unicode.hpp"

namespace decant::detail {

static constexpr std::uint32_t kPatternSteps = 10'000'000;  // of one match
static constexpr std::uint32_t kPatternHeapKiB = 32 << 10;

static PCRE2_SPTR pattern_text(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

class PcrePattern final : public Pattern {
 public:
  static Result<std::shared_ptr<const Pattern>> create(std::string_view expression);
  Status cut(std::string_view text, std::vector<PreTokenMatch>& pieces) const override;

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  };
  Status cut_utf8(std::string_view text, std::size_t offset, pcre2_match_data* data,
                  std::vector<PreTokenMatch>& pieces) const;

  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> limits_;
};

Result<std::shared_ptr<const Pattern>> PcrePattern::create(std::string_view expression) {
  const auto pattern = std::make_shared<PcrePattern>();
  int error = 0;
  PCRE2_SIZE place = 0;
  pattern->code_.reset(pcre2_compile(pattern_text(expression), expression.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                     &place, nullptr));
  if (pattern->code_ == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return make_error(ErrorCode::invalid_argument,
                      "the pre-tokenizer's expression is wrong at character {}: {}", place,
                      reinterpret_cast<const char*>(message));
  }
  pattern->limits_.reset(pcre2_match_context_create(nullptr));
  if (pattern->limits_ == nullptr)
    return Error(ErrorCode::out_of_memory, "no memory for the pre-tokenizer's expression");
  pcre2_set_match_limit(pattern->limits_.get(), kPatternSteps);
  pcre2_set_heap_limit(pattern->limits_.get(), kPatternHeapKiB);
  return std::shared_ptr<const Pattern>(pattern);
}

Status PcrePattern::cut_utf8(std::string_view text, std::size_t offset, pcre2_match_data* data,
                             std::vector<PreTokenMatch>& pieces) const {
  for (std::size_t from = 0; from < text.size();) {
    const int found = pcre2_match(code_.get(), pattern_text(text), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, limits_.get());
    std::size_t begin = text.size(), end = begin;
    if (found >= 0) {
      const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data);
      // \K in a lookahead can put the end before the beginning.
      begin = std::max(from, std::min(range[0], range[1]));
      end = std::max(range[0], range[1]);
    } else if (found != PCRE2_ERROR_NOMATCH) {
      return make_error(ErrorCode::invalid_argument,
                        "the pre-tokenizer's expression needs too many steps or too much memory at "
                        "byte {} of the text",
                        offset + from);
    }
    if (begin > from) pieces.push_back({offset + from, offset + begin});
    if (end > begin) pieces.push_back({offset + begin, offset + end});
    from = end;
  }
  return {};
}

Status PcrePattern::cut(std::string_view text, std::vector<PreTokenMatch>& pieces) const {
  const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  if (data == nullptr)
    return Error(ErrorCode::out_of_memory, "no memory to match the pre-tokenizer's expression");
  std::size_t valid = 0;  // the beginning of a run of UTF-8
  for (std::size_t at = 0; at <= text.size();) {
    if (at < text.size()) {
      const Utf8Char character = utf8_decode(text.substr(at));
      if (character.state == Utf8::whole) {
        at += character.length;
        continue;
      }
    }
    DECANT_TRY(cut_utf8(text.substr(valid, at - valid), valid, data.get(), pieces));
    if (at < text.size()) pieces.push_back({at, at + 1});
    valid = ++at;
  }
  return {};
}

Result<std::shared_ptr<const Pattern>> Pattern::create(std::string_view expression) {
  return PcrePattern::create(expression);
}

}  // namespace decant::detail

#else

namespace decant::detail {

Result<std::shared_ptr<const Pattern>> Pattern::create(std::string_view) {
  return Error(
      ErrorCode::unsupported,
      "this build takes no expressions for pre-tokenizers; configure with DECANT_PCRE2=ON");
}

}  // namespace decant::detail

#endif
