// Where the time of the engine's steps goes: wall time of each operation, added up by the worker
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

  /// Counts one call of an operation from its construction to its destruction; nothing, also no
  /// look at the clock, unless the profile is enabled.
  class Timer {
   public:
    Timer(Profile& profile, Operation op) : Timer(profile, static_cast<std::size_t>(op)) {}
    Timer(Profile& profile, std::size_t index)
        : profile_(profile.enabled_ ? &profile : nullptr), index_(index) {
      if (profile_ == nullptr) return;
      start_ = Clock::now();
      inside_ = profile_->inside_;
    }
    ~Timer() {
      if (profile_ == nullptr) return;
      const auto all =
          static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - start_).count());
      const std::uint64_t own = all - (profile_->inside_ - inside_);
      profile_->nanoseconds_[index_].fetch_add(own, std::memory_order_relaxed);
      profile_->calls_[index_].fetch_add(1, std::memory_order_relaxed);
      profile_->inside_ += own;
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    Profile* profile_;
    std::size_t index_;
    Clock::time_point start_{};
    std::uint64_t inside_ = 0;
  };

  ModelMetrics metrics() const {
    ModelMetrics m;
    for (std::size_t i = 0; i < kNames.size(); ++i)
      m.operations[i] = {kNames[i], nanoseconds_[i].load(std::memory_order_relaxed),
                         calls_[i].load(std::memory_order_relaxed)};
    return m;
  }

 private:
  bool enabled_ = false;      // set before the worker starts
  std::uint64_t inside_ = 0;  // counted so far: what a timer around others leaves out
  std::array<std::atomic<std::uint64_t>, kNames.size()> nanoseconds_{}, calls_{};
};

}  // namespace decant::detail
