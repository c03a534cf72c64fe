// Preempted replies leave their pages in the swap space and go on from there: nothing is run again,
// with the same bits; and however a request ends, its places are free.
#include <algorithm>
#include <deque>
#include <optional>

#include "support/catch.hpp"
#include "support/told.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::KvType;
using decant::ModelOptions;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPage = 16;

struct Kind {
  const char* architecture;
  KvType kv;
};
constexpr Kind kKinds[] = {{"llama", KvType::f16},
                           {"llama", KvType::int8},
                           {"gemma3", KvType::f16},
                           {"gemma3", KvType::int8}};

/// A model that the test steps, with so many pages in each group and so many places for them.
decant::Model swap_model(const Kind& kind, std::size_t n_pages, std::size_t n_places,
                         bool prefix_cache = false) {
  TinySpec spec;
  spec.architecture = kind.architecture;
  spec.n_layers = 4;
  const TinyModel tiny = random_model(spec);
  ModelOptions options;
  options.mode = decant::RunMode::manual;
  options.threads = 1;
  options.context = 128;
  options.prefix_cache = prefix_cache;
  options.kv_keys = options.kv_values = kind.kv;
  options.chunk = 16;
  const std::size_t page_bytes = kPage * tiny.load(options).info().kv_bytes_per_token;
  options.kv_memory = n_pages * page_bytes;
  options.swap_memory = n_places * page_bytes;
  return tiny.load(options);
}

GenerateOptions swap_options(std::size_t n, int priority = 0) {
  GenerateOptions options = exactly(n, 5);
  options.priority = priority;
  return options;
}

/// What a request gives when it has a model for itself.
Told alone(const Kind& kind, std::span<const Token> prompt, const GenerateOptions& options) {
  auto model = swap_model(kind, 64, 0);
  auto session = session_with(model, prompt);
  return tell(session, options);
}

/// Replies with their sessions and logits. Sessions whose replies have ended give up their pages.
struct Crowd {
  struct Member {
    decant::Session session;
    Told told = {};
    std::optional<decant::Reply> reply = {};
  };
  decant::Model model;
  std::deque<Member> members;

  explicit Crowd(decant::Model m) : model(std::move(m)) {}
  Member& add(std::span<const Token> prompt, GenerateOptions options) {
    Member& m = members.emplace_back(Member{session_with(model, prompt)});
    options.process_logits = [](void* to, std::span<const Token>, std::span<float> logits) {
      auto& all = static_cast<Told*>(to)->logits;
      all.insert(all.end(), logits.begin(), logits.end());
      return true;
    };
    options.process_logits_user = &m.told;
    m.reply = m.session.generate(options).value();
    return m;
  }
  /// A pass at most.
  bool step() {
    const bool left = model.step(20us).value();
    for (Member& m : members)
      if (m.reply && m.reply->finished()) {
        m.told.tokens = m.reply->tokens();
        m.told.reason = m.reply->finish_reason();
        m.reply.reset();
        m.session.rewind(0).value();
      }
    return left;
  }
  void finish() {
    while (step()) {
    }
  }
  std::size_t in_swap() const { return model.metrics().kv_swapped_pages; }
};

}  // namespace

TEST_CASE("a preempted reply that left its pages in the swap space runs nothing again") {
  for (const Kind& kind : kKinds)
    for (const bool prefix_cache : {false, true})
      for (const std::size_t n_places : {0u, 1u, 12u}) {
        CAPTURE(kind.architecture, static_cast<int>(kind.kv), prefix_cache, n_places);
        // Three pages each at last.
        Crowd crowd(swap_model(kind, 6, n_places, prefix_cache));
        for (std::uint64_t i = 0; i < 3; ++i) crowd.add(TinyRandom(i).tokens(15), swap_options(30));
        std::size_t most = 0;
        while (crowd.step()) most = std::max(most, crowd.in_swap());
        const auto metrics = crowd.model.metrics();
        CHECK(metrics.preemptions > 0);
        CHECK((metrics.kv_swapped_out_pages > 0) == (n_places == 12));
        CHECK(most <= n_places * static_cast<std::size_t>(crowd.model.info().kv_groups.size()));
        CHECK(metrics.kv_swapped_pages == 0);
        CHECK(metrics.kv_pages_used == 0);
        // A prompt and all new tokens but the last.
        if (n_places == 12) CHECK(metrics.step_rows == 3 * (15 + 29));
        if (n_places == 0 && !prefix_cache) CHECK(metrics.step_rows > 3 * (15 + 29));
        for (std::uint64_t i = 0; i < 3; ++i) {
          CAPTURE(i);
          CHECK(crowd.members[i].told == alone(kind, TinyRandom(i).tokens(15), swap_options(30)));
        }
      }
}

TEST_CASE("a prompt is preempted in the middle and goes on there") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.architecture, static_cast<int>(kind.kv));
    const std::vector<Token> prompt = TinyRandom(7).tokens(70), other = TinyRandom(8).tokens(60);
    Crowd crowd(swap_model(kind, 6, 12));
    auto& low = crowd.add(prompt, swap_options(8));
    while (crowd.model.metrics().step_rows < 32) crowd.step();
    auto& high = crowd.add(other, swap_options(8, 1));
    crowd.finish();
    CHECK(crowd.model.metrics().kv_swapped_out_pages > 0);
    CHECK(crowd.model.metrics().step_rows == 70 + 7 + 60 + 7);
    CHECK(low.told == alone(kind, prompt, swap_options(8)));
    CHECK(high.told == alone(kind, other, swap_options(8)));
  }
}

TEST_CASE("rolling windows and samples go on after a swap") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.architecture, static_cast<int>(kind.kv));
    const std::vector<Token> prompt = TinyRandom(9).tokens(40);
    GenerateOptions rolling = swap_options(150);
    rolling.keep_first = 20;
    auto roomy = swap_model(kind, 64, 0);
    auto its = session_with(roomy, prompt);
    auto expected = its.generate_n(2, swap_options(20)).value();
    while (roomy.step(1h).value()) {
    }

    Crowd crowd(swap_model(kind, 10, 40));
    auto& rolls = crowd.add(prompt, rolling);
    auto session = std::make_optional(session_with(crowd.model, prompt));
    for (auto& sample : session->generate_n(2, swap_options(20)).value())
      crowd.members.push_back({std::move(sample.session), {}, std::move(sample.reply)});
    session.reset();
    // Urgent ones come again and again and need eight of the ten pages.
    for (std::uint64_t i = 0; i < 30; ++i) {
      for (std::uint64_t n = 0; n < 5 + i; ++n) crowd.step();
      auto& urgent = crowd.add(TinyRandom(i).tokens(100), swap_options(20, 1));
      while (urgent.reply) crowd.step();
    }
    crowd.finish();
    CHECK(crowd.model.metrics().kv_swapped_out_pages > 30);
    CHECK(crowd.model.metrics().kv_swapped_pages == 0);
    CHECK(rolls.told.reason == FinishReason::max_tokens);
    CHECK(rolls.told == alone(kind, prompt, rolling));
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(crowd.members[1 + i].told.tokens == expected[i].reply.tokens());
  }
}

TEST_CASE("rows of logits that were asked for stay when their request is preempted") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.architecture, static_cast<int>(kind.kv));
    const std::vector<Token> prompt = TinyRandom(15).tokens(70);
    auto roomy = swap_model(kind, 64, 0);
    auto its = session_with(roomy, prompt);
    const std::vector<float> rows = last_logits(its, roomy, 70);

    // A callback of a first reply begins an urgent one while some of the rows have been run; that
    // one's handles go when it ends.
    struct Host {
      std::optional<decant::Session> session;
      std::optional<decant::Reply> reply = {};
      static bool begin(void* self, std::span<const Token>, std::span<float>) {
        Host& host = *static_cast<Host*>(self);
        GenerateOptions options = swap_options(3, 1);
        options.on_text = end;
        options.on_text_user = self;
        host.reply = host.session->generate(options).value();
        return true;
      }
      static bool end(void* self, const decant::ReplyText& piece) {
        Host& host = *static_cast<Host*>(self);
        if (piece.finished) host.reply.reset(), host.session.reset();
        return true;
      }
    };
    auto model = swap_model(kind, 7, 14);
    Host urgent{session_with(model, TinyRandom(16).tokens(70))};
    auto first = session_with(model, TinyRandom(17).tokens(1));
    GenerateOptions options = swap_options(1);
    options.process_logits = Host::begin;
    options.process_logits_user = &urgent;
    auto begun = first.generate(options).value();
    auto session = session_with(model, prompt);
    CHECK(same_bits(last_logits(session, model, 70), rows));
    CHECK_FALSE(urgent.session);
    CHECK(model.metrics().preemptions > 0);
    CHECK(model.metrics().kv_swapped_out_pages > 0);
    CHECK(model.metrics().kv_swapped_pages == 0);
  }
}

TEST_CASE("guaranteed requests take the place of others, which come back") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.architecture, static_cast<int>(kind.kv));
    Crowd crowd(swap_model(kind, 6, 12));
    const std::vector<Token> prompt = TinyRandom(11).tokens(40);
    auto& low = crowd.add(prompt, swap_options(30));
    while (low.reply->tokens().size() < 3) crowd.step();
    GenerateOptions sure = swap_options(30, 1);
    sure.admission = decant::Admission::guaranteed;
    const std::vector<Token> other = TinyRandom(12).tokens(40);
    auto& high = crowd.add(other, sure);
    while (high.reply) {
      crowd.step();
      if (high.reply) CHECK(crowd.in_swap() > 0);
    }
    crowd.finish();
    CHECK(crowd.model.metrics().step_rows == 2 * (40 + 29));
    CHECK(low.told == alone(kind, prompt, swap_options(30)));
    CHECK(high.told == alone(kind, other, sure));
  }
}

namespace {

/// A reply in the swap space, beside one of high priority that runs.
struct Swapped {
  Crowd crowd;
  std::vector<Token> prompt = TinyRandom(13).tokens(40);
  Crowd::Member *low, *high;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  explicit Swapped(const Kind& kind, std::chrono::nanoseconds timeout = 0ns)
      : crowd(swap_model(kind, 5, 5)) {
    GenerateOptions options = swap_options(30);
    options.timeout = timeout;
    low = &crowd.add(prompt, options);
    while (low->reply->tokens().size() < 3) crowd.step();
    high = &crowd.add(TinyRandom(14).tokens(40), swap_options(20, 1));
    while (crowd.in_swap() == 0) crowd.step();
    REQUIRE(low->reply);
  }
};

}  // namespace

TEST_CASE("however a reply ends in the swap space, its places are free and it can go on") {
  for (const Kind& kind : kKinds)
    for (const int way : {0, 1, 2, 3}) {
      CAPTURE(kind.architecture, static_cast<int>(kind.kv), way);
      Swapped swapped(kind, way == 2 ? 400ms : 0ns);
      Crowd& crowd = swapped.crowd;
      const std::vector<Token> begun = swapped.low->reply->tokens();
      if (way == 0) swapped.low->reply->cancel();
      if (way == 1) swapped.low->reply->stop();
      if (way == 2) std::this_thread::sleep_until(swapped.start + 400ms);
      if (way == 3) swapped.low->reply.reset();
      crowd.model.step(0ns).value();
      CHECK(crowd.in_swap() == 0);
      const bool keeps = way == 1 || way == 2;
      CHECK(swapped.low->session.tokens().size() == 40 + (keeps ? begun.size() : 0));
      if (swapped.low->reply)
        CHECK(swapped.low->reply->finish_reason() == (way == 0   ? FinishReason::cancelled
                                                      : way == 1 ? FinishReason::stopped
                                                                 : FinishReason::timeout));
      swapped.low->reply.reset();
      crowd.finish();
      CHECK(swapped.high->told == alone(kind, TinyRandom(14).tokens(40), swap_options(20)));
      CHECK(crowd.model.metrics().kv_swapped_pages == 0);
      const Told whole = alone(kind, swapped.prompt, swap_options(30));
      auto rest = swapped.low->session.generate(swap_options(30 - (keeps ? begun.size() : 0)));
      rest->wait().value();
      std::vector<Token> tokens = keeps ? begun : std::vector<Token>();
      for (const Token t : rest->tokens()) tokens.push_back(t);
      CHECK(tokens == whole.tokens);
    }
}

TEST_CASE("a model goes while replies are in its swap space") {
  for (const Kind& kind : kKinds)
    for (const bool model_first : {true, false}) {
      Swapped swapped(kind);
      auto session = std::move(swapped.low->session);
      auto reply = std::move(*swapped.low->reply);
      if (!model_first) reply.cancel();
      swapped.high->reply.reset();
      swapped.high->session.rewind(0).value();
      { const decant::Model gone = std::move(swapped.crowd.model); }
      if (model_first) {
        reply.wait().value();
        CHECK(reply.finish_reason() == FinishReason::max_tokens);
        CHECK(reply.tokens() == alone(kind, swapped.prompt, swap_options(30)).tokens);
      }
    }
}

TEST_CASE("what cannot come back because idle sessions hold the pages is run again or ends") {
  for (const Kind& kind : kKinds)
    for (const bool goes : {true, false}) {
      CAPTURE(kind.architecture, static_cast<int>(kind.kv), goes);
      Swapped swapped(kind);
      Crowd& crowd = swapped.crowd;
      // Its session keeps its pages.
      while (!swapped.high->reply->finished()) {
        CHECK(crowd.in_swap() > 0);
        crowd.model.step(20us).value();
      }
      if (goes) swapped.high->session.rewind(0).value();
      while (crowd.model.step(20us).value()) {
      }
      CHECK(crowd.in_swap() == 0);
      if (goes) {
        CHECK(crowd.model.metrics().step_rows == 40 + 29 + 40 + 19);
        CHECK(swapped.low->reply->status());
      } else {
        CHECK(swapped.low->reply->status().error().code() == ErrorCode::out_of_memory);
        CHECK(copy(swapped.low->session.tokens()) == swapped.prompt);
        swapped.high->session.rewind(0).value();
        auto again = swapped.low->session.generate(swap_options(30)).value();
        again.wait().value();
        CHECK(again.tokens() == alone(kind, swapped.prompt, swap_options(30)).tokens);
      }
    }
}

TEST_CASE("replies that end at random stages leave nothing in the swap space") {
  const std::uint64_t seed = 31;
  CAPTURE(seed);
  TinyRandom random(seed);
  std::size_t n_while_swapped = 0;
  for (int round = 0; round < 120; ++round) {
    CAPTURE(round);
    auto model = swap_model(kKinds[round % 4], 8, 4 + random.below(8), random.below(2) == 0);
    struct Running {
      decant::Session session;
      std::optional<decant::Reply> reply;
    };
    std::deque<Running> all;
    // Passes, and at last a part of one.
    const auto go_on = [&](std::uint64_t n) {
      const std::uint64_t until = model.metrics().steps + n;
      while (model.metrics().steps < until && model.step(0ns).value()) {
      }
      for (std::uint64_t i = random.below(5); i-- > 0;) model.step(0ns).value();
    };
    for (std::size_t i = 0; i < 6; ++i) {
      GenerateOptions options = swap_options(40, static_cast<int>(random.below(3)));
      if (random.below(6) == 0) options.timeout = std::chrono::microseconds(random.below(3000));
      if (random.below(4) == 0) options.admission = decant::Admission::guaranteed;
      auto session = session_with(model, TinyRandom(i % 3).tokens(10 + random.below(40)));
      if (random.below(4) == 0) {
        for (auto& sample : session.generate_n(2, options).value())
          all.push_back({std::move(sample.session), std::move(sample.reply)});
      } else {
        auto reply = session.generate(options).value();
        all.push_back({std::move(session), std::move(reply)});
      }
      go_on(random.below(12));
    }
    while (!all.empty()) {
      const auto at = all.begin() + static_cast<std::ptrdiff_t>(random.below(all.size()));
      n_while_swapped += model.metrics().kv_swapped_pages != 0;
      switch (random.below(4)) {
        case 0: at->reply->cancel(); break;
        case 1: at->reply->stop(); break;
        case 2: at->reply.reset(); break;
        default: break;
      }
      if (at->reply && random.below(2) == 0) go_on(random.below(8));
      all.erase(at);
    }
    if (round % 5 == 4) continue;  // the model goes with what is left
    while (model.step(1ms).value()) {
    }
    CHECK(model.metrics().kv_swapped_pages == 0);
    CHECK(model.metrics().kv_pages_used == 0);
  }
  CHECK(n_while_swapped > 100);
}
