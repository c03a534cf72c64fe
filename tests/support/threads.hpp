// The threads of this process.
#pragma once

#if defined(__linux__)
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <thread>

namespace decant_test {

inline std::size_t n_threads() {
  // A sanitizer's own thread comes with the first one of the program. A thread stays in the list
  // for a moment after join.
  static const bool begun = [] {
    std::thread([] {}).join();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return true;
  }();
  (void)begun;
  std::size_t n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)task;
    ++n;
  }
  return n;
}

/// The same number as before, at the latest after a while: threads stay in the list for a moment
/// after join, and a worker whose last handle went inside a callback ends by itself.
inline bool threads_settle_at(std::size_t wanted) {
  for (int i = 0; i < 2000 && n_threads() != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return n_threads() == wanted;
}

}  // namespace decant_test
#endif
