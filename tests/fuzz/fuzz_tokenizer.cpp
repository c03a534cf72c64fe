// Fuzz target for text: tokenizers (of fixed vocabularies and of vocabularies made from the input),
// vocabularies inside GGUF files, streaming and stop strings. The first byte of the input chooses;
// what must hold is checked with a trap.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf.hpp"
#include "text/chat_builtin.hpp"
#include "text/stream.hpp"
#include "text/tokenizer.hpp"

using namespace decant::detail;
using decant::Token;

static void expect(bool condition) {
  if (!condition) __builtin_trap();
}

namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto b = static_cast<std::uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return b;
  }
  std::string_view take(std::size_t n) {
    const std::string_view part = rest_.substr(0, n);
    rest_.remove_prefix(part.size());
    return part;
  }
  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

struct FuzzVocabulary {
  std::vector<std::string> tokens, merges;
  Vocabulary v;

  void add(std::string text, TokenType type, float score) {
    tokens.push_back(std::move(text));
    v.types.push_back(type);
    v.scores.push_back(score);
  }
  void add_bytes() {
    constexpr const char* kDigits = "0123456789ABCDEF";
    for (int b = 0; b < 256; ++b) {
      add(std::string("<0x") + kDigits[b >> 4] + kDigits[b & 15] + ">", TokenType::byte, 0);
    }
  }
  decant::Result<std::unique_ptr<Tokenizer>> make() {
    v.tokens.assign(tokens.begin(), tokens.end());
    v.merges.assign(merges.begin(), merges.end());
    return Tokenizer::create(v);
  }
};

}  // namespace

static std::string utf8(int c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// All bytes; a few merges; special tokens that overlap.
static FuzzVocabulary base_vocabulary(std::string_view pre) {
  FuzzVocabulary f;
  f.v.pre = pre;
  if (pre == "llama") {
    f.v.model = "llama";
    f.add("<unk>", TokenType::unknown, 0);
    f.add_bytes();
    // "_" stands for U+2581 here.
    float score = 0;
    for (std::string piece : {"_", "a", "b", "ab", "_a", "aa", "aaaa", "\xc3\xa9", "__"}) {
      for (std::size_t at; (at = piece.find('_')) != std::string::npos;) {
        piece.replace(at, 1, "\xe2\x96\x81");
      }
      f.add(piece, TokenType::normal, score -= 1);
    }
  } else {
    f.v.model = "gpt2";
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
      f.add(utf8(printable ? b : next++), TokenType::normal, 0);
    }
    const char* merges[][2] = {{"a", "b"},        {"a", "a"}, {"aa", "aa"}, {"ab", "a"},
                               {"\xc4\xa0", "a"}, {"1", "2"}, {"'", "s"}};
    for (const auto& [left, right] : merges) {
      f.merges.push_back(std::string(left) + " " + right);
      f.add(std::string(left) + right, TokenType::normal, 0);
    }
  }
  for (const char* text : {"<s>", "</s>", "<s><s>", "<|a|>", "|>", "<"})
    f.add(text, TokenType::control, 0);
  for (const char* text : {"\n\n", "\n\n\n", "<b>", "s><"}) f.add(text, TokenType::user_defined, 0);
  return f;
}

static std::vector<TextSpan> spans_of(Input& in) {
  std::vector<TextSpan> spans;
  for (int n = in.byte() % 4; n > 0; --n) {
    const std::uint8_t how = in.byte();
    spans.push_back({in.take(how >> 1), (how & 1) != 0});
  }
  spans.push_back({in.take(SIZE_MAX), spans.size() % 2 == 0});
  return spans;
}

static void check_tokenizer(const Tokenizer& t, Input& in, bool exact) {
  const std::vector<TextSpan> spans = spans_of(in);
  std::vector<Token> tokens;
  expect(bool(t.tokenize(spans, tokens)));
  std::string text, back;
  for (const TextSpan& span : spans) text += span.text;
  expect(bool(t.detokenize(tokens, back)));  // every id is in the vocabulary
  if (exact) expect(back == text);
}

// One name of each pre-tokenizer.
static constexpr const char* kPre[] = {
    "gpt-2",     "smollm",      "llama-bpe",    "qwen2",          "dbrx",
    "glm4",      "minicpm5",    "jais-2",       "laguna",         "ufakzeka",
    "qwen35",    "seed-coder",  "exaone-moe",   "tekken",         "gpt-4o",
    "tiny_aya",  "youtu",       "kimi-k2",      "afmoe",          "spark2_5",
    "falcon",    "deepseek-v3", "deepseek-llm", "deepseek-coder", "default",
    "chameleon", "bloom",       "viking",       "superbpe",       "granite-embed-multi-97m"};

static void fuzz_fixed(Input& in) {
  constexpr std::size_t kBpe = std::size(kPre);
  static std::unique_ptr<Tokenizer> tokenizers[kBpe + 2];
  const std::size_t which = in.byte() % std::size(tokenizers);
  if (!tokenizers[which]) {
    FuzzVocabulary f = base_vocabulary(which < kBpe ? kPre[which] : "llama");
    f.v.add_space_prefix = which == kBpe + 1;
    tokenizers[which] = *f.make();
  }
  // A U+2581 becomes a space.
  const bool marks = in.rest().find("\xe2\x96\x81") != std::string_view::npos;
  check_tokenizer(*tokenizers[which], in, which < kBpe || !marks);
}

static void fuzz_made(Input& in) {
  static constexpr const char* kModels[] = {"gpt2",   "llama", "t5",     "bert",
                                            "gemma4", "rwkv",  "plamo2", "whitespace"};
  FuzzVocabulary f;
  const std::uint8_t flags = in.byte(), kind = in.byte();
  f.v.model = kModels[kind % std::size(kModels)];
  f.v.pre = kPre[in.byte() % std::size(kPre)];
  if (flags & 64) f.v.pre = flags & 128 ? "mmbert" : "whitespace";
  if (flags & 1) f.v.add_space_prefix = (flags & 2) != 0;
  if (flags & 4) f.v.lowercase = f.v.remove_extra_whitespaces = (flags & 8) != 0;
  if (flags & 16) {  // a trie of small numbers and its texts
    for (const char c : in.take(in.byte())) f.v.charsmap.push_back(static_cast<std::uint8_t>(c));
  }
  for (int n = in.byte() % 64; n >= 0; --n) {
    const std::uint8_t how = in.byte();
    const std::string piece(in.take(how >> 3 & 15));
    f.add(piece, static_cast<TokenType>(1 + (how & 7) % 6), static_cast<float>(in.byte()) - 128);
  }
  for (int n = in.byte() % 32; n > 0; --n) {
    if (f.tokens.empty()) break;
    const std::size_t left = in.byte() % f.tokens.size(), right = in.byte() % f.tokens.size();
    if (n % 2 == 0) f.add(f.tokens[left] + f.tokens[right], TokenType::normal, 0);
    f.merges.push_back(f.tokens[left] + " " + f.tokens[right]);
  }
  if (f.v.model == "plamo2") f.add_bytes();
  if (flags & 32) f.v.unk = static_cast<Token>(in.byte() % f.tokens.size());
  const auto t = f.make();
  if (t) check_tokenizer(**t, in, false);
}

static void fuzz_file(Input& in) {
  auto file = Gguf::open(std::as_bytes(std::span(in.rest())));
  if (!file) return;
  const auto v = read_vocabulary(*file);
  if (!v) return;
  (void)wants_gemma_chat(*v, "gemma3");
  const auto t = Tokenizer::create(*v);
  if (!t) return;
  static constexpr std::uint8_t kText[] = "\1\x0b<s>Hi \n\n  ab\xff 12's<|a|>";
  Input text(kText, sizeof kText);
  check_tokenizer(**t, text, false);
  for (Token i = -1; i <= static_cast<Token>((*t)->size()); ++i) (void)(*t)->piece_bytes(i);
}

static void fuzz_utf8(Input& in) {
  const std::uint8_t chunk = in.byte();
  const std::string text(in.rest());
  Utf8Stream stream;
  std::string out;
  while (!in.empty()) {
    stream.push(in.take(chunk % 7 + 1u), out);
    expect(stream.held() <= 3);
    expect(text.compare(0, out.size(), out) == 0);
    expect(out.size() + stream.held() + in.rest().size() == text.size());
  }
  stream.finish(out);
  expect(out == text);
}

static void fuzz_stops(Input& in) {
  std::vector<std::string> stops;
  for (int n = in.byte() % 5; n > 0; --n) stops.emplace_back(in.take(in.byte() % 8));
  auto finder = StopStrings::create(stops);
  bool any_empty = false;
  std::size_t match = std::string::npos;
  const std::uint8_t chunk = in.byte();
  const std::string text(in.rest());
  for (const std::string& stop : stops) {
    any_empty = any_empty || stop.empty();
    match = std::min(match, text.find(stop));
  }
  expect(bool(finder) != any_empty);
  if (!finder) return;
  std::string out;
  while (!in.empty() && !finder->push(in.take(chunk % 5 + 1u), out)) {
  }
  expect(finder->finish(out) == (match != std::string::npos));
  expect(out == text.substr(0, match));
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.byte() % 5) {
    case 0: fuzz_fixed(in); break;
    case 1: fuzz_made(in); break;
    case 2: fuzz_file(in); break;
    case 3: fuzz_utf8(in); break;
    default: fuzz_stops(in); break;
  }
  return 0;
}
