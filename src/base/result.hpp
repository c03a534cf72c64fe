// Errors as values inside the library: building them with fmt, passing them on with two macros.
#pragma once

#ifdef __FAST_MATH__
#error "Decant's results are bit-exact; build it without -ffast-math"
#endif

#include <decant/decant.hpp>

// fmt without its locale support, and without its abort where NDEBUG is not defined.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#ifndef FMT_STATIC_THOUSANDS_SEPARATOR
#define FMT_STATIC_THOUSANDS_SEPARATOR ','
#endif
#ifndef FMT_USE_LOCALE
#define FMT_USE_LOCALE 0
#endif
#ifndef FMT_ASSERT
#define FMT_ASSERT(condition, message) ((void)(condition))
#endif
#include <fmt/core.h>

namespace decant::detail {

inline constexpr std::size_t kMaxErrorText = 1024;

/// The text is formatted into a fixed buffer and cut at 1 KiB. `format` is a literal.
template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  char text[kMaxErrorText];
  const auto end = fmt::format_to_n(text, sizeof text, format, std::forward<Args>(args)...);
  return Error(code, std::string_view(text, static_cast<std::size_t>(end.out - text)));
}

/// The error for an exception in flight; call inside `catch (...)` at the library's boundary.
Error current_exception_error() noexcept;

}  // namespace decant::detail

#define DECANT_CONCAT_(a, b) a##b
#define DECANT_CONCAT(a, b) DECANT_CONCAT_(a, b)

/// Returns the error of a Status or Result from the enclosing function, if it has one.
#define DECANT_TRY(...)                                                      \
  do {                                                                       \
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
