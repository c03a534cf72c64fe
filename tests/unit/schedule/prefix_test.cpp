// What lies in the KV cache is not computed again, and nobody can tell: logits after a hit, in a
// fork, after rewinding, on scattered pages and after an eviction are those of a cold run, bit for
// bit. The cold run is a model of its own without a prefix cache; that it computes the right thing
// is tested elsewhere.
#include <algorithm>
#include <cstdio>

#include "backend/cpu/kernels.hpp"
#include "support/catch.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::GenerateOptions;
using decant::KvType;
using decant::ModelOptions;

namespace {

struct PrefixVariant : TinySpec {
  decant::Backend backend = decant::Backend::cpu;
  std::string isa;
};

/// Both architectures on the reference and on every instruction set of this processor.
std::vector<PrefixVariant> prefix_variants() {
  std::vector<PrefixVariant> out;
  for (const char* architecture : {"llama", "gemma3"}) {
    PrefixVariant v;
    v.architecture = architecture;
    v.n_layers = v.architecture == "gemma3" ? 4 : 2;
    v.window = 20;
    if (kOnCuda) {
      out.push_back(v);
      continue;
    }
    v.backend = decant::Backend::reference;
    out.push_back(v);
    v.backend = decant::Backend::cpu;
    for (const char* isa : {"portable", "avx2", "avx512", "neon"}) {
      v.isa = isa;
      if (decant::detail::cpu_kernels(isa)) out.push_back(v);
    }
  }
  return out;
}

ModelOptions prefix_options(const PrefixVariant& v, KvType kv, bool prefix_cache,
                            std::size_t sessions = 4) {
  ModelOptions options;
  options.backend = v.backend;
  options.isa = v.isa;
  options.threads = 2;
  options.chunk = 48;
  options.context = 512;
  options.kv_keys = options.kv_values = kv;
  options.sessions = sessions;
  options.prefix_cache = prefix_cache;
  return options;
}

/// The bits of a reply's logits, token by token, and the tokens.
Told cold_run(const PrefixVariant& v, KvType kv, std::span<const Token> prompt, std::size_t n) {
  auto model = random_model(v).load(prefix_options(v, kv, false));
  auto session = session_with(model, prompt);
  Told told = tell(session, n);
  CHECK(told.stats.cached_tokens == 0);
  return told;
}

std::vector<Token> joined(std::span<const Token> a, std::span<const Token> b) {
  std::vector<Token> out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

}  // namespace

TEST_CASE("cold = hit = fork = rewound = scattered = evicted and computed again") {
  const std::vector<Token> prompt = TinyRandom(41).tokens(150), other = TinyRandom(42).tokens(60);
  constexpr std::size_t kNew = 40;  // across the border of pages and windows
  for (const PrefixVariant& v : prefix_variants())
    for (const KvType kv : {KvType::f32, KvType::f16, KvType::bf16, KvType::int8}) {
      if (kOnCuda && (kv == KvType::f32 || kv == KvType::bf16)) continue;  // minutes
      CAPTURE(v.architecture, static_cast<int>(v.backend), v.isa, static_cast<int>(kv));
      const Told cold = cold_run(v, kv, prompt, kNew);
      auto model = random_model(v).load(prefix_options(v, kv, true));
      const auto run = [&](decant::Session& s, std::size_t cached) {
        const Told told = tell(s, kNew);
        CHECK(told == cold);
        CHECK(told.stats.cached_tokens == cached);
        CHECK(told.stats.recomputed == 0);
      };
      auto first = session_with(model, prompt);
      run(first, 0);
      auto second = session_with(model, prompt);
      run(second, 149);  // the reply filled the page that the prompt ends in

      first.rewind(150).value();
      auto forked = first.fork().value();
      run(forked, 149);
      for (const std::size_t n : {149u, 144u, 131u, 64u, 20u, 1u, 0u}) {
        CAPTURE(n);
        auto branch = first.fork(n).value();
        branch.append(other).value();
        (void)tell(branch, 3);
        branch.rewind(n).value();
        branch.append(std::span(prompt).subspan(n)).value();
        CHECK(tell(branch, kNew) == cold);
      }
      run(first, 149);
    }
}

TEST_CASE("prompts a page long and one more or less: again, sharing half, hit and miss at once") {
  for (const char* architecture : {"llama", "gemma3"})
    for (const KvType kv : {KvType::f16, KvType::int8}) {
      PrefixVariant v;
      v.architecture = architecture;
      v.n_layers = 4;
      v.window = 20;
      auto model = random_model(v).load(prefix_options(v, kv, true));
      auto cold_model = random_model(v).load(prefix_options(v, kv, false));
      const auto cold = [&](std::span<const Token> prompt) {
        auto session = session_with(cold_model, prompt);
        return tell(session, 3);
      };
      for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 47u, 48u, 49u}) {
        if (kOnCuda && n > 17) break;  // minutes
        CAPTURE(architecture, static_cast<int>(kv), n);
        const auto prompt = TinyRandom(500 + n).tokens(n), other = TinyRandom(600 + n).tokens(n);
        for (int round = 0; round < 3; ++round) {
          auto session = session_with(model, prompt);
          const Told told = tell(session, 3);
          CHECK(told == cold(prompt));
          CHECK(told.stats.prompt_tokens == n);
          CHECK(told.stats.cached_tokens <= n - 1);
          CHECK(told.stats.cached_tokens >= (round == 0 ? 0 : (n - 1) / 16 * 16));
        }
        // Half a page more in common with what is there, and nothing in common, in one pass.
        const auto half = joined(prompt, std::span(other).first((n + 1) / 2));
        auto a = session_with(model, half), b = session_with(model, other);
        GenerateOptions options;
        options.max_tokens = 3;
        options.ignore_end = true;
        options.sampler.seed = 5;
        auto first = a.generate(options).value(), second = b.generate(options).value();
        first.wait().value();
        second.wait().value();
        CHECK(first.tokens() == cold(half).tokens);
        CHECK(second.tokens() == cold(other).tokens);
        CHECK(tell(a, 3).logits == cold(a.tokens().first(half.size() + 3)).logits);
      }
    }
}

TEST_CASE("forks of forks in the middle of a page, the parent gone, as a beam search makes them") {
  for (const char* architecture : {"llama", "gemma3"})
    for (const bool prefix_cache : {true, false}) {
      CAPTURE(architecture, prefix_cache);
      PrefixVariant v;
      v.architecture = architecture;
      v.n_layers = 4;
      v.window = 20;
      auto model = random_model(v).load(prefix_options(v, KvType::f16, prefix_cache));
      auto cold_model = random_model(v).load(prefix_options(v, KvType::f16, false));
      const auto check = [&](decant::Session& s) {
        auto cold = session_with(cold_model, s.tokens());
        const auto wanted = cold.logits().value(), found = s.logits().value();
        CHECK(same_bits(found, wanted));
      };
      std::vector<decant::Session> beams;
      {
        auto parent = session_with(model, TinyRandom(70).tokens(40));
        (void)parent.logits().value();
        for (const std::size_t n : {23u, 40u, 39u}) beams.push_back(parent.fork(n).value());
      }
      for (Token round = 0; round < 12; ++round) {
        // Each beam becomes two; of the six three stay, in another order, and their parents go.
        std::vector<decant::Session> next;
        for (auto& beam : beams)
          for (Token t = 0; t < 2; ++t) {
            next.push_back(beam.fork().value());
            next.back().append(std::vector<Token>{5 + 2 * round + t, 9 + t}).value();
          }
        for (auto& beam : next) (void)beam.logits().value();
        beams.clear();
        for (const std::size_t i : {5u, 1u, 2u}) beams.push_back(std::move(next[i]));
        if (round % 3 == 2) beams[1] = beams[0].fork(beams[0].tokens().size() - 7).value();
        for (auto& beam : beams) check(beam);
      }
      beams.clear();
      CHECK(pages_settle_at(0, model));
    }
}

TEST_CASE("pages in any order, pages of others and pages reused") {
  const std::vector<Token> prompt = TinyRandom(43).tokens(150);
  constexpr std::size_t kNew = 40;
  for (const PrefixVariant& v : prefix_variants()) {
    CAPTURE(v.architecture, static_cast<int>(v.backend), v.isa);
    const Told cold = cold_run(v, KvType::f16, prompt, kNew);
    auto model = random_model(v).load(prefix_options(v, KvType::f16, true, 2));
    {  // every second page of the pool
      std::vector<decant::Session> sessions;
      for (std::uint64_t i = 0; i < 20; ++i) {
        sessions.push_back(session_with(model, TinyRandom(i).tokens(10)));
        (void)sessions.back().logits().value();
      }
      for (std::size_t i = 0; i < sessions.size(); i += 2) sessions[i].rewind(0).value();
      auto scattered = session_with(model, prompt);
      CHECK(tell(scattered, kNew) == cold);
    }
    for (std::uint64_t i = 50; i < 53; ++i) {  // more than the pool holds
      auto filler = session_with(model, TinyRandom(i).tokens(500));
      (void)filler.logits().value();
    }
    auto again = session_with(model, prompt);
    const Told told = tell(again, kNew);
    CHECK(told.stats.cached_tokens == 0);
    CHECK(told == cold);
  }
}

TEST_CASE("what a window lost is run again with the same bits and counted") {
  for (const PrefixVariant& v : prefix_variants()) {
    if (v.architecture != "gemma3") continue;
    CAPTURE(static_cast<int>(v.backend), v.isa);
    const std::vector<Token> prompt = TinyRandom(44).tokens(450);
    const auto half = std::span(prompt).first(100);
    const Told cold = cold_run(v, KvType::f16, half, 30);
    ModelOptions options = prefix_options(v, KvType::f16, true, 1);
    auto model = random_model(v).load(options);
    auto session = session_with(model, prompt);
    (void)session.logits().value();
    session.rewind(100).value();
    const Told told = tell(session, 30);
    CHECK(told == cold);
    CHECK(told.stats.recomputed > 0);
    CHECK(told.stats.cached_tokens + told.stats.recomputed == 99);
    // Now these pages are the latest; a second look is free.
    session.rewind(100).value();
    const Told again = tell(session, 30);
    CHECK(again == cold);
    CHECK(again.stats.recomputed == 0);
    CHECK(again.stats.cached_tokens == 99);
  }
}

TEST_CASE("a chat that goes on finds its turns; one that is told anew as well") {
  for (const char* architecture : {"llama", "gemma3"}) {
    CAPTURE(architecture);
    PrefixVariant v;
    v.architecture = architecture;
    v.n_layers = 4;
    TinyModel tiny = random_model(v);
    if (v.architecture == "llama")
      tiny.set_string(
          "tokenizer.chat_template",
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    auto model = tiny.load(prefix_options(v, KvType::f16, true));
    auto cold_model = tiny.load(prefix_options(v, KvType::f16, false));
    auto chat = model.session().value(), cold = cold_model.session().value();
    std::size_t before = 0;
    for (int turn = 0; turn < 3; ++turn) {
      CAPTURE(turn);
      for (decant::Session* s : {&chat, &cold})
        s->append(decant::Message{"user", "own fox aab own fox aab " + std::to_string(turn)})
            .value();
      const Told told = tell(chat, 20);
      CHECK(told == tell(cold, 20));
      if (turn > 0) CHECK(told.stats.cached_tokens + 24 > before);
      before = chat.tokens().size();
    }
    auto twin = model.session().value();
    for (const decant::Message& message : chat.messages()) {
      if (&message == &chat.messages().back()) break;
      twin.append(message).value();
    }
    // How much of it that is depends on what the model happened to write.
    CHECK(tell(twin, 5).stats.cached_tokens > (kOnCuda ? 40 : 100));
  }
}

TEST_CASE("sessions that start together compute a shared prefix once") {
  const std::vector<Token> shared = TinyRandom(45).tokens(100);
  for (const std::size_t chunk : {1u, 7u, 16u, 512u})
    for (const char* architecture : {"llama", "gemma3"}) {
      CAPTURE(chunk, architecture);
      PrefixVariant v;
      v.architecture = architecture;
      ModelOptions options = prefix_options(v, KvType::f16, true, 8);
      options.chunk = chunk;
      auto model = random_model(v).load(options);
      std::vector<decant::Session> sessions;
      std::vector<decant::Reply> replies;
      for (std::uint64_t i = 0; i < 8; ++i)
        sessions.push_back(session_with(model, joined(shared, TinyRandom(i).tokens(5))));
      for (auto& s : sessions) {
        GenerateOptions one;
        one.max_tokens = 1;
        replies.push_back(s.generate(one).value());
      }
      std::size_t n_run = 0;
      for (auto& reply : replies) {
        reply.wait().value();
        n_run += 105 - reply.stats().cached_tokens;
      }
      CHECK(n_run == 105 + 7 * 9);  // 96 tokens are whole pages
    }
}

TEST_CASE("the prefix cache can be turned off, and pins hold what it would let go") {
  const std::vector<Token> prompt = TinyRandom(46).tokens(100);
  for (const char* architecture : {"llama", "gemma3"}) {
    CAPTURE(architecture);
    PrefixVariant v;
    v.architecture = architecture;
    {
      auto model = random_model(v).load(prefix_options(v, KvType::f16, false));
      auto a = session_with(model, prompt), b = session_with(model, prompt);
      (void)tell(a, 20);
      CHECK(tell(b, 1).stats.cached_tokens == 0);
      const auto pin = a.pin_prefix();
      REQUIRE_FALSE(pin);
      CHECK(pin.error().code() == decant::ErrorCode::invalid_state);
    }
    for (const bool pins : {true, false}) {
      auto model = random_model(v).load(prefix_options(v, KvType::f16, true, 2));
      {
        auto a = session_with(model, prompt);
        const auto early = a.pin_prefix(50);
        REQUIRE_FALSE(early);
        CHECK(early.error().code() == decant::ErrorCode::invalid_state);
        (void)a.logits().value();
        if (pins) a.pin_prefix(100).value();
      }
      const auto fill = [&] {
        for (std::uint64_t i = 50; i < 54; ++i) {
          auto filler = session_with(model, TinyRandom(i).tokens(500));
          (void)filler.logits().value();
        }
      };
      fill();
      {
        auto b = session_with(model, prompt);
        CHECK(tell(b, 1).stats.cached_tokens == (pins ? 96 : 0));
      }
      model.unpin_prefixes();
      fill();
      auto c = session_with(model, prompt);
      CHECK(tell(c, 1).stats.cached_tokens == 0);
    }
  }
}

TEST_CASE("a prefix that the cache does not have whole cannot be pinned") {
  PrefixVariant v;
  v.architecture = "gemma3";
  auto model = random_model(v).load(prefix_options(v, KvType::f16, true, 1));
  const auto refused = [&](decant::Session& s, std::size_t n) {
    const auto pin = s.pin_prefix(n);
    return !pin && pin.error().code() == decant::ErrorCode::invalid_state;
  };
  std::vector<std::byte> bytes;
  {
    auto session = session_with(model, TinyRandom(46).tokens(450));
    (void)session.logits().value();
    CHECK(refused(session, 100));  // its window is gone
    CHECK(session.pin_prefix());
    CHECK(session.pin_prefix(7));  // no whole page: nothing to hold
    bytes = session.save().value();
  }
  CHECK(pages_settle_at(28, model));  // the whole ones
  model.unpin_prefixes();
  CHECK(pages_settle_at(0, model));
  auto other = random_model(v).load(prefix_options(v, KvType::f16, true, 1));
  auto restored = other.session().value();
  restored.restore(std::span(bytes)).value();
  CHECK(refused(restored, 450));  // pages of a snapshot are its own
}

TEST_CASE("forty sessions with one world: its pages are there once") {
  TinySpec spec;
  spec.context = 1100;
  const TinyModel tiny = random_model(spec);
  ModelOptions options;
  options.threads = 2;
  options.sessions = 3;  // 3 x 69 pages; apart, forty would need 2,560
  auto model = tiny.load(options);
  const std::vector<Token> world = TinyRandom(60).tokens(1000);
  std::vector<decant::Session> sessions;
  for (std::uint64_t i = 0; i < 40; ++i) {
    auto own = TinyRandom(100 + i).tokens(20);
    own[0] = static_cast<Token>(3 + i);  // no two go on with the same token
    sessions.push_back(session_with(model, joined(world, own)));
    const Told told = tell(sessions.back(), 1);
    // 62 whole pages, and 8 tokens of a page that is copied.
    CHECK(told.stats.cached_tokens == (i == 0 ? 0u : 1000u));
  }
  const decant::ModelMetrics metrics = model.metrics();
  CHECK(metrics.kv_pages == 3 * 69);
  CHECK(metrics.kv_pages_used == 62 + 40 * 2);  // shared + own
  CHECK(metrics.kv_copied_pages == 39);
  CHECK(metrics.kv_evicted_pages == 0);
  std::printf("pages used by 40 sessions: %zu shared + 40 x 2 own\n",
              metrics.kv_pages_used - 40 * 2);
}
