// Size arithmetic on untrusted numbers: empty instead of wrapping.
#pragma once

#include <cstdint>
#include <optional>

namespace decant::detail {

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  if (sum < a) return std::nullopt;
  return sum;
}

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > UINT64_MAX / a) return std::nullopt;
  return a * b;
}

/// The next multiple of `alignment` (not 0) at or above `n`.
inline std::optional<std::uint64_t> checked_round_up(std::uint64_t n, std::uint64_t alignment) {
  const std::uint64_t rest = n % alignment;
  return rest == 0 ? std::optional(n) : checked_add(n, alignment - rest);
}

}  // namespace decant::detail
