// The KV cache on the real models: a hit, a fork, a rewound session and a restored one give the
// bits of a cold run, of logits and of pages, for each KV type and across the edge of Gemma's
// window of 512; what many sessions share is there once; memory is what the plan says. The texts
// are those of tests/data/real.
#include <decant/decant.hpp>

#include <cstdio>
#include <fstream>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

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

/// What a session holds: with its tokens the bytes of all its pages.
std::vector<std::byte> cache_pages(decant::Session& session) { return session.save().value(); }

std::vector<Token> cache_text(const std::string& name) {
  const auto golden =
      decant_test::read_npz(std::string(DECANT_TEST_DATA) + "/real/real-" + name + "-long.npz");
  return golden.at("ids").as<Token>();
}

void check_cache(const char* variable, const std::string& name) {
  const auto path = decant_test::real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  const auto all = cache_text(name);
  const auto ids = std::span(all).first(620), other = std::span(all).subspan(700, 40);
  for (const KvType kv : {KvType::f16, KvType::int8, KvType::bf16, KvType::f32}) {
    CAPTURE(name, static_cast<int>(kv));
    decant::ModelOptions options;
    options.context = 700;
    options.sessions = 2;
    options.kv_keys = options.kv_values = kv;
    options.prefix_cache = false;
    std::vector<float> cold, cold_half;
    std::vector<std::byte> cold_pages;
    {
      auto model = decant::Model::load(*path, options).value();
      auto session = cache_session(model, ids);
      cold = cache_logits(session);
      cold_pages = cache_pages(session);
      auto half = cache_session(model, ids.first(550));
      cold_half = cache_logits(half);
    }
    options.prefix_cache = true;
    auto model = decant::Model::load(*path, options).value();
    const auto is_cold = [&](decant::Session& session) {
      return cache_logits(session) == cold && cache_pages(session) == cold_pages;
    };
    auto first = cache_session(model, ids);
    CHECK(is_cold(first));
    auto hit = cache_session(model, ids);
    CHECK(is_cold(hit));
    auto half = cache_session(model, ids.first(550));
    CHECK(cache_logits(half) == cold_half);
    auto fork = hit.fork(550).value();
    CHECK(cache_logits(fork) == cold_half);
    fork.append(other).value();
    (void)cache_logits(fork);
    fork.rewind(550).value();
    fork.append(ids.subspan(550)).value();
    CHECK(is_cold(fork));
    const auto bytes = hit.save().value();
    auto restored = model.session().value();
    restored.restore(std::span(bytes)).value();
    CHECK(is_cold(restored));
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
    CHECK(is_cold(again));
  }
}

/// The same on the reference backend, which is slow: what can be computed once is.
void check_cache_of_reference(const char* variable, const std::string& name, std::size_t n) {
  const auto path = decant_test::real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  const auto all = cache_text(name);
  const auto ids = std::span(all).first(n), other = std::span(all).subspan(700, 100);
  for (const KvType kv : {KvType::f16, KvType::int8, KvType::bf16, KvType::f32}) {
    CAPTURE(name, static_cast<int>(kv));
    decant::ModelOptions options;
    options.backend = decant::Backend::reference;
    options.context = n + 48;
    options.sessions = 1;
    options.kv_keys = options.kv_values = kv;
    auto model = decant::Model::load(*path, options).value();
    std::vector<float> cold;
    std::vector<std::byte> cold_pages;
    const auto is_cold = [&](decant::Session& session) {
      return cache_logits(session) == cold && cache_pages(session) == cold_pages;
    };
    {
      auto first = cache_session(model, ids);
      cold = cache_logits(first);
      cold_pages = cache_pages(first);
      auto hit = cache_session(model, ids);
      CHECK(is_cold(hit));
      auto fork = hit.fork(n - 5).value();
      fork.append(other.first(5)).value();
      (void)cache_logits(fork);
      fork.rewind(n - 5).value();
      fork.append(ids.subspan(n - 5)).value();
      CHECK(is_cold(fork));
    }
    {
      auto filler = cache_session(model, other);
      (void)cache_logits(filler);
    }
    CHECK(model.metrics().kv_evicted_pages > 0);  // what comes next lies elsewhere, in another order
    auto again = cache_session(model, ids);
    CHECK(is_cold(again));
    options.prefix_cache = false;  // so that the pages are those of the snapshot
    auto without = decant::Model::load(*path, options).value();
    auto restored = without.session().value();
    restored.restore(std::span(cold_pages)).value();
    CHECK(is_cold(restored));
  }
}

#if defined(__linux__)
/// Bytes of this process that no file backs and that lie in memory.
std::uint64_t anonymous_bytes() {
#if defined(__GLIBC__)
  malloc_trim(0);  // without what malloc keeps back
#endif
  std::ifstream in("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(in, line))
    if (line.rfind("Anonymous:", 0) == 0) return std::stoull(line.substr(10)) * 1024;
  return 0;
}
#endif

/// Every page is used once; then no more memory is held than was planned.
void check_memory([[maybe_unused]] const char* variable, [[maybe_unused]] const std::string& name) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DECANT_SKIP("sanitizers take memory of their own");
#elif !defined(__linux__)
  DECANT_SKIP("only Linux tells what memory a process holds");
#else
  const auto path = decant_test::real_model(variable);
  if (!path) DECANT_SKIP(std::string(variable) + " is not set");
  auto tokens = cache_text(name);
  const auto begin = tokens;
  tokens.insert(tokens.end(), begin.begin(), begin.end());
  tokens.resize(1024);
  decant::ModelOptions options;
  options.context = 1024;
  const std::uint64_t before = anonymous_bytes();
  if (before == 0) DECANT_SKIP("the system has no /proc/self/smaps_rollup");
  auto model = decant::Model::load(*path, options).value();
  auto session = cache_session(model, tokens);
  (void)session.logits().value();
  CHECK(model.metrics().kv_pages_used == model.metrics().kv_pages);
  const std::uint64_t held = anonymous_bytes() - before, plan = model.memory().total_bytes;
  INFO("held " << held << " bytes, plan " << plan);
  CHECK(held <= plan + plan / 50 + (4 << 20));
  CHECK(held >= plan - plan / 10);  // what is measured is the model
#endif
}

}  // namespace

TEST_CASE("SmolLM2: the cache never changes a bit", "[real]") {
  check_cache("DECANT_SMOLLM2", "smollm2");
}
TEST_CASE("Gemma 3: the cache never changes a bit, also across its window", "[real]") {
  check_cache("DECANT_GEMMA3", "gemma3");
}
TEST_CASE("SmolLM2 on the reference backend: the cache never changes a bit", "[real]") {
  check_cache_of_reference("DECANT_SMOLLM2", "smollm2", 150);
}
TEST_CASE("Gemma 3 on the reference backend: the cache never changes a bit", "[real]") {
  check_cache_of_reference("DECANT_GEMMA3", "gemma3", 612);
}

TEST_CASE("SmolLM2: memory in use is what was planned", "[real]") {
  check_memory("DECANT_SMOLLM2", "smollm2");
}
TEST_CASE("Gemma 3: memory in use is what was planned", "[real]") {
  check_memory("DECANT_GEMMA3", "gemma3");
}

TEST_CASE("SmolLM2: forty sessions share a text of 1,000 tokens, which is run once", "[real]") {
  const auto path = decant_test::real_model("DECANT_SMOLLM2");
  if (!path) DECANT_SKIP("DECANT_SMOLLM2 is not set");
  auto world = cache_text("smollm2");
  for (std::size_t i = 0; world.size() < 1000; ++i) world.push_back(world[i]);
  const auto own = std::span(world).subspan(300, 19);
  decant::ModelOptions options;
  options.context = 1100;
  options.sessions = 3;  // 3 x 69 pages; apart, forty would need 2,560
  auto model = decant::Model::load(*path, options).value();
  std::vector<decant::Session> sessions;
  double first_ms = 0, rest_ms = 0;
  for (Token i = 0; i < 40; ++i) {
    sessions.push_back(cache_session(model, world));
    sessions.back().append(std::vector<Token>{1000 + i}).value();  // no two go on alike
    sessions.back().append(own).value();
    auto reply = sessions.back().generate({.max_tokens = 1}).value();
    reply.wait().value();
    const decant::ReplyStats stats = reply.stats();
    CHECK(stats.prompt_tokens == 1020);
    CHECK(stats.cached_tokens == (i == 0 ? 0u : 1000u));
    (i == 0 ? first_ms : rest_ms) += stats.ttft_ms;
  }
  const decant::ModelMetrics metrics = model.metrics();
  // 62 whole pages are shared; 28 tokens of each session begin behind them.
  CHECK(metrics.kv_pages_used == 62 + 40 * 2);
  CHECK(metrics.kv_evicted_pages == 0);
  std::printf(
      "40 sessions of 1,020 tokens: %zu pages, 62 shared and 40 x 2 own; first token after "
      "%.1f ms, then after %.1f ms\n",
      metrics.kv_pages_used, first_ms, rest_ms / 39);
}
