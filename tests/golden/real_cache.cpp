// The KV cache on the real models: a hit, a fork, a rewound session and a restored one give the bits
// of a cold run, for each KV type and across the edge of Gemma's window of 512. The texts are those
// of tests/data/real.
#include <decant/decant.hpp>

#include <cstring>

#include "support/catch.hpp"
#include "support/npz.hpp"
#include "support/real_models.hpp"

using decant::KvType;
using decant::Token;

namespace {

std::vector<float> cache_logits(decant::Session& session) {
  const auto logits = session.logits().value();
  return {logits.begin(), logits.end()};
}

decant::Session cache_session(decant::Model& model, std::span<const Token> tokens) {
  auto session = model.session().value();
  session.append(tokens).value();
  return session;
}

void check_cache(const char* variable, const std::string& name) {
  const auto path = decant_test::real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  const auto golden =
      decant_test::read_npz(std::string(DECANT_TEST_DATA) + "/real/real-" + name + "-long.npz");
  const auto all = golden.at("ids").as<Token>();
  const auto ids = std::span(all).first(620), other = std::span(all).subspan(700, 40);
  for (const KvType kv : {KvType::f16, KvType::int8, KvType::bf16, KvType::f32}) {
    CAPTURE(name, static_cast<int>(kv));
    decant::ModelOptions options;
    options.context = 700;
    options.sessions = 2;
    options.kv_keys = options.kv_values = kv;
    options.prefix_cache = false;
    std::vector<float> cold, cold_half;
    {
      auto model = decant::Model::load(*path, options).value();
      auto session = cache_session(model, ids);
      cold = cache_logits(session);
      auto half = cache_session(model, ids.first(550));
      cold_half = cache_logits(half);
    }
    options.prefix_cache = true;
    auto model = decant::Model::load(*path, options).value();
    auto first = cache_session(model, ids);
    CHECK(cache_logits(first) == cold);
    auto hit = cache_session(model, ids);
    CHECK(cache_logits(hit) == cold);
    auto half = cache_session(model, ids.first(550));
    CHECK(cache_logits(half) == cold_half);
    auto fork = hit.fork(550).value();
    CHECK(cache_logits(fork) == cold_half);
    fork.append(other).value();
    (void)cache_logits(fork);
    fork.rewind(550).value();
    fork.append(ids.subspan(550)).value();
    CHECK(cache_logits(fork) == cold);
    const auto bytes = hit.save().value();
    auto restored = model.session().value();
    restored.restore(std::span(bytes)).value();
    CHECK(cache_logits(restored) == cold);
    // Others push everything out; then it is computed again.
    fork.rewind(0).value();
    hit.rewind(0).value();
    first.rewind(0).value();
    half.rewind(0).value();
    restored.rewind(0).value();
    {
      auto filler = cache_session(model, std::span(all).subspan(200, 650));
      (void)cache_logits(filler);
    }
    auto again = cache_session(model, ids);
    CHECK(cache_logits(again) == cold);
  }
}

}  // namespace

TEST_CASE("SmolLM2: the cache never changes a bit", "[real]") {
  check_cache("DECANT_SMOLLM2", "smollm2");
}
TEST_CASE("Gemma 3: the cache never changes a bit, also across its window", "[real]") {
  check_cache("DECANT_GEMMA3", "gemma3");
}
