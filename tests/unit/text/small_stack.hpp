// What tests of long texts share: a thread with little stack, and processor time.
#pragma once

#include <chrono>
#include <ctime>
#include <functional>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "support/catch.hpp"

namespace decant_test {

/// Runs on a thread with 256 KiB of stack (where threads can be given a size).
inline void on_small_stack(const std::function<void()>& work) {
#if defined(__unix__) || defined(__APPLE__)
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
  pthread_t thread;
  const auto run = [](void* p) -> void* {
    (*static_cast<const std::function<void()>*>(p))();
    return nullptr;
  };
  // Only one thread at a time may check anything.
  const int failed =
      pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work));
  if (failed == 0) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  REQUIRE(failed == 0);
#else
  std::thread(work).join();
#endif
}

/// Processor time of this thread, which other processes hardly change; elsewhere the clock's.
inline double thread_seconds() {
#if defined(__unix__) || defined(__APPLE__)
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
#else
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

inline double seconds(const std::function<void()>& work) {
  const double begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

}  // namespace decant_test
