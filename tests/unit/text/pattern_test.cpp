// Pre-tokenizers by expressions of the host: PCRE2 and the matchers written by hand are independent
// of each other and must cut alike.
#include "text/pattern.hpp"

#include <random>
#include <string>

#include "support/catch.hpp"

using namespace decant::detail;
using decant::ErrorCode;

#ifdef DECANT_PCRE2

namespace {

std::vector<std::string> cut(const Pattern& pattern, const std::string& text) {
  std::vector<PreTokenMatch> pieces;
  pattern.cut(text, pieces).value();
  std::vector<std::string> out;
  for (const PreTokenMatch& p : pieces) out.push_back(text.substr(p.begin, p.end - p.begin));
  return out;
}

std::string random_text(std::mt19937& dice) {
  static const char* const parts[] = {"a",
                                      "Z",
                                      "'s",
                                      "'LL",
                                      " ",
                                      "  ",
                                      "\n",
                                      "\r\n",
                                      "\t",
                                      "1",
                                      "23",
                                      ".",
                                      "!?",
                                      "_",
                                      "\xc3\xa9",
                                      "\xe6\xb1\x89",
                                      "\xcc\x81",
                                      "\xf0\x9f\x99\x82",
                                      "\xe0\xa5\x80",
                                      "\xc2\xa0",
                                      "\xd9\xa3"};
  std::string text;
  for (std::size_t n = dice() % 24; n > 0; --n) text += parts[dice() % std::size(parts)];
  return text;
}

}  // namespace

TEST_CASE("expressions cut as the matchers written by hand") {
  const struct {
    const char* name;
    const char* expression;  // of the models' tokenizer.json
  } families[] = {
      {"gpt-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
      {"llama-bpe",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"qwen2",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
  for (const auto& family : families) {
    const auto pattern = Pattern::create(family.expression).value();
    const PreTokenizer* const by_hand = find_pre_tokenizer(family.name);
    REQUIRE(by_hand != nullptr);
    std::mt19937 dice(7);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_text(dice);
      std::vector<std::string> expected;
      by_hand->split(text, [&](std::string_view piece) { expected.emplace_back(piece); });
      CAPTURE(family.name, text);
      REQUIRE(cut(*pattern, text) == expected);
    }
  }
}

TEST_CASE("bytes that are no UTF-8 are pieces of their own") {
  const auto pattern = Pattern::create("[a-z]+").value();
  CHECK(cut(*pattern, "ab\xff\xc3(c") == std::vector<std::string>{"ab", "\xff", "\xc3", "(", "c"});
  CHECK(cut(*pattern, "").empty());
}

TEST_CASE("expressions that are wrong or never end are errors") {
  for (const char* wrong : {"(", "[z-a]", "a{2,1}", "\\C", "(?<n>"}) {
    const auto pattern = Pattern::create(wrong);
    REQUIRE_FALSE(pattern);
    CHECK(pattern.error().code() == ErrorCode::invalid_argument);
  }
  std::vector<PreTokenMatch> pieces;
  const auto endless = Pattern::create("(a+)+$").value();
  const auto status = endless->cut(std::string(60, 'a') + "b", pieces);
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == ErrorCode::invalid_argument);
  CHECK(cut(*Pattern::create("a*|(?=b)").value(), "bab") ==
        std::vector<std::string>{"b", "a", "b"});  // empty matches cut nothing
}

#else

TEST_CASE("builds without PCRE2 take no expressions") {
  const auto pattern = Pattern::create("a");
  REQUIRE_FALSE(pattern);
  CHECK(pattern.error().code() == ErrorCode::unsupported);
}

#endif
