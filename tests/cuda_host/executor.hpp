// Runs CUDA kernels on the processor: the threads of a block are fibers of the calling thread, each
// runs until it has to wait for others, and blocks go one after another. What a real GPU may do in
// any order, threads and blocks, is done here in an order that the test chooses: a result that
// changes with it lacks a barrier, or writes what another block writes.
//
// Stricter than a GPU: every thread of a block must come to a barrier and every lane to a warp
// operation, and to the same one; shared memory begins as NaNs between guard zones; the target of
// an asynchronous copy is NaNs from its start until the wait for it. What goes wrong ends the
// launch, and every later one, with a text.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace decant::detail::cuda_host {

class Executor {
 public:
  enum class Order : std::uint8_t { ascending, descending, random };

  explicit Executor(Order order = Order::ascending, std::uint64_t seed = 1);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Calls body(context) for each thread of each block. `threads` is a multiple of 32, at most
  /// 1024. One call at a time.
  void run(std::array<unsigned, 3> grid, int threads, std::size_t shared_bytes,
           void (*body)(const void* context), const void* context);
  /// Empty: all went well so far.
  const std::string& error() const { return error_; }
  void clear_error() { error_.clear(); }
  /// As a GPU that breaks: the launches after the next n fail.
  void fail_after(int n) { launches_left_ = n; }
  /// Every thread must say that it waited for the kernel before its own, as one must on a GPU that
  /// overlaps kernels.
  void demand_wait() { demands_wait_ = true; }

  // For the kernel's thread that runs now; see cuda/device.cuh.
  std::array<unsigned, 3> grid{}, block{};
  std::byte* shared() { return shared_.get() + kGuard; }
  void sync_block();
  /// Waits for all lanes of the warp; the last one calls work(operands of all lanes).
  using Work = void (*)(void* const* operands);
  void meet(const char* name, void* operands, Work work);
  void copy_async(void* shared, const void* global, bool wanted);
  void copy_commit();
  void copy_wait(int pending);
  void note_wait() { ++n_waited_; }
  /// Ends the launch unless a global address can be loaded from or stored to `bytes` at a time.
  void check_aligned(const void* address, std::size_t bytes);
  int thread() const { return current_; }

 private:
  struct Fiber;
  struct Copy {
    void* to;
    const void* from;  // null: zeros
  };
  struct Warp {
    Work work = nullptr;
    int n_waiting = 0;
    void* operands[32] = {};
  };
  static constexpr std::size_t kGuard = 256;
  static constexpr int kMaxThreads = 1024;

  void run_block();
  void check_guards();
  [[gnu::noinline]] void prepare(Fiber& fiber);
  [[noreturn]] void fail(const char* text, const char* more = "");
  void wait_for_others();
  int choose();
  void set_runnable(int thread) { runnable_[thread / 64] |= std::uint64_t{1} << (thread % 64); }
  void switch_to(int thread);
  static void jump(Fiber& fiber);
  static void fiber_main(unsigned low, unsigned high);

  const Order order_;
  std::uint64_t random_;
  std::string error_;
  int launches_left_ = -1;                      // -1: as many as there are
  std::vector<std::unique_ptr<Fiber>> fibers_;  // [threads], and at the end the caller itself
  std::unique_ptr<Fiber> caller_;
  std::uint64_t runnable_[kMaxThreads / 64] = {};
  bool demands_wait_ = false;
  int n_waited_ = 0;
  int threads_ = 0, current_ = -1, n_ended_ = 0, n_at_barrier_ = 0;
  Warp warps_[kMaxThreads / 32];
  std::unique_ptr<std::byte[]> shared_;
  std::size_t shared_bytes_ = 0, shared_room_ = 0;
  void (*body_)(const void*) = nullptr;
  const void* context_ = nullptr;
};

/// Bytes that the tests' devices have copied to the host, all together.
inline std::atomic<std::uint64_t> n_copied_out{0};

/// The kernel's thread that runs now on this thread of the processor.
struct Here {
  Executor* executor;
  int thread;
};
Here here();

}  // namespace decant::detail::cuda_host
