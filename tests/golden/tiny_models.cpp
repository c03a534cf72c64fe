// Tiny random models against transformers 5.24 in float32 (golden data "models/"; its README tells
// how they were made). tests/data/models holds the F16 files of those that llama.cpp converted,
// whose F32 ones are tested when DECANT_GOLDEN_DIR is set, and an F32 file of Gemma 2. F16 weights
// differ from the reference's by at most 3e-8 each.
#include <decant/decant.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/npz.hpp"
#include "support/real_models.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;

namespace {

struct Golden {
  const char *name, *file;
  double tolerance;  // of logits whose standard deviation is 3
};
const Golden kGolden[] = {{"llama-tied", "model-f16.gguf", 1e-4},
                          {"gemma3", "model-f16.gguf", 1e-3},
                          {"gemma2", "model-f32.gguf", 1e-4}};
/// By llama.cpp, with their tokenizers.
const auto kConverted = std::span(kGolden).first(2);

std::string golden_file(const Golden& golden, const std::string& file) {
  return std::string(DECANT_TEST_DATA) + "/models/" + golden.name + "/" + file;
}

decant::ModelOptions reference(int threads, std::size_t chunk) {
  decant::ModelOptions options;
  options.backend = decant::Backend::reference;
  options.threads = threads;
  options.chunk = chunk;
  return options;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return worst;
}

/// Plain float arithmetic where the weights are floats.
decant::ModelOptions cpu() {
  decant::ModelOptions options = reference(2, 7);
  options.backend = decant::Backend::cpu;
  options.kv_keys = options.kv_values = decant::KvType::f32;
  return options;
}

void check_model(const std::string& path, const Golden& golden,
                 const decant::ModelOptions& options = reference(2, 7)) {
  CAPTURE(path, static_cast<int>(options.backend));
  const auto npz = read_npz(golden_file(golden, "golden.npz"));
  const auto ids = npz.at("input_ids").as<Token>(), greedy_ids = npz.at("greedy_ids").as<Token>();
  const auto logits = npz.at("logits").as<float>();
  const auto greedy_logits = npz.at("greedy_logits").as<float>();
  auto model = decant::Model::load(path, options).value();
  const std::size_t width = model.info().n_vocab;
  REQUIRE(logits.size() == ids.size() * width);

  auto session = session_with(model, ids);
  const double prompt = largest_difference(last_logits(session, model, ids.size()), logits);
  CHECK(prompt <= golden.tolerance);

  struct Greedy {
    std::vector<float> logits;
    static bool keep(void* self, std::span<const Token>, std::span<float> row) {
      auto& all = static_cast<Greedy*>(self)->logits;
      all.insert(all.end(), row.begin(), row.end());
      return true;
    }
  } seen;
  decant::GenerateOptions generate;
  generate.max_tokens = greedy_ids.size();
  generate.ignore_end = true;
  generate.sampler = decant::Sampler::greedy();
  generate.process_logits = Greedy::keep;
  generate.process_logits_user = &seen;
  auto reply = session.generate(generate).value();
  REQUIRE(reply.wait());
  CHECK(reply.tokens() == greedy_ids);
  const double decode = largest_difference(seen.logits, greedy_logits);
  CHECK(decode <= golden.tolerance);
}

}  // namespace

TEST_CASE("tiny models: logits and greedy tokens of transformers") {
  for (const Golden& golden : kGolden) check_model(golden_file(golden, golden.file), golden);
}

TEST_CASE("tiny models: logits and greedy tokens of transformers on the CPU backend") {
  for (const Golden& golden : kGolden) check_model(golden_file(golden, golden.file), golden, cpu());
}

TEST_CASE("tiny models: the same from F32 files") {
  const auto folder = golden_folder();
  if (!folder) DECANT_SKIP("DECANT_GOLDEN_DIR is not set");
  for (const Golden& golden : kConverted)
    check_model(*folder + "/models/" + golden.name + "/model-f32.gguf", golden);
}

TEST_CASE("tiny models: f16 pages stay within a hundredth of the logits' spread") {
  for (const Golden& golden : kGolden) {
    const auto npz = read_npz(golden_file(golden, "golden.npz"));
    const auto ids = npz.at("input_ids").as<Token>();
    auto options = reference(2, 512);
    options.kv_keys = options.kv_values = decant::KvType::f16;
    auto model = decant::Model::load(golden_file(golden, golden.file), options).value();
    auto session = session_with(model, ids);
    const double worst =
        largest_difference(last_logits(session, model, ids.size()), npz.at("logits").as<float>());
    CAPTURE(golden.name);
    CHECK(worst <= 0.03);
  }
}

TEST_CASE("tiny models: ids of the tokenizers library") {
  for (const Golden& golden : kConverted) {
    std::ifstream in(golden_file(golden, "golden.json"));
    const auto json = nlohmann::json::parse(in);
    auto model = decant::Model::load(golden_file(golden, golden.file)).value();
    REQUIRE(json.at("tokenizer_cases").size() >= 5);
    for (const auto& c : json.at("tokenizer_cases")) {
      const auto text = c.at("text").get<std::string>();
      const auto ids = c.at("ids").get<std::vector<Token>>();
      decant::TextOptions options;
      options.add_bos = false;
      CAPTURE(golden.name, text);
      CHECK(model.tokenize(text, options).value() == ids);
    }
  }
}
