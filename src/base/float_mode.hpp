// The floating-point mode of the calling thread while the library computes: round to nearest, no
// flush-to-zero, no denormals-are-zero, no traps. Hosts (audio and game engines above all) set
// other modes; ours is set on entry and theirs comes back on exit, sticky flags included.
#pragma once

#include <cstdint>

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>
#elif defined(_M_ARM64) && !defined(__clang__)
#include <intrin.h>
#endif

namespace decant::detail {

#if defined(__SSE2__) || defined(_M_X64)
/// MXCSR; all exceptions masked.
inline constexpr std::uint64_t kFloatModeIeee = 0x1F80;
inline std::uint64_t float_mode_get() noexcept { return _mm_getcsr(); }
inline void float_mode_set(std::uint64_t mode) noexcept { _mm_setcsr(static_cast<unsigned>(mode)); }
/// The sticky flags, which are no part of the mode.
inline constexpr std::uint64_t kFloatModeFlags = 0x3F;
#elif defined(__aarch64__) || defined(_M_ARM64)
/// FPCR.
inline constexpr std::uint64_t kFloatModeIeee = 0;
inline constexpr std::uint64_t kFloatModeFlags = 0;
#if defined(_MSC_VER) && !defined(__clang__)
inline std::uint64_t float_mode_get() noexcept {
  return static_cast<std::uint64_t>(_ReadStatusReg(ARM64_FPCR));
}
inline void float_mode_set(std::uint64_t mode) noexcept {
  _WriteStatusReg(ARM64_FPCR, static_cast<__int64>(mode));
}
#else
inline std::uint64_t float_mode_get() noexcept {
  std::uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
  return mode;
}
inline void float_mode_set(std::uint64_t mode) noexcept {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#endif
#else
inline constexpr std::uint64_t kFloatModeIeee = 0;
inline constexpr std::uint64_t kFloatModeFlags = 0;
inline std::uint64_t float_mode_get() noexcept { return 0; }
inline void float_mode_set(std::uint64_t) noexcept {}
#endif

/// Sets the library's mode for its lifetime, on its own thread. Nests cheaply. The numbers that are
/// computed under it should come from memory and go to memory (spans, members, vectors): the
/// compiler orders those around the change of mode, but not arithmetic on plain local variables.
class FloatMode {
 public:
  FloatMode() noexcept : host_(float_mode_get()) {
    if ((host_ & ~kFloatModeFlags) != kFloatModeIeee) float_mode_set(kFloatModeIeee);
  }
  ~FloatMode() {
    if ((host_ & ~kFloatModeFlags) != kFloatModeIeee) float_mode_set(host_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint64_t host_;
};

}  // namespace decant::detail
