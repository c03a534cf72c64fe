// The same bits every time: logits and tokens of tiny models do not depend on chunks, threads,
// neighbours in a batch, rewinding, cancelling, the host's floating-point mode or the way of
// loading. A run of one thread and one chunk for everything is the measure; that it computes the
// right thing is tested elsewhere (golden data, attention and RoPE against oracles).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>

#include "base/float16.hpp"
#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::KvType;
using decant::ModelOptions;

namespace {

/// A tiny model on one of the backends.
struct Variant : TinySpec {
  decant::Backend backend = decant::Backend::cpu;
  decant::Activations activations = decant::Activations::int8;
};

ModelOptions options_of(const Variant& variant, int threads, std::size_t chunk, KvType kv,
                        std::size_t sessions = 1) {
  ModelOptions options;
  options.backend = variant.backend;
  options.activations = variant.activations;
  options.threads = threads;
  options.chunk = chunk;
  options.kv_keys = options.kv_values = kv;
  options.sessions = sessions;
  return options;
}

GenerateOptions sampled(std::size_t n) { return exactly(n, 7); }

/// What a reply computed: the bits of the logits of every token, and the tokens.
struct Recorded {
  std::vector<std::vector<float>> logits;
  std::vector<Token> tokens;
  static bool process(void* self, std::span<const Token>, std::span<float> logits) {
    static_cast<Recorded*>(self)->logits.emplace_back(logits.begin(), logits.end());
    return true;
  }
  GenerateOptions options(std::size_t n) {
    GenerateOptions o = sampled(n);
    o.process_logits = process;
    o.process_logits_user = this;
    return o;
  }
  bool operator==(const Recorded& other) const {
    if (tokens != other.tokens || logits.size() != other.logits.size()) return false;
    for (std::size_t i = 0; i < logits.size(); ++i)
      if (!same_bits(logits[i], other.logits[i])) return false;
    return true;
  }
};

/// Both architectures on both backends.
std::vector<Variant> all_variants() {
  std::vector<Variant> variants(4);
  for (const std::size_t i : {1u, 3u}) {
    variants[i].architecture = "gemma3";
    variants[i].n_layers = 4;
  }
  variants[2].backend = variants[3].backend = decant::Backend::reference;
  if (kOnCuda) variants.resize(2);
  return variants;
}

/// All logits of a prompt and the tokens that follow.
struct Outcome {
  std::vector<float> logits;
  std::vector<Token> tokens;
  bool operator==(const Outcome& o) const {
    return tokens == o.tokens && same_bits(logits, o.logits);
  }
};

Outcome outcome(decant::Model& model, std::span<const Token> prompt, std::size_t n_new = 12) {
  auto session = session_with(model, prompt);
  Outcome out;
  out.logits = last_logits(session, model, prompt.size());
  auto reply = session.generate(sampled(n_new)).value();
  reply.wait().value();
  out.tokens = reply.tokens();
  return out;
}

}  // namespace

TEST_CASE("logits and tokens do not depend on chunks and threads") {
  const std::vector<Token> prompt = TinyRandom(11).tokens(70);
  for (const Variant& spec : all_variants())
    for (const KvType kv : {KvType::f16, KvType::f32, KvType::bf16, KvType::int8}) {
      const TinyModel tiny = random_model(spec);
      auto measure = tiny.load(options_of(spec, 1, 512, kv));
      const Outcome expected = outcome(measure, prompt);
      REQUIRE(std::set<Token>(expected.tokens.begin(), expected.tokens.end()).size() > 3);
      for (const std::size_t chunk : {1u, 2u, 5u, 7u, 16u, 64u, 512u})
        for (const int threads : {1, 2, 3, 8}) {
          if (kOnCuda && threads > 1) break;
          CAPTURE(spec.architecture, static_cast<int>(spec.backend), chunk, threads);
          auto model = tiny.load(options_of(spec, threads, chunk, kv));
          CHECK(outcome(model, prompt) == expected);
        }
    }
}

namespace {

/// A model whose matrices are Q8_0 (format/tensor_type.hpp), an even number of blocks.
TinyModel integer_model(const TinySpec& spec) {
  TinyModel tiny = random_model(spec);
  for (TinyModel::Tensor& t : tiny.tensors) {
    if (t.shape.size() != 2 || t.shape[0] % 32 != 0) continue;
    std::vector<std::byte> blocks;
    for (std::size_t at = 0; at < t.data.size(); at += 32) {
      float most = 1e-3f;
      for (std::size_t i = 0; i < 32; ++i) most = std::max(most, std::abs(t.data[at + i]));
      const std::uint16_t scale = decant::detail::f32_to_f16(most / 127);
      std::byte block[34];
      std::memcpy(block, &scale, 2);
      for (std::size_t i = 0; i < 32; ++i)
        block[2 + i] = static_cast<std::byte>(
            static_cast<std::int8_t>(std::lround(t.data[at + i] * 126 / most)));
      blocks.insert(blocks.end(), block, block + 34);
    }
    REQUIRE(blocks.size() % sizeof(float) == 0);
    t.type = 8;
    t.data.resize(blocks.size() / sizeof(float));
    std::memcpy(t.data.data(), blocks.data(), blocks.size());
  }
  return tiny;
}

/// A host's threads: `concurrency` calls at the same time, or one after the other.
struct HostThreads final : decant::Executor {
  HostThreads(int n, bool at_once) : n_threads(n), at_once(at_once) {}
  int concurrency() const noexcept override { return n_threads; }
  void run(int n, void (*fn)(void*) noexcept, void* context) override {
    ++calls;
    most = std::max(most, n);
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i)
      if (at_once)
        threads.emplace_back(fn, context);
      else
        fn(context);
    for (std::thread& t : threads) t.join();
  }
  int n_threads, calls = 0, most = 0;
  bool at_once;
};

}  // namespace

TEST_CASE("the host's executor and activations of 16 bits: the same bits in every way too") {
  const std::vector<Token> prompt = TinyRandom(12).tokens(20);
  for (Variant spec : all_variants()) {
    std::vector<float> int8_logits;
    for (const auto activations : {decant::Activations::int8, decant::Activations::int16}) {
      spec.activations = activations;
      spec.n_embd = spec.n_ff = 64;
      const TinyModel tiny = integer_model(spec);
      auto measure = tiny.load(options_of(spec, 1, 512, KvType::f16));
      const Outcome expected = outcome(measure, prompt, 4);
      // Only the CPU backend rounds activations to integers.
      const bool same =
          same_bits(int8_logits.empty() ? expected.logits : int8_logits, expected.logits);
      CHECK(same == (activations == decant::Activations::int8 ||
                     spec.backend == decant::Backend::reference || kOnCuda));
      int8_logits = expected.logits;
      for (const std::size_t chunk : {7u, 512u}) {
        CAPTURE(spec.architecture, static_cast<int>(spec.backend), static_cast<int>(activations),
                chunk);
        for (const int threads : {1, 3}) {
          auto model = tiny.load(options_of(spec, threads, chunk, KvType::f16));
          CHECK(outcome(model, prompt, 4) == expected);
        }
        for (const bool at_once : {false, true})
          for (const int n : {1, 2}) {
            CAPTURE(at_once, n);
            HostThreads host(n, at_once);
            ModelOptions options = options_of(spec, 0, chunk, KvType::f16);
            options.executor = &host;
            auto model = tiny.load(options);
            const int at_load = host.calls;
            CHECK(outcome(model, prompt, 4) == expected);
            CHECK(host.most <= n);
            CHECK((n == 1 || host.calls > at_load));
          }
      }
    }
  }
}

TEST_CASE("KV types differ in their bits, so that the tests above compare different pages") {
  const std::vector<Token> prompt = TinyRandom(11).tokens(40);
  const Variant spec;
  const TinyModel tiny = random_model(spec);
  auto f16 = tiny.load(options_of(spec, 1, 512, KvType::f16));
  auto f32 = tiny.load(options_of(spec, 1, 512, KvType::f32));
  const auto a = outcome(f16, prompt, 1).logits, b = outcome(f32, prompt, 1).logits;
  CHECK_FALSE(same_bits(a, b));
  float difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = std::max(difference, std::abs(a[i] - b[i]));
  CHECK(difference < 0.1f);
}

TEST_CASE("prompts at the borders of pages, splits and windows: at once or token by token") {
  for (Variant spec : all_variants())
    for (const int window : {16, 20}) {
      if (spec.architecture == "llama" && window != 16) continue;
      spec.window = window;
      spec.context = 300;
      ModelOptions options = options_of(spec, 2, 512, KvType::f16, 3);
      options.prefix_cache = false;
      auto model = random_model(spec).load(options);
      const std::vector<Token> tokens = TinyRandom(5).tokens(258);
      auto walking = model.session().value();
      std::size_t at = 0;
      for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 19u, 20u, 21u, 255u, 256u, 257u, 258u}) {
        CAPTURE(spec.architecture, static_cast<int>(spec.backend), window, n);
        std::vector<float> last;
        for (; at < n; ++at) {
          walking.append(std::span(&tokens[at], 1)).value();
          const auto logits = walking.logits().value();
          last.assign(logits.begin(), logits.end());
        }
        auto whole = session_with(model, std::span(tokens).first(n));
        CHECK(same_bits(whole.logits().value(), last));
      }
    }
}

TEST_CASE("a rewound session is the session that it would have been") {
  const std::vector<Token> tokens = TinyRandom(3).tokens(40), other = TinyRandom(4).tokens(9);
  for (const Variant& spec : all_variants()) {
    auto model = random_model(spec).load(options_of(spec, 2, 16, KvType::f16, 3));
    ModelOptions without = options_of(spec, 2, 16, KvType::f16, 3);
    without.prefix_cache = false;
    auto cold_model = random_model(spec).load(without);
    auto cold = session_with(cold_model, tokens);
    const std::vector<float> expected = last_logits(cold, cold_model, tokens.size());
    const std::size_t width = model.info().n_vocab;
    auto session = session_with(model, tokens);
    (void)session.logits().value();
    for (std::size_t n = 0; n <= tokens.size(); ++n) {
      CAPTURE(spec.architecture, static_cast<int>(spec.backend), n);
      REQUIRE(session.rewind(n));
      CHECK(copy(session.tokens()) == copy(std::span(tokens).first(n)));
      // Another future first, then the first one again.
      REQUIRE(session.append(std::span(other)));
      const auto branch = last_logits(session, model, other.size());
      std::vector<Token> joined(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
      joined.insert(joined.end(), other.begin(), other.end());
      auto fresh = session_with(cold_model, joined);
      CHECK(same_bits(branch, last_logits(fresh, cold_model, other.size())));
      REQUIRE(session.rewind(n));
      REQUIRE(session.append(std::span(tokens).subspan(n)));
      const std::size_t rows = std::max<std::size_t>(1, tokens.size() - n);
      CHECK(same_bits(last_logits(session, model, rows), std::span(expected).last(rows * width)));
    }
  }
}

TEST_CASE("a cancelled reply leaves no trace") {
  const std::vector<Token> tokens = TinyRandom(8).tokens(20);
  for (const Variant& spec : all_variants()) {
    auto model = random_model(spec).load(options_of(spec, 2, 8, KvType::f16, 2));
    const Outcome expected = outcome(model, tokens);
    for (const std::size_t when : {0u, 1u, 5u, 17u}) {
      CAPTURE(spec.architecture, static_cast<int>(spec.backend), when);
      auto session = session_with(model, tokens);
      struct Cancel {
        std::size_t when, calls = 0;
        std::atomic<decant::Reply*> reply{nullptr};
      } cancel{when};
      GenerateOptions options = sampled(100);
      options.process_logits = [](void* c, std::span<const Token>, std::span<float>) {
        auto& cancel = *static_cast<Cancel*>(c);
        while (cancel.reply == nullptr) std::this_thread::yield();
        if (cancel.calls++ == cancel.when) cancel.reply.load()->cancel();
        return true;
      };
      options.process_logits_user = &cancel;
      auto reply = session.generate(options).value();
      cancel.reply = &reply;
      REQUIRE(reply.wait());
      CHECK(reply.finish_reason() == FinishReason::cancelled);
      CHECK(copy(session.tokens()) == tokens);
      auto again = session.generate(sampled(12)).value();
      again.wait().value();
      CHECK(again.tokens() == expected.tokens);
      REQUIRE(session.rewind(tokens.size()));
      CHECK(same_bits(last_logits(session, model, tokens.size()), expected.logits));
    }
  }
}

namespace {

/// Holds the worker inside a callback, so that what is submitted meanwhile runs together; lets one
/// step go at a time.
class Gate {
 public:
  explicit Gate(decant::Model& model) : session_(session_with(model, std::vector<Token>{5})) {
    GenerateOptions options;
    options.ignore_end = true;
    options.process_logits = hold;
    options.process_logits_user = this;
    reply_.emplace(session_.generate(options).value());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }
  ~Gate() { open(); }
  /// One step of everything that is in flight.
  void step() {
    std::unique_lock lock(mutex_);
    ++allowed_;
    held_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return held_; });
  }
  /// No more holding.
  void open() {
    reply_->cancel();
    {
      const std::lock_guard lock(mutex_);
      allowed_ = SIZE_MAX;
    }
    changed_.notify_all();
    (void)reply_->wait();
  }

 private:
  static bool hold(void* self, std::span<const Token>, std::span<float>) {
    Gate& g = *static_cast<Gate*>(self);
    std::unique_lock lock(g.mutex_);
    g.held_ = true;
    g.changed_.notify_all();
    g.changed_.wait(lock, [&] { return g.allowed_ > 0; });
    if (g.allowed_ != SIZE_MAX) --g.allowed_;
    return true;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::size_t allowed_ = 0;
  decant::Session session_;
  std::optional<decant::Reply> reply_;
};

/// Runs the prompts at the same time, each submitted `apart` steps after the one before.
std::vector<Recorded> run_together(decant::Model& model,
                                   const std::vector<std::vector<Token>>& prompts,
                                   std::size_t n_new, int apart) {
  std::vector<Recorded> recorded(prompts.size());
  std::vector<decant::Session> sessions;
  std::vector<decant::Reply> replies;
  for (const auto& prompt : prompts) sessions.push_back(session_with(model, prompt));
  {
    Gate gate(model);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      replies.push_back(sessions[i].generate(recorded[i].options(n_new)).value());
      for (int step = 0; step < apart; ++step) gate.step();
    }
    gate.open();
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    replies[i].wait().value();
    recorded[i].tokens = replies[i].tokens();
  }
  return recorded;
}

}  // namespace

TEST_CASE("alone, in pairs and all together: the same bits") {
  std::vector<std::vector<Token>> prompts;
  for (const std::size_t n : {1u, 2u, 7u, 16u, 17u, 33u})
    prompts.push_back(TinyRandom(100 + n).tokens(n));
  constexpr std::size_t kNew = 6;
  for (const Variant& spec : all_variants()) {
    const TinyModel tiny = random_model(spec);
    std::vector<Recorded> solo;
    {
      auto model = tiny.load(options_of(spec, 1, 512, KvType::f16));
      for (const auto& prompt : prompts) {
        auto session = session_with(model, prompt);
        Recorded r;
        auto reply = session.generate(r.options(kNew)).value();
        reply.wait().value();
        r.tokens = reply.tokens();
        solo.push_back(std::move(r));
      }
    }
    for (const std::size_t chunk : {1u, 5u, 16u, 512u}) {
      if (kOnCuda && chunk != 5) continue;  // minutes
      ModelOptions options = options_of(spec, 2, chunk, KvType::f16, 8);
      options.context = 64;
      auto model = tiny.load(options);
      for (const int apart : {0, 1}) {
        CAPTURE(spec.architecture, static_cast<int>(spec.backend), chunk, apart);
        // With one row a pass the holding request itself takes all of them.
        if (chunk == 1 && apart == 1) continue;
        bool all = true;
        for (std::size_t a = 0; a < prompts.size(); ++a)
          for (std::size_t b = 0; b < prompts.size(); ++b) {
            const auto pair = run_together(model, {prompts[a], prompts[b]}, kNew, apart);
            all = all && pair[0] == solo[a] && pair[1] == solo[b];
          }
        CHECK(all);
        CHECK(run_together(model, prompts, kNew, apart) == solo);
        auto reversed = prompts;
        std::reverse(reversed.begin(), reversed.end());
        auto together = run_together(model, reversed, kNew, apart);
        std::reverse(together.begin(), together.end());
        CHECK(together == solo);
      }
    }
  }
}

TEST_CASE("replies and logits on many threads at once equal the same alone") {
  const Variant spec;
  const TinyModel tiny = random_model(spec);
  auto model = tiny.load(options_of(spec, 2, 8, KvType::f16, 6));
  std::vector<std::vector<Token>> prompts;
  std::vector<Outcome> expected;
  for (std::size_t i = 0; i < 6; ++i) {
    prompts.push_back(TinyRandom(i).tokens(5 + 9 * i));
    expected.push_back(outcome(model, prompts[i]));
  }
  std::atomic<int> different{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 6; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round)
        if (!(outcome(model, prompts[i]) == expected[i])) ++different;
    });
  for (std::thread& t : threads) t.join();
  CHECK(different == 0);
}

TEST_CASE("the host's floating-point mode changes nothing") {
  if (!HostMode::kAvailable) DECANT_SKIP("no floating-point modes here");
  const std::vector<Token> prompt = TinyRandom(21).tokens(30);
  for (Variant spec : all_variants()) {
    spec.text = spec.architecture == "llama" ? TinyText::spm : TinyText::bpe;
    TinyModel tiny = random_model(spec);
    tiny.set_string(spec.architecture + ".rope.scaling.type", "linear");
    tiny.set_f32(spec.architecture + ".rope.scaling.factor", 3.0f);
    // Denormal, so that a load in the host's mode would read 0, which is refused.
    tiny.set_f32(spec.architecture + ".attention.layer_norm_rms_epsilon", 1e-40f);
    auto plain = tiny.load(options_of(spec, 2, 7, KvType::f16));
    const Outcome expected = outcome(plain, prompt);
    for (const auto kind : {HostMode::flush_to_zero, HostMode::toward_zero, HostMode::both}) {
      Outcome loaded, run;
      bool untouched = false;
      {
        const HostMode mode(kind);
        auto model = tiny.load(options_of(spec, 2, 7, KvType::f16));
        loaded = outcome(model, prompt);
        run = outcome(plain, prompt);
        untouched = mode.untouched();
      }
      CAPTURE(spec.architecture, static_cast<int>(spec.backend), static_cast<int>(kind));
      CHECK(untouched);
      CHECK(loaded == expected);
      CHECK(run == expected);
    }
    // A callback that leaves a mode behind on the worker, in which 1e-40 would equal 0.
    auto session = session_with(plain, prompt);
    GenerateOptions options = sampled(3);
    options.sampler = decant::Sampler::greedy();
    options.process_logits = [](void*, std::span<const Token>, std::span<float> logits) {
      std::fill(logits.begin(), logits.end(), 0.0f);
      logits[20] = 1e-40f;
      std::uint64_t both;
      {
        const HostMode mode(HostMode::both);
        both = decant::detail::float_mode_get();
      }
      decant::detail::float_mode_set(both);
      return true;
    };
    auto reply = session.generate(options).value();
    reply.wait().value();
    CHECK(reply.tokens() == std::vector<Token>{20, 20, 20});
    // And the passes after it.
    CHECK(outcome(plain, prompt) == expected);
  }
}

TEST_CASE("every way of loading gives the same bits") {
  const std::vector<Token> prompt = TinyRandom(31).tokens(25);
  for (const Variant& spec : all_variants()) {
    const TinyModel tiny = random_model(spec);
    const std::vector<std::byte> bytes = tiny.file();
    const TempFolder folder;
    const std::string path = folder.write("tiny.gguf", bytes);
    auto measure = tiny.load(options_of(spec, 1, 512, KvType::f16));
    const Outcome expected = outcome(measure, prompt);
    ModelOptions options = on_fast_backend(options_of(spec, 2, 16, KvType::f16));
    for (const bool mapped : {false, true}) {
      CAPTURE(spec.architecture, static_cast<int>(spec.backend), mapped);
      options.mapped = mapped;
      if (mapped && kOnCuda) break;  // its weights are on the device
      auto from_path = decant::Model::load(path, options).value();
      CHECK(outcome(from_path, prompt) == expected);
      auto from_memory = decant::Model::load(std::span(bytes), options).value();
      CHECK(outcome(from_memory, prompt) == expected);
    }
    struct HostFile final : decant::Reader {
      std::span<const std::byte> bytes;
      std::uint64_t size() override { return bytes.size(); }
      decant::Status read(std::uint64_t offset, std::span<std::byte> to) override {
        std::memcpy(to.data(), bytes.data() + offset, to.size());
        return {};
      }
      std::string_view name() const override { return "the host's file"; }
    } host;
    host.bytes = bytes;
    decant::Reader* const parts[] = {&host};
    options.mapped = false;
    auto from_reader = decant::Model::load(std::span(parts), options).value();
    CHECK(outcome(from_reader, prompt) == expected);
    options.mapped = true;
    const auto refused = decant::Model::load(std::span(parts), options);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == decant::ErrorCode::invalid_argument);
  }
}
