// Eight client threads do everything at once to one model. What comes out is checked; what races is
// for the thread sanitizer to say.
#include <atomic>
#include <optional>
#include <thread>

#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;
using decant::ErrorCode;
using decant::FinishReason;
using decant::GenerateOptions;
using decant::ModelOptions;

TEST_CASE("eight threads generate, stop, cancel, drop, fork, save and sample on one model") {
  const TinyModel tiny = random_model();
  std::vector<std::vector<Token>> prompts, expected;
  const GenerateOptions options = exactly(10, 3);
  {
    auto model = tiny.load();
    for (const std::size_t n : {1u, 16u, 23u, 40u}) {
      prompts.push_back(TinyRandom(n).tokens(n));
      auto session = session_with(model, prompts.back());
      auto reply = session.generate(options).value();
      reply.wait().value();
      expected.push_back(reply.tokens());
    }
  }
  for (const auto mode : {decant::RunMode::background, decant::RunMode::manual}) {
    ModelOptions o;
    o.mode = mode;
    o.threads = 2;
    o.context = 64;
    o.sessions = 24;
    o.chunk = 16;
    o.max_batch = 6;
    auto model = tiny.load(o);
    std::atomic<int> wrong{0}, n_ended{0};
    std::atomic<bool> over{false};
    const auto client = [&](std::uint64_t seed) {
      TinyRandom random(seed);
      for (int round = 0; round < 12; ++round) {
        const std::size_t k = random.below(prompts.size());
        auto session = session_with(model, prompts[k]);
        GenerateOptions mine = options;
        mine.priority = static_cast<int>(random.below(2));
        if (random.below(4) == 0) mine.admission = decant::Admission::guaranteed;
        const auto way = random.below(6);
        if (way == 5) {
          auto samples = session.generate_n(3, mine).value();
          samples.pop_back();
          for (auto& sample : samples) wrong += !sample.reply.wait();
          wrong += samples[0].reply.tokens() != expected[k];
          continue;
        }
        auto reply = std::make_optional(session.generate(mine).value());
        std::thread other;
        if (way == 1) other = std::thread([&] { reply->cancel(); });
        if (way == 2) other = std::thread([&] { reply->stop(); });
        if (way == 3) {
          reply.reset();
          wrong += !session.append("x");
        } else if (way == 4) {
          while (reply->next()) (void)model.metrics();
        } else {
          wrong += !reply->wait();
        }
        if (other.joinable()) other.join();
        if (reply && reply->finish_reason() == FinishReason::max_tokens) {
          wrong += reply->tokens() != expected[k];
          ++n_ended;
          auto fork = session.fork().value();
          auto restored = model.session().value();
          wrong += !restored.restore(fork.save().value());
          wrong += restored.tokens().size() != session.tokens().size();
        }
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 8; ++i) threads.emplace_back(client, i);
    std::thread stepping([&] {
      while (!over && mode == decant::RunMode::manual) {
        const auto left = model.step(std::chrono::microseconds(50));
        wrong += !left && left.error().code() != ErrorCode::busy;
        std::this_thread::yield();
      }
    });
    for (std::thread& t : threads) t.join();
    over = true;
    stepping.join();
    CHECK(wrong == 0);
    CHECK(n_ended > 20);
    CHECK(model.metrics().running + model.metrics().waiting == 0);
  }
}
