// Runs stages of items on a few threads. A call is one parallel region: whoever finishes the last
// item of a stage starts the next one. Items are counted, threads are not: a stage ends when its
// items are finished, and the calling thread alone can finish all of them, so a thread that the
// system does not run holds nobody up unless it is inside an item. A worker starts with items of
// its own share of a stage, the same share of each: what it wrote in one stage is in its core's
// caches in the next. Threads that find no work spin for some microseconds, then sleep.
//
// A call may have a deadline: then each thread looks at the clock before it takes an item, and one
// that would not end in time is not begun. The call returns when those in work are finished, nobody
// is left inside, and the next call goes on with the items that are left.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <decant/decant.hpp>

namespace decant::detail {

class ThreadPool {
 public:
  /// `n_workers` counts the calling thread. Starts n_workers - 1 threads; fewer if the system gives
  /// no more.
  explicit ThreadPool(int n_workers);
  /// Starts none: the items run on the host's threads, at most executor.concurrency() at a time.
  explicit ThreadPool(Executor& executor);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_workers() const { return n_workers_; }

  using Clock = std::chrono::steady_clock;
  class Stages {
   public:
    /// The number of items of the next stage, < 2^32; 0 when there is none. Called when all items
    /// before it are finished, by one thread at a time.
    virtual std::size_t next() noexcept = 0;
    /// Different items of a stage run at the same time, each worker number on one thread at a time.
    virtual void run(std::size_t item, int worker) noexcept = 0;
    /// What an item may take, from calls with a deadline.
    Clock::duration item_time() const { return item_time_; }

   protected:
    ~Stages() = default;

   private:
    friend ThreadPool;
    Clock::duration item_time_{std::chrono::microseconds(5)};
  };
  static constexpr Clock::time_point kNoDeadline = Clock::time_point::max();
  /// Runs all stages and returns true; or false when the deadline came near: then the next call
  /// must be for the same stages and goes on with them, or `drop` must be called first. A call runs
  /// an item even if the deadline has passed. One call at a time. Without an executor worker 0 is
  /// the caller.
  bool run(Stages& stages, Clock::time_point deadline = kNoDeadline) noexcept;
  /// Forgets the stages that a call has left unfinished.
  void drop() noexcept { left_ = 0; }
  /// About the longest of the last ones, after one more. It at most doubles, so that one during
  /// which the system ran something else does not count for much.
  static Clock::duration about_longest(Clock::duration before, Clock::duration passed) {
    const Clock::duration most = 2 * before + std::chrono::microseconds(1);
    return passed > before ? (passed < most ? passed : most) : before - (before - passed) / 32;
  }

  /// Calls fn(context, item, worker) for each item in [0, n_items): a single stage.
  using ItemFunction = void (*)(void* context, std::size_t item, int worker) noexcept;
  void run(std::size_t n_items, ItemFunction fn, void* context) noexcept;

 private:
  static constexpr std::uint64_t kItems = 0xFFFFFFFFu;  // of ticket_
  void work(int worker) noexcept;
  void help(int worker) noexcept;
  bool run_item(int worker) noexcept;
  std::size_t choose_item(int worker) noexcept;
  void start_stage() noexcept;
  void open_stage(std::size_t n_items) noexcept;
  void finish_items(std::size_t n) noexcept;
  template <class Ready>
  void wait_until(Ready ready) noexcept;
  bool has_items() const { return (ticket_.load(std::memory_order_seq_cst) & kItems) != 0; }

  int n_workers_;
  Executor* executor_ = nullptr;
  std::atomic<int> n_joined_{0};  // threads of the executor in this call

  /// Items [begin, begin + size) of the stage.
  struct alignas(64) Share {
    std::size_t begin = 0, size = 0;
    std::atomic<std::size_t> taken{0};  // may pass size
  };
  std::vector<Share> shares_;  // [n_workers]

  // Number of the stage above, items of it not yet taken below. Lowering it is the right to an
  // item; it fails for a thread that looks at an older stage.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::size_t> unfinished_{0};
  std::atomic<bool> done_{true};
  Stages* stages_ = nullptr;  // with shares_: read only by those who have a right to an item
  std::size_t left_ = 0;      // items of a stage that was left unfinished

  // For calls with a deadline.
  std::atomic<bool> begun_{false};  // an item of this call
  std::atomic<Clock::duration> deadline_{kNoDeadline.time_since_epoch()};
  std::atomic<Clock::duration> item_time_{};  // that an item may take

  std::atomic<int> sleepers_{0};
  std::mutex mutex_;  // of those who sleep
  std::condition_variable wake_;
  std::atomic<bool> quit_{false};
  std::vector<std::thread> threads_;
};

}  // namespace decant::detail
