// Any order of arrival, chunking, preemption with or without a swap space, forks and cancellations:
// every reply's tokens and logits are those of the same request alone, which a model of its own ran
// with nobody beside it and no prefix cache. 500 schedules; the seed of a failing one is printed.
#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "support/catch.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::ModelOptions;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kContext = 128, kMostNew = 24;

/// The prompts that requests choose from: some begin alike, some at the borders of pages.
const std::vector<std::vector<Token>>& schedule_prompts() {
  static const std::vector<std::vector<Token>> prompts = [] {
    std::vector<std::vector<Token>> out;
    const std::vector<Token> shared = TinyRandom(77).tokens(40);
    for (const std::size_t n : {1u, 15u, 16u, 17u, 33u, 60u})
      out.push_back(TinyRandom(n).tokens(n));
    for (const std::size_t n : {1u, 8u, 20u}) {
      out.push_back(shared);
      const auto rest = TinyRandom(200 + n).tokens(n);
      out.back().insert(out.back().end(), rest.begin(), rest.end());
    }
    out.push_back(shared);
    return out;
  }();
  return prompts;
}

GenerateOptions schedule_options(std::uint64_t seed) { return exactly(kMostNew, seed); }

struct Architecture {
  TinySpec spec;
  std::vector<std::byte> file;
  decant::KvType kv;
  std::map<std::pair<std::size_t, std::uint64_t>, Told> alone;
  std::optional<decant::Model> model;

  explicit Architecture(const char* name, decant::KvType type = decant::KvType::automatic)
      : kv(type) {
    spec.architecture = name;
    spec.window = 20;
    spec.n_layers = spec.architecture == "gemma3" ? 4 : 2;
    file = random_model(spec).file();
    ModelOptions options;
    options.threads = 1;
    options.prefix_cache = false;
    options.kv_keys = options.kv_values = kv;
    model.emplace(decant::Model::load(std::span(file), on_fast_backend(options)).value());
  }
  const Told& told(std::size_t prompt, std::uint64_t seed) {
    auto [at, is_new] = alone.try_emplace({prompt, seed});
    if (is_new) {
      auto session = session_with(*model, schedule_prompts()[prompt]);
      at->second = tell(session, schedule_options(seed));
    }
    return at->second;
  }
  const std::vector<Token>& tokens(std::size_t prompt, std::uint64_t seed) {
    return told(prompt, seed).tokens;
  }
};

/// One request of a schedule, and what it must give.
struct Scheduled {
  std::optional<decant::Session> session;
  std::optional<decant::Reply> reply;
  const Told* alone = nullptr;
  std::vector<float> logits = {};
  std::size_t n_prompt = 0, wanted = 0;
  bool may_be_cut = false;

  static bool process(void* self, std::span<const Token>, std::span<float> logits) {
    auto& all = static_cast<Scheduled*>(self)->logits;
    all.insert(all.end(), logits.begin(), logits.end());
    return true;
  }

  /// Whether it gave the right tokens, from the right logits.
  bool check() {
    const std::size_t n = logits.size();
    if (n > alone->logits.size()) return false;
    if (n != 0 && !same_bits(logits, std::span(alone->logits).first(n))) return false;
    const std::vector<Token> tokens = reply->tokens();
    const FinishReason reason = reply->finish_reason();
    if (!reply->status() || tokens.size() > wanted) return false;
    if (reason == FinishReason::cancelled)
      return may_be_cut && session->tokens().size() == n_prompt;
    if (!std::equal(tokens.begin(), tokens.end(), alone->tokens.begin())) return false;
    if (session->tokens().size() != n_prompt + tokens.size()) return false;
    if (reason == FinishReason::max_tokens) return tokens.size() == wanted;
    return may_be_cut && reason == FinishReason::stopped;
  }
};

/// What all schedules did.
struct Totals {
  std::uint64_t preemptions = 0, swapped_pages = 0;
};

/// Runs a schedule; what was wrong.
std::string run_schedule(std::uint64_t seed, Architecture& architecture, Totals& totals) {
  TinyRandom random(seed);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random.below(sizeof...(values))];
  };
  ModelOptions options;
  const bool manual = random.below(8) != 0;
  options.mode = manual ? decant::RunMode::manual : decant::RunMode::background;
  options.threads = pick(1, 1, 2);
  options.context = kContext;
  options.sessions = 16;
  options.chunk = pick(1u, 3u, 7u, 16u, 64u);
  options.max_batch = pick(1u, 2u, 4u, 8u);
  options.batching = pick(decant::BatchPolicy::continuous, decant::BatchPolicy::continuous,
                          decant::BatchPolicy::fixed);
  options.prefix_cache = random.below(3) != 0;
  // In the background sessions that have ended keep pages for a while, so pools are large there.
  const std::size_t page_bytes = 16 * architecture.model->info().kv_bytes_per_token;
  if (manual) options.kv_memory = pick(7u, 9u, 14u, 30u) * page_bytes;
  options.kv_keys = options.kv_values = architecture.kv;
  options.swap_memory = pick(0u, 3u, 40u) * page_bytes;
  auto model = decant::Model::load(std::span(architecture.file), on_fast_backend(options)).value();

  std::vector<Scheduled> all(3 + random.below(6));
  std::size_t n_started = 0, n_ended = 0;
  std::string wrong;
  // Sessions whose replies have ended keep pages, which others may need in the next pass.
  const auto collect = [&] {
    for (std::size_t i = 0; i < n_started; ++i) {
      Scheduled& s = all[i];
      if (!s.reply || !s.reply->finished()) continue;
      if (!s.check())
        wrong += "request " + std::to_string(i) + " of seed " + std::to_string(seed) + ": " +
                 decant::finish_reason_name(s.reply->finish_reason()) + " " +
                 std::string(s.reply->status().error().message()) + "\n";
      ++n_ended;
      s.reply.reset();
      s.session.reset();
    }
  };
  const auto step = [&] {  // a pass at most
    if (manual)
      model.step(pick(0ns, 40'000ns, 40'000ns)).value();
    else
      std::this_thread::yield();
    collect();
  };
  const auto start = [&](Scheduled& s) {
    const std::size_t prompt = random.below(schedule_prompts().size());
    const std::uint64_t sampler_seed = random.below(3);
    s.alone = &architecture.told(prompt, sampler_seed);
    s.n_prompt = schedule_prompts()[prompt].size();
    GenerateOptions o = schedule_options(sampler_seed);
    o.max_tokens = s.wanted = 1 + random.below(kMostNew);
    o.process_logits = Scheduled::process;
    o.process_logits_user = &s;
    o.priority = pick(0, 0, 1);
    o.admission = pick(decant::Admission::optimistic, decant::Admission::optimistic,
                       decant::Admission::guaranteed);
    s.session.emplace(session_with(model, schedule_prompts()[prompt]));
    if (random.below(4) == 0) {  // on a fork, whose origin has run a part, and goes
      auto origin = std::move(*s.session);
      const std::size_t n = 1 + random.below(s.n_prompt);
      origin.rewind(n).value();
      if (random.below(2) == 0) {
        auto first = origin.generate(schedule_options(5)).value();
        if (manual)
          for (std::uint64_t i = random.below(4); i-- > 0;) step();
        first.cancel();
      }
      // A background model needs a moment for the cancelled one.
      while (!origin.rewind(n)) std::this_thread::yield();
      origin.append(std::span(schedule_prompts()[prompt]).subspan(n)).value();
      s.session.emplace(origin.fork().value());
    }
    s.reply.emplace(s.session->generate(o).value());
  };
  while (n_ended < all.size()) {
    if (n_started < all.size() && random.below(3) == 0) start(all[n_started++]);
    if (n_started != 0 && random.below(12) == 0) {
      Scheduled& s = all[random.below(n_started)];
      if (s.reply && random.below(2) == 0) {
        s.may_be_cut = true;
        pick(0, 1) == 0 ? s.reply->stop() : s.reply->cancel();
        (void)s.session->tokens();  // a manual model ends it now
        collect();
      }
    }
    step();
  }
  const auto is_left = [&] {
    const auto metrics = model.metrics();
    return metrics.kv_pages_used + metrics.kv_swapped_pages != 0 ||
           metrics.running + metrics.waiting != 0;
  };
  // A model lets go of the last pages when its step is over.
  for (int i = 0; i < 5000 && is_left(); ++i)
    if (manual)
      (void)model.step(std::chrono::milliseconds(1));
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  totals.preemptions += model.metrics().preemptions;
  totals.swapped_pages += model.metrics().kv_swapped_out_pages;
  if (is_left()) wrong += "something is left after seed " + std::to_string(seed) + "\n";
  return wrong;
}

}  // namespace

TEST_CASE("random schedules: every reply's tokens are those of the same request alone") {
  Architecture of[] = {Architecture("llama"), Architecture("gemma3"),
                       Architecture("llama", decant::KvType::int8),
                       Architecture("gemma3", decant::KvType::int8)};
  Totals totals;
  for (std::uint64_t seed = 1; seed <= (kOnCuda ? 24 : 500); ++seed) {
    const std::string wrong = run_schedule(seed, of[seed % 4], totals);
    INFO("seed " << seed);
    if (!wrong.empty()) FAIL_CHECK(wrong);
  }
  CHECK(totals.preemptions > 0);
  CHECK(totals.swapped_pages > 0);
}

namespace {

/// Which request of the next test cancels itself where.
struct CancelAt {
  std::atomic<decant::Reply*> reply{nullptr};
  std::size_t token = 0, calls = 0;
  std::atomic<int> n_ends{0};
  static bool process(void* self, std::span<const Token>, std::span<float>) {
    CancelAt& c = *static_cast<CancelAt*>(self);
    if (c.calls++ != c.token) return true;
    while (c.reply == nullptr) std::this_thread::yield();
    c.reply.load()->cancel();
    return true;
  }
  static bool on_text(void* self, const decant::ReplyText& piece) {
    if (piece.finished) ++static_cast<CancelAt*>(self)->n_ends;
    return true;
  }
};

}  // namespace

TEST_CASE("requests cancelled at random stages leave no page and no trace") {
  Architecture llama("llama");
  const std::uint64_t seed = 20;
  CAPTURE(seed);
  for (const auto mode : {decant::RunMode::manual, decant::RunMode::background}) {
    TinyRandom random(seed);
    const bool manual = mode == decant::RunMode::manual;
    ModelOptions options;
    options.mode = mode;
    options.threads = 2;
    options.context = kContext;
    options.sessions = 8;  // those that have ended keep pages
    options.chunk = 16;
    options.max_batch = 4;
    options.prefix_cache = false;
    auto model = decant::Model::load(std::span(llama.file), on_fast_backend(options)).value();
    const auto golden = [&] {
      auto session = session_with(model, schedule_prompts()[5]);
      auto reply = session.generate(schedule_options(1)).value();
      reply.wait().value();
      return reply.tokens() == llama.tokens(5, 1);
    };
    std::size_t wrong = 0;
    for (int round = 0; round < (kOnCuda ? 10 : 125); ++round) {
      std::vector<std::unique_ptr<CancelAt>> hosts;
      std::vector<decant::Session> sessions;
      std::vector<std::unique_ptr<decant::Reply>> replies;
      for (int i = 0; i < 8; ++i) {
        hosts.push_back(std::make_unique<CancelAt>());
        const std::size_t prompt = random.below(schedule_prompts().size());
        sessions.push_back(session_with(model, schedule_prompts()[prompt]));
        GenerateOptions o = schedule_options(1);
        o.on_text = CancelAt::on_text;
        o.on_text_user = hosts.back().get();
        if (random.below(3) == 0) {
          hosts.back()->token = random.below(5);
          o.process_logits = CancelAt::process;
          o.process_logits_user = hosts.back().get();
        }
        replies.push_back(std::make_unique<decant::Reply>(sessions.back().generate(o).value()));
        hosts.back()->reply = replies.back().get();
      }
      // At any time: while they wait, in every chunk of a prompt, in and between passes.
      for (std::size_t i = 0; i < 8; ++i) {
        if (manual)
          for (std::uint64_t n = random.below(6); n-- > 0;)
            model.step(std::chrono::nanoseconds(random.below(2) * 40'000)).value();
        else if (random.below(2) == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random.below(200)));
        switch (random.below(3)) {
          case 0: replies[i]->cancel(); break;
          case 1: replies[i]->cancel(), replies[i]->cancel(); break;
          default:
            if (hosts[i]->calls == 0 && manual) {
              hosts[i]->token = SIZE_MAX;  // it will not be there to cancel
              replies[i].reset();
            } else {
              replies[i]->cancel();
            }
        }
      }
      while (manual && model.step(1ms).value()) {
      }
      for (std::size_t i = 0; i < 8; ++i) {
        if (replies[i]) {
          wrong += !replies[i]->wait();
          replies[i]->cancel();  // too late: nothing happens
          wrong += replies[i]->finish_reason() != FinishReason::cancelled &&
                   replies[i]->finish_reason() != FinishReason::max_tokens;
        }
        (void)sessions[i].rewind(0);
        wrong += hosts[i]->n_ends != 1;
      }
      wrong += model.metrics().kv_pages_used != 0;
      if (round % 25 == 0) wrong += !golden();
    }
    CHECK(wrong == 0);
    CHECK(golden());
  }
}
