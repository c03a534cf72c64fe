#include "base/thread_pool.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/float_mode.hpp"

namespace decant::detail {

static constexpr int kPoolSpins = 1000;

static void pool_pause() noexcept {
#if defined(__SSE2__) || defined(_M_X64)
  _mm_pause();
#endif
}

ThreadPool::ThreadPool(int n_workers)
    : n_workers_(n_workers), shares_(static_cast<std::size_t>(n_workers)) {
  threads_.reserve(static_cast<std::size_t>(n_workers));
  try {
    for (int worker = 1; worker < n_workers; ++worker)
      threads_.emplace_back([this, worker] { work(worker); });
  } catch (const std::exception&) {
    // The caller does what the missing threads would have done.
  }
}

ThreadPool::ThreadPool(Executor& executor)
    : n_workers_(std::clamp(executor.concurrency(), 1, 64)),
      executor_(&executor),
      shares_(static_cast<std::size_t>(n_workers_)) {}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

/// Looks a while, then sleeps until something changes. To be called again until `ready`.
template <class Ready>
void ThreadPool::wait_until(Ready ready) noexcept {
  for (int spins = 0; spins < kPoolSpins; ++spins) {
    if (ready()) return;
    pool_pause();
  }
  // `ready` is looked at after announcing the sleep: either the one who starts a stage sees a
  // sleeper, or the sleeper sees the stage.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, ready);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::start_stage() noexcept {
  const std::size_t n_items = stages_->next();
  for (std::size_t i = 0, begin = 0; i < shares_.size(); ++i) {
    const std::size_t end = n_items * (i + 1) / shares_.size();
    shares_[i].begin = begin;
    shares_[i].size = end - begin;
    shares_[i].taken.store(0, std::memory_order_relaxed);
    begin = end;
  }
  open_stage(n_items);
}

/// Offers `n_items` of the stage, all or those that were left; none: the call is over.
void ThreadPool::open_stage(std::size_t n_items) noexcept {
  unfinished_.store(n_items, std::memory_order_relaxed);
  const std::uint64_t stage = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(stage << 32 | n_items, std::memory_order_seq_cst);
  // From here on the call may be over, and another one begun.
  if (n_items == 0) done_.store(true, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0 || n_items == 1) return;
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
}

/// Of the worker's share, or else of another's. Who has the right to an item finds one: shares do
/// not grow, and not all are empty.
std::size_t ThreadPool::choose_item(int worker) noexcept {
  for (std::size_t i = static_cast<std::size_t>(worker);; ++i) {
    Share& share = shares_[i % shares_.size()];
    if (share.taken.load(std::memory_order_relaxed) >= share.size) continue;
    const std::size_t at = share.taken.fetch_add(1, std::memory_order_relaxed);
    if (at < share.size) return share.begin + at;
  }
}

void ThreadPool::finish_items(std::size_t n) noexcept {
  if (unfinished_.fetch_sub(n, std::memory_order_acq_rel) != n) return;
  if (left_ == 0) return start_stage();
  done_.store(true, std::memory_order_seq_cst);
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
}

bool ThreadPool::run_item(int worker) noexcept {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  bool timed, late;
  Clock::time_point begin;
  do {
    if ((ticket & kItems) == 0) return false;
    const Clock::time_point deadline(deadline_.load(std::memory_order_relaxed));
    timed = deadline != kNoDeadline;
    if (timed) begin = Clock::now();
    late = timed && begun_.load(std::memory_order_relaxed) &&
           begin + item_time_.load(std::memory_order_relaxed) > deadline;
    // Who is late takes all that is left, so that nobody begins it.
  } while (!ticket_.compare_exchange_weak(ticket, late ? ticket & ~kItems : ticket - 1,
                                          std::memory_order_acq_rel, std::memory_order_acquire));
  if (late) {
    left_ = static_cast<std::size_t>(ticket & kItems);
    finish_items(left_);
    return true;
  }
  // The stage cannot end before this item does, so its shares stay as they are.
  if (timed) begun_.store(true, std::memory_order_relaxed);
  stages_->run(choose_item(worker), worker);
  if (timed)
    item_time_.store(
        about_longest(item_time_.load(std::memory_order_relaxed), Clock::now() - begin),
        std::memory_order_relaxed);
  finish_items(1);
  return true;
}

/// Takes items until the call is over.
void ThreadPool::help(int worker) noexcept {
  while (!done_.load(std::memory_order_acquire))
    if (!run_item(worker))
      wait_until([this] { return has_items() || done_.load(std::memory_order_seq_cst); });
}

bool ThreadPool::run(Stages& stages, Clock::time_point deadline) noexcept {
  const FloatMode mode;
  stages_ = &stages;
  item_time_.store(stages.item_time_, std::memory_order_relaxed);
  done_.store(false, std::memory_order_relaxed);
  begun_.store(false, std::memory_order_relaxed);
  deadline_.store(deadline.time_since_epoch(), std::memory_order_relaxed);
  if (left_ == 0)
    start_stage();
  else
    open_stage(std::exchange(left_, 0));
  if (executor_ != nullptr) {
    n_joined_.store(0, std::memory_order_relaxed);
    try {
      executor_->run(
          n_workers_,
          [](void* self) noexcept {
            auto& pool = *static_cast<ThreadPool*>(self);
            const int worker = pool.n_joined_.fetch_add(1, std::memory_order_relaxed);
            const FloatMode mode;
            if (worker < pool.n_workers_) pool.help(worker);
          },
          this);
    } catch (...) {
      // The caller does what is left.
    }
  }
  help(0);
  stages.item_time_ = item_time_.load(std::memory_order_relaxed);
  return left_ == 0;
}

void ThreadPool::run(std::size_t n_items, ItemFunction fn, void* context) noexcept {
  struct OneStage final : Stages {
    std::size_t left;
    ItemFunction fn;
    void* context;
    OneStage(std::size_t n, ItemFunction f, void* c) : left(n), fn(f), context(c) {}
    std::size_t next() noexcept override { return std::exchange(left, 0); }
    void run(std::size_t item, int worker) noexcept override { fn(context, item, worker); }
  };
  OneStage stage(n_items, fn, context);
  run(stage);
}

void ThreadPool::work(int worker) noexcept {
  const FloatMode mode;
  while (!quit_.load(std::memory_order_relaxed))
    if (!run_item(worker)) wait_until([this] { return has_items() || quit_.load(); });
}

}  // namespace decant::detail
