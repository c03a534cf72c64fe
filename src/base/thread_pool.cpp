#include "base/thread_pool.hpp"

#include <exception>

#include "base/float_mode.hpp"

namespace decant::detail {

static constexpr std::uint64_t kPoolItems = 0xFFFFFFFFu;
static constexpr int kPoolSpins = 2000;

static void pool_pause() noexcept {
#if defined(__SSE2__) || defined(_M_X64)
  _mm_pause();
#endif
}

ThreadPool::ThreadPool(int n_workers) : n_workers_(n_workers) {
  threads_.reserve(static_cast<std::size_t>(n_workers));
  try {
    for (int worker = 1; worker < n_workers; ++worker)
      threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::exception&) {
    // The caller does what the missing threads would have done.
  }
}

ThreadPool::~ThreadPool() {
  quit_ = true;
  ++wake_;
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::run_item(int worker) noexcept {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if ((ticket & kPoolItems) == 0) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  // The call cannot end before this item does, so its fields stay as they are.
  fn_(context_, n_items_ - static_cast<std::size_t>(ticket & kPoolItems), worker);
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void ThreadPool::run(std::size_t n_items, ItemFunction fn, void* context) noexcept {
  if (n_items == 0) return;
  const FloatMode mode;
  fn_ = fn;
  context_ = context;
  n_items_ = n_items;
  unfinished_.store(n_items, std::memory_order_relaxed);
  const std::uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(generation << 32 | n_items, std::memory_order_seq_cst);
  if (n_items > 1 && sleepers_.load(std::memory_order_seq_cst) > 0) {
    ++wake_;
    wake_.notify_all();
  }
  while (run_item(0)) {
  }
  // What is left is inside an item on another thread.
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kPoolSpins)
      pool_pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::work(int worker) noexcept {
  const FloatMode mode;
  int spins = 0;
  while (!quit_.load(std::memory_order_relaxed)) {
    if (run_item(worker)) {
      spins = 0;
    } else if (++spins < kPoolSpins) {
      pool_pause();
    } else {
      const std::uint32_t seen = wake_.load(std::memory_order_seq_cst);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      // Looked at after announcing the sleep: either the caller sees a sleeper or we see its items.
      if ((ticket_.load(std::memory_order_seq_cst) & kPoolItems) == 0 && !quit_) wake_.wait(seen);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      spins = 0;
    }
  }
}

}  // namespace decant::detail
