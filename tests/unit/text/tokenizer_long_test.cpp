// One long run of one kind of character: constant stack (on a thread that has 256 KiB) and time
// about in proportion to the length.
#include <cmath>

#include "support/real_models.hpp"
#include "text/stream.hpp"
#include "unit/text/small_stack.hpp"
#include "unit/text/text_support.hpp"

using namespace decant_test;

static std::string repeated(std::string_view unit, std::size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

static std::string random_letters(std::size_t size) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < size) text.push_back(static_cast<char>('a' + random() % 26));
  return text;
}

// What doubling the length costs, over four doublings: a factor of 2 for linear time, about 2.1 for
// n log n, 4 for quadratic time. One doubling alone says less: it may be the one that leaves a
// cache. A busy machine may slow one measurement, so the best of a few counts.
static void check_run(const Tokenizer& t, const std::string& text, std::size_t unit) {
  const std::size_t part = text.size() / 16 / unit * unit;
  bool ok = true;
  double factor = 1e9;
  for (int attempt = 0; attempt < 8 && factor > 2.5; ++attempt) {
    on_small_stack([&] {
      const auto time = [&](std::string_view run) {
        std::vector<Token> tokens;
        const TextSpan span = {run, true};
        return seconds([&] { ok = ok && bool(t.tokenize({&span, 1}, tokens)); });
      };
      const double first = time(std::string_view(text).substr(0, part));
      factor = std::min(factor, std::pow(time(text) / first, 0.25));
    });
  }
  CHECK(ok);
  CHECK(factor <= 2.5);
}

static void check_long_runs(const Tokenizer& t, std::size_t size) {
  for (const std::string unit :
       {"A", ".", " ", "\n", "\xe6\xb1\x89", "\xc3\xa9", "aA", "1", "_", "\xc2\xa0",
        "\xe6\xb1\x89"
        "A",
        "\xff", "<|im_", "' "}) {
    CAPTURE(unit);
    check_run(t, repeated(unit, size), unit.size());
  }
  check_run(t, random_letters(size), 1);
}

TEST_CASE("long runs: every pre-tokenizer") {
  const auto names = text_data("pre_tokenizer.json")["ends"];
  CHECK(names.size() >= 29);
  for (const auto& [name, unused] : names.items()) {
    CAPTURE(name);
    auto own = byte_level(name);
    for (const char* c : {"A", ".", "\xc4\xa0", "\xc4\x8a"}) {
      std::string piece = c;
      for (int i = 0; i < 3; ++i) {
        own.merge(piece, piece);
        piece += piece;
      }
    }
    own.add("<|im_end|>", TokenType::control);
    check_long_runs(*own.make(), 1 << 16);
  }
}

TEST_CASE("long runs: the other kinds of tokenizers") {
  for (const std::string model :
       {"llama", "t5", "bert", "rwkv", "plamo2", "gemma4", "mmbert", "whitespace"}) {
    CAPTURE(model);
    auto own = sentence_piece();
    own.v.model = model == "mmbert" ? "gpt2" : model.c_str();
    own.v.pre = own.v.model == "gpt2" ? "mmbert" : "whitespace";
    own.v.cls = 1;
    own.v.sep = 2;
    float score = 0;
    for (const std::string c : {"A", ".", "\xe2\x96\x81", "\n", "\xe6\xb1\x89"}) {
      for (std::size_t n = 1; n <= 8; n *= 2)
        own.add(repeated(c, n * c.size()), TokenType::normal, score -= 1);
    }
    own.add("<|im_end|>", TokenType::control);
    check_long_runs(*own.make(), 1 << 18);
  }
}

TEST_CASE("long runs: real vocabularies", "[real]") {
  for (const char* variable : {"DECANT_SMOLLM2", "DECANT_GEMMA3"}) {
    const auto path = real_model(variable);
    if (!path) DECANT_SKIP(std::string(variable) + " is not set");
    check_long_runs(*tokenizer_of_file(*path), 1 << 20);
  }
}

TEST_CASE("long stop strings cost no more than their text") {
  // A stop string of 256 KiB, pushed byte by byte, that nearly matches again and again.
  const std::string stop = repeated("a", 1 << 18) + "b";
  const auto time = [&](std::size_t size) {
    auto finder = *decant::detail::StopStrings::create(std::vector<std::string>{stop});
    std::string out;
    const double s = seconds([&] {
      for (std::size_t i = 0; i < size; ++i) finder.push(i % 300000 == 299999 ? "c" : "a", out);
      finder.finish(out);
    });
    CHECK(out.size() == size);
    return s;
  };
  double ratio = 1e9;
  for (int attempt = 0; attempt < 5 && ratio > 64; ++attempt) ratio = time(1 << 21) / time(1 << 17);
  CHECK(ratio <= 64);
}
