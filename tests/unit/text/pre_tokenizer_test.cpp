// Where pre-tokenizers cut, against the regex package of PyPI with the models' own expressions
// (tests/support/pre_tokenizer_cases.py writes tests/data/tokenizers/pre_tokenizer.json).
#include "text/pre_tokenizer.hpp"

#include <sstream>

#include "text/unicode.hpp"
#include "unit/text/text_support.hpp"

using namespace decant::detail;

static std::vector<std::size_t> piece_ends(const PreTokenizer& pre, std::string_view text) {
  std::vector<std::size_t> ends;
  std::size_t at = 0;
  pre.split(text, [&](std::string_view piece) { ends.push_back(at += piece.size()); });
  return ends;
}

TEST_CASE("pre-tokenizers cut where their expressions do") {
  const auto data = decant_test::text_data("pre_tokenizer.json");
  CHECK(data["texts"].size() >= 60);
  CHECK(data["ends"].size() >= 29);
  for (const auto& [name, ends] : data["ends"].items()) {
    const PreTokenizer* pre = find_pre_tokenizer(name);
    REQUIRE(pre);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const auto text = data["texts"][i].get<std::string>();
      CAPTURE(name, text);
      CHECK(piece_ends(*pre, text) == ends[i].get<std::vector<std::size_t>>());
    }
  }
}

// The names that llama.cpp 11434 knows (src/llama-vocab.cpp).
TEST_CASE("every name of a pre-tokenizer is known") {
  std::istringstream names(
      "default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
      "jina-v5-nano deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt "
      "starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum "
      "modern-bert jais-2 gemma4 granite-embed-multi-311m sarvam-moe jina-v1-en jina-v2-code "
      "roberta-bpe refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 "
      "olmo dbrx smaug-bpe poro-chat chatglm-bpe glm4 glm5 viking jais tekken smollm "
      "codeshell bloom gpt3-finnish exaone exaone4 exaone-moe chameleon minerva-7b megrez "
      "gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe "
      "trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan "
      "hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 "
      "solar-open mellum2 mmbert whitespace");
  std::size_t count = 0;
  for (std::string name; names >> name; ++count) {
    CAPTURE(name);
    CHECK(find_pre_tokenizer(name) != nullptr);
  }
  CHECK(count == 92);
  for (const char* name : {"", " ", "gpt", "gpt-2 phi-2", "deepseek-v9"}) {
    CAPTURE(name);
    CHECK(find_pre_tokenizer(name) == nullptr);
  }
}

TEST_CASE("bytes that are not UTF-8 count as symbols") {
  using Ends = std::vector<std::size_t>;
  const PreTokenizer& gpt2 = *find_pre_tokenizer("gpt-2");
  CHECK(piece_ends(gpt2, "a\xff\xfe!b") == Ends{1, 4, 5});
  CHECK(piece_ends(gpt2, " \xff 1") == Ends{2, 4});
  CHECK(piece_ends(gpt2, "\xe6\xb1") == Ends{2});  // cut off in the middle
}

// Counts by Python 3.11's unicodedata (Unicode 14.0): general categories; White_Space.
TEST_CASE("classes of code points") {
  const auto count = [](UnicodeSet set) {
    std::size_t n = 0;
    for (std::uint32_t c = 0; c < 0x110000; ++c) n += unicode_is(c, set);
    return n;
  };
  CHECK(count(kUnicodeLetter) == 131756);
  CHECK(count(unicode_set(UnicodeClass::upper)) == 1831);
  CHECK(count(unicode_set(UnicodeClass::lower)) == 2227);
  CHECK(count(unicode_set(UnicodeClass::title)) == 31);
  CHECK(count(unicode_set(UnicodeClass::modifier)) == 334);
  CHECK(count(kUnicodeMark) == 2408);
  CHECK(count(unicode_set(UnicodeClass::accent)) == 1950);
  CHECK(count(kUnicodeNumber) == 1791);
  CHECK(count(unicode_set(UnicodeClass::digit)) == 660);
  CHECK(count(unicode_set(UnicodeClass::numeral)) == 236);
  CHECK(count(kUnicodePunctuation) == 819);
  CHECK(count(unicode_set(UnicodeClass::connector)) == 10);
  CHECK(count(kUnicodeSymbol) == 7741);
  CHECK(count(kUnicodeSpace) == 25);
  CHECK(count(unicode_set(UnicodeClass::control)) == 65 - 6 + 163 + 137468 + 2048);
  CHECK(unicode_class(0xffffffff) == UnicodeClass::unassigned);
  CHECK(unicode_class(0x110000) == UnicodeClass::unassigned);
  for (const std::uint32_t c :
       {0x41u, 0xe9u, 0x17fu, 0x3b1u, 0x5b57u, 0xac00u, 0x1d400u, 0x2fa1du, 0x3134au}) {
    CHECK(unicode_is(c, kUnicodeLetter));
  }
  for (const std::uint32_t c : {0x30u, 0xb2u, 0xbdu, 0x663u, 0x2167u, 0x3007u, 0x1d7ffu}) {
    CHECK(unicode_is(c, kUnicodeNumber));
  }
  for (const std::uint32_t c : {0x9u, 0xdu, 0x20u, 0x85u, 0xa0u, 0x1680u, 0x2028u, 0x3000u}) {
    CHECK(unicode_is(c, kUnicodeSpace));
  }
  for (const std::uint32_t c : {0x301u, 0x20ddu, 0xe0100u, 0xe01efu}) {
    CHECK(unicode_is(c, kUnicodeMark));
  }
  for (const std::uint32_t c : {0x0u, 0x1cu, 0x200bu, 0x180eu, 0xe0020u, 0xf0000u, 0x10fffdu}) {
    CHECK(unicode_class(c) == UnicodeClass::control);
  }
}

TEST_CASE("UTF-8 decodes every code point and nothing else") {
  for (std::uint32_t c = 0; c < 0x110000; c += c < 0x10000 ? 1 : 37) {
    std::string s;
    if (c < 0x80) {
      s = {static_cast<char>(c)};
    } else if (c < 0x800) {
      s = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    } else {
      s = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const Utf8Char decoded = utf8_decode(s + "x");
    if (c >= 0xd800 && c < 0xe000) {
      REQUIRE(decoded.state == Utf8::invalid);
      continue;
    }
    REQUIRE(decoded.state == Utf8::whole);
    REQUIRE(decoded.code_point == c);
    REQUIRE(decoded.length == s.size());
    for (std::size_t n = 1; n < s.size(); ++n) {
      REQUIRE(utf8_decode(s.substr(0, n)).state == Utf8::incomplete);
      REQUIRE(utf8_decode(s.substr(0, n) + "x").state == Utf8::invalid);
    }
  }
}
