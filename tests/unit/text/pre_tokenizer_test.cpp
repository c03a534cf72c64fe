// Where pre-tokenizers cut, against tokenizers 0.23.3 and Python's regex module, which agreed on
// every string here (tests/data/tokenizers/pre_tokenizer.json: text, ends of its pieces in bytes).
#include "text/pre_tokenizer.hpp"

#include "text/unicode.hpp"
#include "unit/text/text_support.hpp"

using namespace decant::detail;

static std::vector<std::size_t> piece_ends(const PreTokenizer& pre, std::string_view text) {
  std::vector<std::size_t> ends;
  for (std::size_t at = 0; at < text.size();) ends.push_back(at = pre.next(text, at));
  return ends;
}

TEST_CASE("pre-tokenizers cut where their expressions do") {
  const auto data = decant_test::text_data("pre_tokenizer.json");
  CHECK(data.size() == 4);
  for (const auto& [name, cases] : data.items()) {
    const PreTokenizer* pre = find_pre_tokenizer(name);
    REQUIRE(pre);
    CHECK(cases.size() >= 50);
    for (const auto& c : cases) {
      CAPTURE(name, c[0].get<std::string>());
      CHECK(piece_ends(*pre, c[0].get<std::string>()) == c[1].get<std::vector<std::size_t>>());
    }
  }
  CHECK(find_pre_tokenizer("") == nullptr);
  CHECK(find_pre_tokenizer("default") == nullptr);
}

TEST_CASE("bytes that are not UTF-8 count as punctuation") {
  using Ends = std::vector<std::size_t>;
  const PreTokenizer& gpt2 = *find_pre_tokenizer("gpt-2");
  CHECK(piece_ends(gpt2, "a\xff\xfe!b") == Ends{1, 4, 5});
  CHECK(piece_ends(gpt2, " \xff 1") == Ends{2, 4});
  CHECK(piece_ends(gpt2, "\xe6\xb1") == Ends{2});  // cut off in the middle
}

// Counts by Python 3.11's unicodedata (Unicode 14.0): categories L*, N*; White_Space.
TEST_CASE("classes of code points") {
  std::size_t counts[4] = {};
  for (std::uint32_t c = 0; c < 0x110000; ++c) ++counts[static_cast<int>(unicode_class(c))];
  CHECK(counts[static_cast<int>(UnicodeClass::letter)] == 131756);
  CHECK(counts[static_cast<int>(UnicodeClass::number)] == 1791);
  CHECK(counts[static_cast<int>(UnicodeClass::space)] == 25);
  CHECK(unicode_class(0xffffffff) == UnicodeClass::other);
  CHECK(unicode_class(0x110000) == UnicodeClass::other);
  for (const std::uint32_t c :
       {0x41u, 0xe9u, 0x17fu, 0x3b1u, 0x5b57u, 0xac00u, 0x1d400u, 0x2fa1du}) {
    CHECK(unicode_class(c) == UnicodeClass::letter);
  }
  for (const std::uint32_t c : {0x30u, 0xb2u, 0xbdu, 0x663u, 0x2167u, 0x3007u, 0x1d7ffu}) {
    CHECK(unicode_class(c) == UnicodeClass::number);
  }
  for (const std::uint32_t c : {0x9u, 0xdu, 0x20u, 0x85u, 0xa0u, 0x1680u, 0x2028u, 0x3000u}) {
    CHECK(unicode_class(c) == UnicodeClass::space);
  }
  for (const std::uint32_t c : {0x0u, 0x1cu, 0x21u, 0x301u, 0x200bu, 0x180eu, 0x1f525u, 0xfffdu}) {
    CHECK(unicode_class(c) == UnicodeClass::other);
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
