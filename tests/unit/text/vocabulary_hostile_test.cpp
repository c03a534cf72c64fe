// Vocabularies made to be slow: pieces and merges that an unseeded hash puts into one place, equal
// pieces, end tokens alone. The time for sixteen times as many is about sixteen times as much.
#include <algorithm>
#include <functional>

#include "support/gguf_writer.hpp"
#include "unit/text/small_stack.hpp"
#include "unit/text/text_support.hpp"

using namespace decant_test;

static constexpr std::size_t kMany = 1 << 11;

// time(16n) / time(n) is 16 for linear time, more where caches end, 256 for quadratic time. The
// least of some measurements counts, since a busy machine slows them.
static void check_times(const std::function<double(std::size_t)>& time) {
  double few = 1e9, many = 1e9;
  for (int attempt = 0; attempt < 8 && (attempt < 2 || many > 64 * few); ++attempt) {
    few = std::min(few, time(kMany));
    many = std::min(many, time(16 * kMany));
  }
  CHECK(many <= 64 * few);
}

static void check_load(OwnVocabulary (*make)(std::size_t)) {
  check_times([&](std::size_t n) {
    OwnVocabulary own = make(n);
    own.view();
    bool ok = false;
    const double s = seconds([&] { ok = bool(Tokenizer::create(own.v)); });
    REQUIRE(ok);
    return s;
  });
}

static constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;

// Texts of 8 printable bytes whose product with the golden ratio's multiplier has the same bits
// when its halves are folded: found by running over the upper half and dividing by the multiplier
// modulo 2^64.
static const std::vector<std::string>& colliding_pieces() {
  static const std::vector<std::string> pieces = [] {
    std::uint64_t inverse = kMultiplier;  // Newton: each step doubles the bits that are right
    for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
    std::vector<std::string> out;
    for (std::uint64_t x = 0; out.size() < 16 * kMany; ++x) {
      const std::uint64_t upper = (x * 0x9e3779b1u) & 0xffffffffu;
      const std::uint64_t product = upper << 32 | (upper ^ 0x12345678u);
      const std::uint64_t word = (product * inverse) ^ 8;  // 8: the length
      std::string text(8, ' ');
      bool printable = true;
      for (std::size_t b = 0; b < 8 && printable; ++b) {
        text[b] = static_cast<char>(word >> (8 * b) & 0xff);
        printable = text[b] > 0x20 && text[b] < 0x7f;
      }
      if (printable) out.push_back(std::move(text));
    }
    return out;
  }();
  return pieces;
}

static OwnVocabulary empty_vocabulary(const char* model) {
  OwnVocabulary own = sentence_piece();
  own.v.model = model;
  return own;
}

// Pairs of pieces whose ids, side by side and times the multiplier, have the same bits from the
// 32nd on, as many as tell the places of a table for `n` apart.
static OwnVocabulary colliding_merges(std::size_t n) {
  OwnVocabulary own = byte_level();
  std::vector<std::vector<Token>> rights(2 * n);  // by those bits
  for (std::size_t i = 0; i < 2 * n; ++i) {
    const Token id = own.add("x" + std::to_string(i));
    rights[static_cast<std::uint64_t>(id) * kMultiplier >> 32 & (2 * n - 1)].push_back(id);
  }
  for (std::uint64_t left = 256; own.merges.size() < n && left < own.tokens.size(); ++left)
    for (const Token right : rights[(0 - left * kMultiplier) & (2 * n - 1)])
      if (own.merges.size() < n)
        own.merges.push_back(own.tokens[left] + " " + own.tokens[static_cast<std::size_t>(right)]);
  REQUIRE(own.merges.size() == n);
  return own;
}

TEST_CASE("loading takes time in proportion to the pieces, however they were chosen") {
  SECTION("pieces of one hash, SentencePiece") {
    check_load([](std::size_t n) {
      OwnVocabulary own = empty_vocabulary("llama");
      for (std::size_t i = 0; i < n; ++i) own.add(colliding_pieces()[i]);
      return own;
    });
  }
  SECTION("pieces of one hash, byte-level BPE") {
    check_load([](std::size_t n) {
      OwnVocabulary own = byte_level();
      for (std::size_t i = 0; i < n; ++i) own.add(colliding_pieces()[i]);
      return own;
    });
  }
  SECTION("merges of one hash") { check_load(colliding_merges); }
  SECTION("equal pieces") {
    check_load([](std::size_t n) {
      OwnVocabulary own = empty_vocabulary("llama");
      for (std::size_t i = 0; i < n; ++i) own.add("ab");
      return own;
    });
  }
  SECTION("end tokens alone") {
    check_times([](std::size_t n) {
      GgufWriter w;
      w.add_string("tokenizer.ggml.model", "llama");
      w.add_strings("tokenizer.ggml.tokens", std::vector<std::string>(n, "<EOT>"));
      w.add_f32s("tokenizer.ggml.scores", std::vector<float>(n));
      w.add_i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>(n, 3));
      const auto file = w.finish();
      decant::ModelOptions options;
      options.vocabulary_only = true;
      bool ok = false;
      const double s = seconds(
          [&] { ok = bool(decant::Model::load(std::span<const std::byte>(file), options)); });
      REQUIRE(ok);
      return s;
    });
  }
}

TEST_CASE("end tokens are a sorted set, each known by itself") {
  OwnVocabulary own = empty_vocabulary("llama");
  const Token first = own.add("<EOT>", TokenType::control);
  own.add("<EOT>", TokenType::normal);
  const Token last = own.add("<EOT>", TokenType::control);
  own.v.eot = last;
  const auto t = own.make();
  const auto ends = t->end_tokens();
  CHECK(std::vector<Token>(ends.begin(), ends.end()) == std::vector<Token>{2, first, last});
  for (Token i = 0; i < static_cast<Token>(t->size()); ++i)
    CHECK(t->is_end(i) == std::count(ends.begin(), ends.end(), i));
}
