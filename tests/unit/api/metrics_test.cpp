// What a model says of its own cost: bytes and products of a pass, time by operation.
#include <string>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;

// 2 layers, 4 heads of 8, 2 of them for keys and values, 32 wide, 48 in the feed-forward part, 271
// tokens, all F32. The sums below are done by hand from these numbers.
TEST_CASE("what a pass over the weights reads") {
  constexpr std::size_t kElements = 2 * (32 * 32 + 16 * 32 + 16 * 32 + 32 * 32 + 3 * 48 * 32);
  decant::ModelOptions options;
  options.threads = 1;
  SECTION("packed in groups of 16 rows: each head of 8 is filled up") {
    options.isa = "portable";
    const decant::Model model = random_model({}).load(options);
    constexpr std::size_t kPacked =
        2 * ((4 + 2 + 2) * 16 * 32 + 32 * 32 + 3 * 48 * 32) * sizeof(float);
    CHECK(model.info().isa == "portable");
    CHECK(model.info().layer_parameters == kElements);
    CHECK(model.info().layer_weight_bytes == kPacked);
    CHECK(model.info().head_weight_bytes == 272 * 32 * sizeof(float));
  }
  SECTION("as the file has them") {
    options.backend = decant::Backend::reference;
    auto loaded = random_model({.tied = true}).try_load(options);
    if (!loaded) DECANT_SKIP("the reference backend is not part of this build");
    CHECK(loaded->info().isa.empty());
    CHECK(loaded->info().layer_parameters == kElements);
    CHECK(loaded->info().layer_weight_bytes == kElements * sizeof(float));
    CHECK(loaded->info().head_weight_bytes == 271 * 32 * sizeof(float));
  }
}

TEST_CASE("groups of layers and what they keep of a token") {
  decant::ModelOptions options;
  options.threads = 1;
  options.kv_values = decant::KvType::f32;
  // Every second of five layers sees everything; 2 heads of 8 keys in f16 and 8 values in f32.
  const decant::Model model =
      random_model({.architecture = "gemma3", .n_layers = 5, .window = 16}).load(options);
  constexpr std::size_t kLayer = 2 * 8 * (2 + 4);
  REQUIRE(model.info().kv_groups.size() == 2);
  std::size_t sum = 0;
  for (const auto& group : model.info().kv_groups) {
    CHECK(group.n_layers == (group.window == 16 ? 3 : 2));
    CHECK(group.bytes_per_token == group.n_layers * kLayer);
    sum += group.bytes_per_token;
  }
  CHECK(model.info().kv_groups[0].window + model.info().kv_groups[1].window == 16);
  CHECK(model.info().kv_bytes_per_token == sum);
}

TEST_CASE("time by operation is counted only when asked for, and changes no bit") {
  const std::vector<decant::Token> prompt = byte_tokens("a fox in a box");
  std::vector<float> logits[2];
  for (const bool profile : {false, true}) {
    CAPTURE(profile);
    decant::ModelOptions options;
    options.threads = 2;
    options.profile = profile;
    decant::Model model = random_model({.n_layers = 3}).load(options);
    auto session = model.session().value();
    session.append(prompt).value();
    const auto row = session.logits().value();
    logits[profile].assign(row.begin(), row.end());

    const char* names[] = {"embed",   "qkv",  "attend", "attention_output",
                           "gate_up", "down", "logits", "other"};
    const decant::ModelMetrics metrics = model.metrics();
    for (std::size_t i = 0; i < std::size(names); ++i) {
      const auto& operation = metrics.operations[i];
      CAPTURE(operation.name);
      CHECK(operation.name == std::string(names[i]));
      if (i == 7) continue;  // a step is counted when it has ended, which logits need not wait for
      const std::uint64_t calls = i == 0 || i == 6 ? 1 : 3;
      CHECK(operation.calls == (profile ? calls : 0));
      CHECK((operation.nanoseconds > 0) == profile);
    }
  }
  CHECK(logits[0] == logits[1]);
}

TEST_CASE("a model without an engine has the metrics of one that did nothing") {
  decant::ModelOptions options;
  options.vocabulary_only = true;
  options.profile = true;
  const decant::Model model = random_model({}).load(options);
  CHECK(model.metrics().operations[7].name == std::string("other"));
  CHECK(model.metrics().operations[7].calls == 0);
}
