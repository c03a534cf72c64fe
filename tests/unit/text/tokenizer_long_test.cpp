// One long run of one kind of character: constant stack (on a thread that has 256 KiB) and time
// about in proportion to the length.
#include <chrono>
#include <ctime>
#include <functional>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#include <thread>

#include "support/real_models.hpp"
#include "text/stream.hpp"
#include "unit/text/text_support.hpp"

using namespace decant_test;

static void on_small_stack(const std::function<void()>& work) {
#if defined(__unix__) || defined(__APPLE__)
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
  pthread_t thread;
  const auto run = [](void* p) -> void* {
    (*static_cast<const std::function<void()>*>(p))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)) ==
          0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
#else
  std::thread(work).join();
#endif
}

static std::string repeated(std::string_view unit, std::size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

/// Processor time of this thread, which other processes hardly change; elsewhere the clock's.
static double now() {
#if defined(__unix__) || defined(__APPLE__)
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
#else
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

static double seconds(const std::function<void()>& work) {
  const double begin = now();
  work();
  return now() - begin;
}

static void check_long_runs(const Tokenizer& t) {
  for (const std::string unit :
       {"A", ".", " ", "\n", "\xe6\xb1\x89", "\xc3\xa9", "aA", "1", "\xff", "<|im_", "' "}) {
    CAPTURE(unit);
    const std::string small = repeated(unit, 1 << 16), large = repeated(unit, 1 << 20);
    std::vector<Token> tokens;
    bool ok = true;
    double ratio = 0;
    // Sixteen times the text: linear is 16, n log n about 20, quadratic 256. A busy machine may
    // slow one measurement, so the best of a few counts.
    for (int attempt = 0; attempt < 5 && (attempt == 0 || ratio > 64); ++attempt) {
      on_small_stack([&] {
        const auto run = [&](const std::string& text) {
          tokens.clear();
          const TextSpan span = {text, true};
          ok = ok && bool(t.tokenize({&span, 1}, tokens));
        };
        const double first = seconds([&] { run(small); });
        ratio = seconds([&] { run(large); }) / first;
      });
    }
    CHECK(ok);
    CHECK(ratio <= 64);
    if (unit != "\xff") CHECK((text_of(t, tokens) == large));
  }
}

TEST_CASE("long runs: small vocabularies of each kind") {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    auto own = byte_level(pre);
    for (const char* c : {"A", ".", "\xc4\xa0", "\xc4\x8a"}) {
      std::string piece = c;
      for (int i = 0; i < 3; ++i) {
        own.merge(piece, piece);
        piece += piece;
      }
    }
    own.add("<|im_end|>", TokenType::control);
    check_long_runs(*own.make());
  }
  auto own = sentence_piece();
  own.v.add_space_prefix = false;
  float score = 0;
  for (const std::string c : {"A", ".", "\xe2\x96\x81", "\n", "\xe6\xb1\x89"}) {
    for (std::size_t n = 1; n <= 8; n *= 2)
      own.add(repeated(c, n * c.size()), TokenType::normal, score -= 1);
  }
  own.add("<|im_end|>", TokenType::control);
  check_long_runs(*own.make());
}

TEST_CASE("long runs: real vocabularies", "[real]") {
  for (const char* variable : {"DECANT_SMOLLM2", "DECANT_GEMMA3"}) {
    const auto path = real_model(variable);
    if (!path) DECANT_SKIP(std::string(variable) + " is not set");
    check_long_runs(*tokenizer_of_file(*path));
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
