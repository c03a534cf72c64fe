// The threads of this process.
#pragma once

#if defined(__linux__)
#include <cstddef>
#include <filesystem>
#include <thread>

namespace decant_test {

inline std::size_t n_threads() {
  // A sanitizer's own thread comes with the first one of the program.
  static const bool begun = (std::thread([] {}).join(), true);
  (void)begun;
  std::size_t n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)task;
    ++n;
  }
  return n;
}

}  // namespace decant_test
#endif
