// Where the time of the engine's steps goes: wall time of each operation, added up by the step
// and read by anyone. The rest of a step is "other".
#pragma once

#include <array>
#include <atomic>
#include <chrono>

#include "backend/backend.hpp"

namespace decant::detail {

class Profile {
 public:
  static constexpr std::array<const char*, 8> kNames = {
      "embed", "qkv", "attend", "attention_output", "gate_up", "down", "logits", "other"};
  static constexpr std::size_t kOther = 7;

  void enable() { enabled_ = true; }

  /// A step begins with "other"; one that was left unfinished goes on with what it was in. Until
  /// the next call, time counts for what was entered last; the calls come one after the other, from
  /// any thread. None looks at the clock unless enabled.
  void start() {
    current_ = kOther;
    resume();
  }
  void resume() {
    if (enabled_) since_ = Clock::now();
  }
  void enter(std::size_t index) {
    if (!enabled_) return;
    stop();
    calls_[index].fetch_add(1, std::memory_order_relaxed);
    current_ = index;
  }
  void stop() {
    if (!enabled_) return;
    const Clock::time_point now = Clock::now();
    const auto passed = std::chrono::nanoseconds(now - since_).count();
    nanoseconds_[current_].fetch_add(static_cast<std::uint64_t>(passed), std::memory_order_relaxed);
    since_ = now;
  }

  void read(ModelMetrics& m) const {
    for (std::size_t i = 0; i < kNames.size(); ++i)
      m.operations[i] = {kNames[i], nanoseconds_[i].load(std::memory_order_relaxed),
                         calls_[i].load(std::memory_order_relaxed)};
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_ = false;  // set before the worker starts
  std::size_t current_ = kOther;
  Clock::time_point since_{};
  std::array<std::atomic<std::uint64_t>, kNames.size()> nanoseconds_{}, calls_{};
};

}  // namespace decant::detail
