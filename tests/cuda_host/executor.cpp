#include "cuda_host/executor.hpp"

#include <ucontext.h>

#include <bit>

#if defined(__SANITIZE_ADDRESS__)
#define DECANT_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DECANT_FIBER_ASAN 1
#endif
#endif
#ifdef DECANT_FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

// Fibers begin with ucontext, whose switches ask the system for the signal mask. After that they
// jump with GCC's own setjmp, which saves three registers, where there is GCC.
#if defined(__GNUC__) && !defined(__clang__)
#define DECANT_FIBER_JUMPS 1
#endif

namespace decant::detail::cuda_host {

#ifdef DECANT_FIBER_ASAN
static constexpr std::size_t kStackBytes = 256 << 10;
#else
static constexpr std::size_t kStackBytes = 64 << 10;
#endif
static constexpr std::byte kGuardByte{0xA5}, kPoison{0xFF};

static constexpr const char* kStuck =
    "some threads have ended, the others wait at a barrier or for their warp";

static thread_local Executor* running_executor = nullptr;
Here here() { return {running_executor, running_executor->thread()}; }

struct Executor::Fiber {
  ucontext_t context;
  void* place[5];  // __builtin_setjmp
  bool started = false;
  std::unique_ptr<std::byte[]> stack;
  // Of this thread: the copies of each group; the last group is still open.
  std::vector<std::vector<Copy>> groups{1};
#ifdef DECANT_FIBER_ASAN
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  std::size_t size = 0;
#endif
};

Executor::Executor(Order order, std::uint64_t seed)
    : order_(order), random_(seed * 2 + 1), caller_(std::make_unique<Fiber>()) {
  caller_->started = true;
}
Executor::~Executor() = default;

// ----------------------------------------------------------------------------------- switching

/// Not for the address sanitizer, which would ask the system about stacks in front of each jump.
[[gnu::noinline, gnu::no_sanitize_address]] void Executor::jump(Fiber& fiber) {
#ifdef DECANT_FIBER_JUMPS
  if (fiber.started) __builtin_longjmp(fiber.place, 1);
#endif
  fiber.started = true;
  setcontext(&fiber.context);
}

/// -1: the caller of `run`.
[[gnu::noinline]] void Executor::switch_to(int thread) {
  Fiber& from = current_ < 0 ? *caller_ : *fibers_[static_cast<std::size_t>(current_)];
  Fiber& to = thread < 0 ? *caller_ : *fibers_[static_cast<std::size_t>(thread)];
  current_ = thread;
#ifdef DECANT_FIBER_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, thread < 0 ? to.bottom : to.stack.get(),
                                 thread < 0 ? to.size : kStackBytes);
#endif
#ifdef DECANT_FIBER_JUMPS
  if (__builtin_setjmp(from.place) == 0) jump(to);
#else
  to.started = true;
  swapcontext(&from.context, &to.context);
#endif
#ifdef DECANT_FIBER_ASAN
  // `from` is not to be trusted after a jump; this is who runs now.
  Fiber& now = current_ < 0 ? *caller_ : *fibers_[static_cast<std::size_t>(current_)];
  __sanitizer_finish_switch_fiber(now.fake_stack, nullptr, nullptr);
#endif
}

void Executor::fiber_main(unsigned low, unsigned high) {
  auto* const e = std::bit_cast<Executor*>(static_cast<std::uintptr_t>(low) |
                                           static_cast<std::uintptr_t>(high) << 32);
#ifdef DECANT_FIBER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &e->caller_->bottom, &e->caller_->size);
#endif
  while (true) {  // once for each block
    e->body_(e->context_);
    ++e->n_ended_;
    const int next = e->choose();
    if (next < 0 && e->n_ended_ < e->threads_) e->fail(kStuck);
    e->switch_to(next);
  }
}

/// Takes one from those that can go on; -1: there is none.
int Executor::choose() {
  const int words = (threads_ + 63) / 64;
  int found = -1;
  if (order_ == Order::ascending) {
    for (int w = 0; w < words && found < 0; ++w)
      if (runnable_[w] != 0) found = 64 * w + std::countr_zero(runnable_[w]);
  } else if (order_ == Order::descending) {
    for (int w = words - 1; w >= 0 && found < 0; --w)
      if (runnable_[w] != 0) found = 64 * w + 63 - std::countl_zero(runnable_[w]);
  } else {
    // xorshift64 (Marsaglia 2003): the first one that can go on from a random thread upwards.
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const int start = static_cast<int>(random_ % static_cast<std::uint64_t>(threads_));
    for (int i = 0; i <= words && found < 0; ++i) {
      const int w = (start / 64 + i) % words;
      std::uint64_t mask = runnable_[w];
      if (i == 0) mask &= ~std::uint64_t{0} << (start % 64);
      if (mask != 0) found = 64 * w + std::countr_zero(mask);
    }
  }
  if (found >= 0) runnable_[found / 64] &= ~(std::uint64_t{1} << (found % 64));
  return found;
}

void Executor::wait_for_others() {
  const int me = current_, next = choose();
  if (next < 0) fail(kStuck);
  if (next != me) switch_to(next);
}

/// The frame of the kernel is never left: nothing in it may own memory.
void Executor::fail(const char* text, const char* more) {
  error_ = std::string(text) + more + " (block " + std::to_string(block[0]) + ", " +
           std::to_string(block[1]) + ", " + std::to_string(block[2]) + ", thread " +
           std::to_string(current_) + ")";
  switch_to(-1);
  __builtin_unreachable();
}

// -------------------------------------------------------------------------------------- launches

void Executor::run(std::array<unsigned, 3> grid_size, int threads, std::size_t shared_bytes,
                   void (*body)(const void*), const void* context) {
  if (!error_.empty()) return;
  if (launches_left_ == 0) error_ = "this executor was asked to fail";
  if (launches_left_ == 0) return;
  if (launches_left_ > 0) --launches_left_;
  if (threads < 32 || threads > kMaxThreads || threads % 32 != 0 || grid_size[1] > 65535 ||
      grid_size[2] > 65535 || grid_size[0] > INT32_MAX || shared_bytes > 99 * 1024) {
    error_ = "a launch of " + std::to_string(threads) + " threads, " +
             std::to_string(shared_bytes) + " bytes and a grid of " + std::to_string(grid_size[0]) +
             ", " + std::to_string(grid_size[1]) + ", " + std::to_string(grid_size[2]) +
             " is more than every GPU has";
    return;
  }
  grid = grid_size;
  threads_ = threads;
  shared_bytes_ = shared_bytes;
  if (shared_room_ < shared_bytes + 2 * kGuard) {
    shared_room_ = shared_bytes + 2 * kGuard;
    shared_ = std::make_unique<std::byte[]>(shared_room_);  // aligned to 16
  }
  body_ = body;
  context_ = context;
  Executor* const before = running_executor;
  running_executor = this;
  while (fibers_.size() < static_cast<std::size_t>(threads))
    fibers_.push_back(std::make_unique<Fiber>());
  const std::uint64_t n_blocks = std::uint64_t{grid[0]} * grid[1] * grid[2];
  for (std::uint64_t i = 0; i < n_blocks && error_.empty(); ++i) {
    // Steps of a prime that does not divide their number come to each block once.
    std::uint64_t at = i;
    if (order_ == Order::descending) at = n_blocks - 1 - i;
    if (order_ == Order::random && n_blocks % 1000003 != 0) at = (i + 1) * 1000003 % n_blocks;
    block[0] = static_cast<unsigned>(at % grid[0]);
    block[1] = static_cast<unsigned>(at / grid[0] % grid[1]);
    block[2] = static_cast<unsigned>(at / grid[0] / grid[1]);
    run_block();
  }
  if (!error_.empty())
    for (auto& fiber : fibers_) fiber = std::make_unique<Fiber>();
  running_executor = before;
}

void Executor::prepare(Fiber& fiber) {
  fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  const auto self = std::bit_cast<std::uintptr_t>(this);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(&fiber_main), 2,
              static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
}

void Executor::run_block() {
  std::memset(shared_.get(), static_cast<int>(kGuardByte), shared_bytes_ + 2 * kGuard);
  std::memset(shared(), static_cast<int>(kPoison), shared_bytes_);
  n_ended_ = n_at_barrier_ = n_waited_ = 0;
  for (Warp& warp : warps_) warp.n_waiting = 0;
  for (int i = 0; i < threads_; ++i) {
    set_runnable(i);
    Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
    fiber.groups.assign(1, {});
    if (fiber.stack == nullptr) prepare(fiber);
  }
  current_ = -1;
  switch_to(choose());
  if (error_.empty()) check_guards();
  if (error_.empty() && demands_wait_ && n_waited_ < threads_)
    error_ = "a kernel whose threads do not all wait for the one before it";
}

void Executor::check_guards() {
  for (std::size_t i = 0; i < kGuard; ++i)
    if (shared_[i] != kGuardByte || shared_[kGuard + shared_bytes_ + i] != kGuardByte)
      error_ = "a store outside the " + std::to_string(shared_bytes_) +
               " bytes of shared memory (block " + std::to_string(block[0]) + ")";
}

// ------------------------------------------------------------------------- what kernels wait for

void Executor::sync_block() {
  set_runnable(current_);
  if (++n_at_barrier_ < threads_) {
    runnable_[current_ / 64] &= ~(std::uint64_t{1} << (current_ % 64));
  } else {
    n_at_barrier_ = 0;
    for (int i = 0; i < threads_; ++i) set_runnable(i);
  }
  wait_for_others();
}

void Executor::meet(const char* name, void* operands, Work work) {
  const int first = current_ / 32 * 32;
  Warp& warp = warps_[first / 32];
  if (warp.n_waiting != 0 && warp.work != work)
    fail("others of its warp wait in another operation than ", name);
  warp.work = work;
  warp.operands[current_ % 32] = operands;
  if (++warp.n_waiting == 32) {
    warp.n_waiting = 0;
    work(warp.operands);
    for (int i = 0; i < 32; ++i) set_runnable(first + i);
  }
  wait_for_others();
}

void Executor::check_aligned(const void* address, std::size_t bytes) {
  if (std::bit_cast<std::uintptr_t>(address) % bytes != 0)
    fail("an access that is not aligned to its size");
}

void Executor::copy_async(void* to, const void* from, bool wanted) {
  check_aligned(to, 16);
  if (wanted) check_aligned(from, 16);
  const auto offset = static_cast<std::byte*>(to) - shared();
  if (offset < 0 || static_cast<std::size_t>(offset) + 16 > shared_bytes_)
    fail("an asynchronous copy to a place outside shared memory");
  std::memset(to, static_cast<int>(kPoison), 16);
  fibers_[static_cast<std::size_t>(current_)]->groups.back().push_back(
      {to, wanted ? from : nullptr});
}

void Executor::copy_commit() { fibers_[static_cast<std::size_t>(current_)]->groups.emplace_back(); }

void Executor::copy_wait(int pending) {
  auto& groups = fibers_[static_cast<std::size_t>(current_)]->groups;
  const auto n_open = static_cast<std::size_t>(pending) + 1;
  if (groups.size() <= n_open) return;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(n_open);
  for (auto group = groups.begin(); group != end; ++group)
    for (const Copy& copy : *group)
      if (copy.from != nullptr)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
  groups.erase(groups.begin(), end);
}

}  // namespace decant::detail::cuda_host
