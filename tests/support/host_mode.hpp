// Floating-point modes that hosts set and the library must neither suffer from nor disturb: audio
// code flushes subnormals to zero, others round toward zero.
#pragma once

#include <cstdint>

#include "base/float_mode.hpp"

namespace decant_test {

/// Sets a host's mode for its lifetime on the calling thread. Compute inside, CHECK outside: the
/// test framework's own arithmetic would run in that mode too.
class HostMode {
 public:
  enum Kind { plain, flush_to_zero, toward_zero, both };

  explicit HostMode(Kind kind) : before_(decant::detail::float_mode_get()) {
    std::uint64_t bits = 0;
#if defined(__SSE2__) || defined(_M_X64)
    if (kind == flush_to_zero || kind == both) bits |= 0x8040;  // FTZ, DAZ
    if (kind == toward_zero || kind == both) bits |= 0x6000;
#elif defined(__aarch64__)
    if (kind == flush_to_zero || kind == both) bits |= std::uint64_t{1} << 24;  // FZ
    if (kind == toward_zero || kind == both) bits |= std::uint64_t{3} << 22;
#endif
    set_ = (before_ & ~decant::detail::kFloatModeFlags) | bits;
    decant::detail::float_mode_set(set_);
  }
  ~HostMode() { decant::detail::float_mode_set(before_); }
  HostMode(const HostMode&) = delete;
  HostMode& operator=(const HostMode&) = delete;

  /// Whether the thread still has this mode.
  bool untouched() const {
    return (decant::detail::float_mode_get() & ~decant::detail::kFloatModeFlags) == set_;
  }

  /// Whether this processor knows such modes at all.
  static constexpr bool kAvailable =
#if defined(__SSE2__) || defined(_M_X64) || defined(__aarch64__)
      true;
#else
      false;
#endif

 private:
  std::uint64_t before_;
  std::uint64_t set_ = 0;
};

}  // namespace decant_test
