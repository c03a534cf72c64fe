// Token ids of real vocabularies. tests/data/tokenizers/{smollm2,gemma3}.json hold
//   encode: [text, ids with special tokens parsed, ids without (if they differ), bytes in hex (if
//   they
//           are not the text's)], no begin token; decode: [ids, bytes in hex].
// llama.cpp and transformers agree on them; where those two differ the third source decides
// (tokenizers with the published Digits splitter; SentencePiece).
#include "support/real_models.hpp"
#include "unit/text/text_support.hpp"

using namespace decant_test;

static void check_golden(const Tokenizer& t, const std::string& name) {
  const auto data = text_data(name);
  for (const auto& c : data["encode"]) {
    const std::string text = c[0];
    CAPTURE(text);
    const auto with = ids(t, text, true);
    CHECK(with == c[1].get<std::vector<Token>>());
    CHECK(ids(t, text, false) == c[c.size() > 2 ? 2 : 1].get<std::vector<Token>>());
    CHECK(text_of(t, with) == (c.size() > 3 ? from_hex(c[3]) : text));
  }
  for (const auto& c : data["decode"]) {
    CHECK(text_of(t, c[0].get<std::vector<Token>>()) == from_hex(c[1]));
  }
  CHECK(data["encode"].size() >= 200);
  CHECK(data["decode"].size() == 60);
}

// Random texts of what is awkward, for round trips.
static std::string random_text(std::mt19937& random) {
  static const char* const kParts[] = {"the ",
                                       "Hello",
                                       " world",
                                       "I'm",
                                       "ing",
                                       " ",
                                       "  ",
                                       "   ",
                                       "\n",
                                       "\n\n",
                                       "\t",
                                       "\r\n",
                                       "1",
                                       "2025",
                                       "3.14",
                                       "!",
                                       "...",
                                       "<|im_start|>",
                                       "<|im_end|>",
                                       "<start_of_turn>",
                                       "<eos>",
                                       "<b>",
                                       "</",
                                       "{\"a\":",
                                       "\xc3\xa9",
                                       "\xc3\x9f",
                                       "e\xcc\x81",
                                       "\xd0\xbf\xd1\x80\xd0\xb8",
                                       "\xe6\xb1\x89\xe5\xad\x97",
                                       "\xed\x95\x9c",
                                       "\xe0\xa4\xa8\xe0\xa4\xae",
                                       "\xd8\xb3\xd9\x84",
                                       "\xf0\x9f\x94\xa5",
                                       "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9",
                                       "\xe2\x80\x8b",
                                       "\xc2\xa0",
                                       "\xe3\x80\x80",
                                       "\xff",
                                       "\xe2\x82",
                                       "\xed\xa0\x80",
                                       "_",
                                       "-",
                                       "\\",
                                       "int main() {"};
  std::string text;
  for (unsigned i = random() % 12; i > 0; --i) text += kParts[random() % std::size(kParts)];
  return text;
}

static void check_round_trips(const Tokenizer& t, bool (*possible)(const std::string&)) {
  std::mt19937 random(5);
  int checked = 0;
  for (int n = 0; n < 100000; ++n) {
    std::string text = random_text(random);
    if (n % 10 == 0) text.push_back(static_cast<char>(random()));
    if (!possible(text)) continue;
    ++checked;
    REQUIRE(text_of(t, ids(t, text, n % 2 == 0)) == text);
  }
  CHECK(checked > 60000);
}

TEST_CASE("SmolLM2: golden ids, special tokens, round trips", "[real]") {
  const auto path = real_model("DECANT_SMOLLM2");
  if (!path) DECANT_SKIP("DECANT_SMOLLM2 is not set");
  const auto t = tokenizer_of_file(*path);
  CHECK(t->kind() == "gpt2/smollm");
  CHECK(t->size() == 49152);
  CHECK_FALSE(t->add_bos());
  for (Token i = 0; i < 49152; ++i) CHECK(t->is_end(i) == (i == 0 || i == 2));
  check_golden(*t, "smollm2.json");
  // These bytes have no piece in this vocabulary.
  check_round_trips(*t, [](const std::string& text) {
    return text.find_first_of(
               "\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc"
               "\xfd\xfe\xff") == std::string::npos;
  });
}

TEST_CASE("Gemma 3: golden ids, special tokens, round trips", "[real]") {
  const auto path = real_model("DECANT_GEMMA3");
  if (!path) DECANT_SKIP("DECANT_GEMMA3 is not set");
  const auto t = tokenizer_of_file(*path);
  CHECK(t->kind() == "llama");
  CHECK(t->size() == 262144);
  CHECK(t->add_bos());
  CHECK(t->bos() == 2);
  int ends = 0;
  for (Token i = 0; i < 262144; ++i) ends += t->is_end(i);
  CHECK(ends == 2);
  CHECK(t->is_end(1));
  CHECK(t->is_end(106));  // <end_of_turn>
  CHECK(t->memory_bytes() < (12u << 20));
  check_golden(*t, "gemma3.json");
  check_round_trips(*t, [](const std::string&) { return true; });
}

TEST_CASE("a golden text cut into spans anywhere gives the same ids", "[real]") {
  for (const char* variable : {"DECANT_SMOLLM2", "DECANT_GEMMA3"}) {
    const auto path = real_model(variable);
    if (!path) DECANT_SKIP(std::string(variable) + " is not set");
    const auto t = tokenizer_of_file(*path);
    const auto data =
        text_data(variable == std::string("DECANT_GEMMA3") ? "gemma3.json" : "smollm2.json");
    for (const auto& c : data["encode"]) {
      const std::string text = c[0];
      if (text.size() > 60) continue;
      const std::string_view view = text;
      for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        REQUIRE(ids(*t, {{view.substr(0, cut), true}, {view.substr(cut), true}}) ==
                c[1].get<std::vector<Token>>());
      }
    }
  }
}

// Ids of the tokens library for the tiny models (golden.json: tokenizer_cases).
TEST_CASE("tiny models: golden ids") {
  const auto golden = golden_folder();
  if (!golden) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
  for (const std::string model : {"llama-tied", "gemma3"}) {
    const std::string folder = *golden + "/models/" + model;
    const auto t = tokenizer_of_file(folder + "/model-f32.gguf");
    const auto cases = read_json(folder + "/golden.json")["tokenizer_cases"];
    CHECK(cases.size() >= 9);
    for (const auto& c : cases) {
      CAPTURE(model, c.dump());
      CHECK(ids(*t, c["text"].get<std::string>()) == c["ids"].get<std::vector<Token>>());
    }
  }
}

// Vocabulary-only files and their ids by llama.cpp, tokenizers and SentencePiece.
TEST_CASE("vocabularies without weights: golden ids") {
  const auto golden = golden_folder();
  if (!golden) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
  for (const std::string name : {"deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "qwen2"}) {
    const std::string base = *golden + "/tokenizers/vocabs/ggml-vocab-" + name;
    const auto t = tokenizer_of_file(base + ".gguf");
    CHECK(t->add_bos() == (name != "gpt-2" && name != "qwen2"));
    for (const char* file : {".json", ".more.json"}) {
      for (const auto& c : read_json(base + file)) {
        const std::string text = c["text"];
        CAPTURE(name, text);
        const char* plain = c.contains("ids_plain") ? "ids_plain" : "ids";
        CHECK(ids(*t, text, false) == c[plain].get<std::vector<Token>>());
        const bool lossless = text.find("\xe2\x96\x81") == std::string::npos;  // U+2581
        if (lossless) CHECK(text_of(*t, ids(*t, text, true)) == text);
        if (c.contains("ids_plain") && c.contains("ids")) {
          CHECK(ids(*t, text, true) == c["ids"].get<std::vector<Token>>());
        }
      }
    }
  }
}
