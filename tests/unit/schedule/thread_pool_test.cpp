// The thread pool: every item runs once, whatever the number of workers; idle threads sleep.
#include "base/thread_pool.hpp"

#include <time.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/host_mode.hpp"
#include "support/threads.hpp"

using decant::detail::ThreadPool;

namespace {

struct Counted {
  std::vector<std::atomic<int>> runs;
  std::atomic<int> bad_worker{0};
  int n_workers;
  Counted(std::size_t n, int workers) : runs(n), n_workers(workers) {}
  static void item(void* self, std::size_t i, int worker) noexcept {
    auto& c = *static_cast<Counted*>(self);
    ++c.runs[i];
    if (worker < 0 || worker >= c.n_workers) ++c.bad_worker;
  }
};

#if defined(__linux__)
using decant_test::n_threads;
using decant_test::threads_settle_at;

double process_cpu_seconds() {
  timespec t = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
#endif

}  // namespace

TEST_CASE("every item runs exactly once") {
  for (int workers = 1; workers <= 8; ++workers) {
    ThreadPool pool(workers);
    CHECK(pool.n_workers() == workers);
    for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 64u, 1000u}) {
      CAPTURE(workers, n);
      Counted counted(n, workers);
      pool.run(n, Counted::item, &counted);
      int wrong = 0;
      for (const auto& runs : counted.runs) wrong += runs != 1;
      CHECK(wrong == 0);
      CHECK(counted.bad_worker == 0);
    }
  }
}

TEST_CASE("a hundred thousand tiny calls: each ends with all of its items done") {
  for (const int workers : {2, 3, 8}) {
    ThreadPool pool(workers);
    struct Sum {
      std::atomic<std::uint64_t> value{0};
      std::uint64_t call = 0;
    } sum;
    std::uint64_t expected = 0;
    bool equal = true;
    for (std::uint64_t call = 1; call <= 35000; ++call) {
      const std::size_t n = call % 5;
      sum.call = call;
      pool.run(
          n,
          [](void* s, std::size_t item, int) noexcept {
            auto& sum = *static_cast<Sum*>(s);
            sum.value += sum.call * (item + 1);
          },
          &sum);
      expected += call * (n * (n + 1) / 2);
      equal = equal && sum.value == expected;
    }
    CAPTURE(workers);
    CHECK(equal);
  }
}

TEST_CASE("workers compute in the library's floating-point mode and leave the host's alone") {
  if (!decant_test::HostMode::kAvailable) DECANT_SKIP("no floating-point modes here");
  bool untouched = false;
  std::atomic<int> wrong{0};
  {
    const decant_test::HostMode mode(decant_test::HostMode::both);
    ThreadPool pool(3);
    for (int call = 0; call < 100; ++call)
      pool.run(
          16,
          [](void* w, std::size_t, int) noexcept {
            const auto mode = decant::detail::float_mode_get() & ~decant::detail::kFloatModeFlags;
            if (mode != decant::detail::kFloatModeIeee) ++*static_cast<std::atomic<int>*>(w);
          },
          &wrong);
    untouched = mode.untouched();
  }
  CHECK(wrong == 0);
  CHECK(untouched);
}

#if defined(__linux__)
TEST_CASE("an idle pool takes no processor time and a destroyed one leaves no thread") {
  const std::size_t before = n_threads();
  {
    ThreadPool pool(4);
    CHECK(n_threads() == before + 3);
    Counted counted(1000, 4);
    pool.run(1000, Counted::item, &counted);
    // Workers spin for microseconds and then sleep. A spinning pool would take three times the
    // time that passes.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const double cpu = process_cpu_seconds();
    const auto clock = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - clock;
    CHECK(process_cpu_seconds() - cpu < 0.05 * passed.count());
  }
  CHECK(threads_settle_at(before));
}
#endif

static constexpr std::size_t kStages = 500;

TEST_CASE("stages: the items of one are finished before the next is asked for") {
  struct Counting final : ThreadPool::Stages {
    std::atomic<std::size_t> done{0};
    std::size_t stage = 0, expected = 0, early = 0;
    std::size_t next() noexcept override {
      early += done != expected;
      if (stage == kStages) return 0;
      const std::size_t n = 1 + stage++ % 7;
      expected += n;
      return n;
    }
    void run(std::size_t, int) noexcept override { ++done; }
  };
  for (const int workers : {1, 2, 3, 8}) {
    ThreadPool pool(workers);
    for (int call = 0; call < 20; ++call) {
      Counting stages;
      pool.run(stages);
      CHECK(stages.early == 0);
      CHECK(stages.done == stages.expected);
      CHECK(stages.stage == kStages);
    }
  }
}

namespace {

/// A host that calls the function once, n times in turn, at the same time, or throws.
struct HostExecutor final : decant::Executor {
  enum Way { never, once, in_turn, at_once, too_often, throws } way = once;
  int concurrency() const noexcept override { return 3; }
  void run(int n, void (*fn)(void*) noexcept, void* context) override {
    if (way == throws) throw 1;
    if (way == once) fn(context);
    if (way == in_turn || way == too_often)
      for (int i = 0; i < (way == in_turn ? n : 10); ++i) fn(context);
    if (way != at_once) return;
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i) threads.emplace_back(fn, context);
    for (std::thread& t : threads) t.join();
  }
};

}  // namespace

TEST_CASE("an executor owes no concurrency") {
  HostExecutor executor;
  ThreadPool pool(executor);
  CHECK(pool.n_workers() == 3);
  for (const auto way : {HostExecutor::never, HostExecutor::once, HostExecutor::in_turn,
                         HostExecutor::at_once, HostExecutor::too_often, HostExecutor::throws}) {
    executor.way = way;
    for (const std::size_t n : {0u, 1u, 100u}) {
      CAPTURE(static_cast<int>(way), n);
      Counted counted(n, 3);
      pool.run(n, Counted::item, &counted);
      int wrong = 0;
      for (const auto& runs : counted.runs) wrong += runs != 1;
      CHECK(wrong == 0);
      CHECK(counted.bad_worker == 0);
    }
  }
}

TEST_CASE("a call with a deadline may stop between items, and the next one goes on there") {
  // Three stages of 40 items that note their order.
  struct Noting final : ThreadPool::Stages {
    std::vector<std::atomic<int>> runs = std::vector<std::atomic<int>>(120);
    std::atomic<int> inside{0}, early{0};
    std::atomic<std::size_t> done{0};
    std::size_t stage = 0;
    std::size_t next() noexcept override {
      early += done != stage * 40;
      return stage == 3 ? 0 : (++stage, 40);
    }
    void run(std::size_t item, int) noexcept override {
      ++inside;
      ++runs[(stage - 1) * 40 + item];
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      ++done;
      --inside;
    }
  };
  HostExecutor executor;
  executor.way = HostExecutor::at_once;
  for (const int workers : {1, 2, 3, 0}) {
    const auto pool = workers == 0 ? std::make_unique<ThreadPool>(executor)
                                   : std::make_unique<ThreadPool>(workers);
    Noting noting;
    int calls = 1, left_inside = 0;
    // A deadline that has passed: each call does the little that it must.
    while (!pool->run(noting, ThreadPool::Clock::now())) {
      ++calls;
      left_inside += noting.inside;
    }
    CAPTURE(workers);
    CHECK(calls > 3);
    CHECK(left_inside == 0);
    CHECK(noting.early == 0);
    int wrong = 0;
    for (const auto& runs : noting.runs) wrong += runs != 1;
    CHECK(wrong == 0);

    // What was left unfinished can be dropped; the next call begins with its own stages.
    Noting dropped, after;
    REQUIRE_FALSE(pool->run(dropped, ThreadPool::Clock::now()));
    pool->drop();
    CHECK(pool->run(after));
    CHECK(after.done == 120);
    CHECK(dropped.done < 120);
  }
}
