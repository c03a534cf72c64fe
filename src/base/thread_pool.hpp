// Runs the items of one operation after another on a few threads. Items are counted, threads are
// not: a call ends when all items are finished, and the calling thread alone can finish them, so a
// thread that the system does not run holds nobody up unless it is inside an item. Threads that
// find no work spin for some microseconds, then sleep until the next call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace decant::detail {

class ThreadPool {
 public:
  /// `n_workers` counts the calling thread. Starts n_workers - 1 threads; fewer if the system gives
  /// no more.
  explicit ThreadPool(int n_workers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_workers() const { return n_workers_; }

  /// Calls fn(context, item, worker) for each item in [0, n_items), n_items < 2^32, and returns
  /// when all have returned. Worker 0 is the caller. One call at a time.
  using ItemFunction = void (*)(void* context, std::size_t item, int worker) noexcept;
  void run(std::size_t n_items, ItemFunction fn, void* context) noexcept;

 private:
  bool run_item(int worker) noexcept;
  void work(int worker) noexcept;

  int n_workers_;
  // Generation of the call above, items not yet taken below. An item is taken by lowering it, which
  // fails for a thread that looks at an older call.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::size_t> unfinished_{0};
  ItemFunction fn_ = nullptr;  // read only by those who took an item of the call
  void* context_ = nullptr;
  std::size_t n_items_ = 0;
  std::atomic<std::uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> quit_{false};
  std::vector<std::thread> threads_;
};

}  // namespace decant::detail
