// Errors as values inside the library: building them with fmt, passing them on with two macros.
#pragma once

#include "base/fp_contract.hpp"

#include <decant/decant.hpp>

// The light half of fmt alone: formatting itself is compiled once, in error.cpp.
#ifndef FMT_ASSERT
#define FMT_ASSERT(condition, message) ((void)(condition))  // no abort where NDEBUG is missing
#endif
#if defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1  // fmt 9 takes nvcc for older than it is
#endif
#if __has_include(<fmt/base.h>)
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

namespace decant::detail {

inline constexpr std::size_t kMaxErrorText = 1024;

/// Formats into `to`, as far as it reaches; returns what was written.
std::string_view format_into(std::span<char> to, fmt::string_view format, fmt::format_args args);
/// Never inlined: its buffer would grow the stack frames of recursive callers in the one-file
/// build.
#if defined(_MSC_VER)
__declspec(noinline)
#else
[[gnu::noinline]]
#endif
    Error format_error(ErrorCode code, fmt::string_view format, fmt::format_args args);

/// The text is formatted into a fixed buffer and cut at 1 KiB. `format` is a literal.
template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return format_error(code, format, fmt::make_format_args(args...));
}

/// The error for an exception in flight; call inside `catch (...)` at the library's boundary.
Error current_exception_error() noexcept;

}  // namespace decant::detail

#define DECANT_CONCAT_(a, b) a##b
#define DECANT_CONCAT(a, b) DECANT_CONCAT_(a, b)

/// Returns the error of a Status or Result from the enclosing function, if it has one.
#define DECANT_TRY(...)                                                             \
  do {                                                                              \
    if (auto decant_try_ = (__VA_ARGS__); !decant_try_) return decant_try_.error(); \
  } while (false)

/// DECANT_ASSIGN(auto x, f()): x is the value of f(), or the enclosing function returns its error.
#define DECANT_ASSIGN(target, ...) \
  DECANT_ASSIGN_(DECANT_CONCAT(decant_result_, __LINE__), target, __VA_ARGS__)
#define DECANT_ASSIGN_(result, target, ...) \
  auto result = (__VA_ARGS__);              \
  if (!result) return result.error();       \
  target = *std::move(result)

/// Our own bugs only; empty in release, never reachable from a file, prompt or argument.
#ifdef DECANT_ASSERTS
#define DECANT_ASSERT(condition) ((condition) ? void(0) : __builtin_trap())
#else
#define DECANT_ASSERT(condition) void(0)
#endif
