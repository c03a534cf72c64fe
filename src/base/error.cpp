#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/result.hpp"

// All of fmt, without its locale support.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#ifndef FMT_STATIC_THOUSANDS_SEPARATOR
#define FMT_STATIC_THOUSANDS_SEPARATOR ','
#endif
#ifndef FMT_USE_LOCALE
#define FMT_USE_LOCALE 0
#endif
#include <fmt/format.h>

namespace decant {

namespace detail {
/// Reference-counted text; `count` 0 marks the static ones, which are never freed.
struct ErrorText {
  std::atomic<std::size_t> count;
  ErrorCode code;
  std::size_t size;
  const char* text;  // [size + 1], ends with a zero byte
};

namespace {
constinit ErrorText error_out_of_memory{0, ErrorCode::out_of_memory, 34,
                                        "out of memory: nothing was changed"};
}

std::string_view format_into(std::span<char> to, fmt::string_view format, fmt::format_args args) {
  const auto end = fmt::vformat_to_n(to.data(), to.size(), format, args);
  return {to.data(), static_cast<std::size_t>(end.out - to.data())};
}

Error format_error(ErrorCode code, fmt::string_view format, fmt::format_args args) {
  char text[kMaxErrorText];
  return Error(code, format_into(text, format, args));
}

Error current_exception_error() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::out_of_memory, "the system has no more memory; nothing was changed");
  } catch (const std::length_error& e) {
    return Error(ErrorCode::out_of_memory, e.what());
  } catch (const std::system_error&) {
    return Error(ErrorCode::out_of_memory, "the system gives no more threads or locks");
  } catch (const std::exception& e) {
    return Error(ErrorCode::internal, e.what());
  } catch (...) {
    return Error(ErrorCode::internal, "an exception of unknown type");
  }
}
}  // namespace detail

Error::Error(ErrorCode code, std::string_view text) noexcept {
  if (code == ErrorCode::none) return;
  std::size_t size = std::min(text.size(), detail::kMaxErrorText);
  // A cut must not split a UTF-8 character.
  while (size < text.size() && size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
    --size;
  void* memory = ::operator new(sizeof(detail::ErrorText) + size + 1, std::nothrow);
  if (memory == nullptr) {
    text_ = &detail::error_out_of_memory;
    return;
  }
  char* copy = static_cast<char*>(memory) + sizeof(detail::ErrorText);
  std::memcpy(copy, text.data(), size);
  copy[size] = '\0';
  text_ = new (memory) detail::ErrorText{1, code, size, copy};
}

Error::Error(const Error& other) noexcept : text_(other.text_) {
  if (text_ != nullptr && text_->count.load(std::memory_order_relaxed) != 0)
    text_->count.fetch_add(1, std::memory_order_relaxed);
}

Error::~Error() {
  if (text_ == nullptr || text_->count.load(std::memory_order_relaxed) == 0) return;
  if (text_->count.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    text_->~ErrorText();
    ::operator delete(static_cast<void*>(text_));
  }
}

ErrorCode Error::code() const noexcept { return text_ == nullptr ? ErrorCode::none : text_->code; }

std::string_view Error::message() const noexcept {
  return text_ == nullptr ? std::string_view("") : std::string_view(text_->text, text_->size);
}

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::none: return "none";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::invalid_state: return "invalid_state";
    case ErrorCode::busy: return "busy";
    case ErrorCode::would_block: return "would_block";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::io: return "io";
    case ErrorCode::invalid_file: return "invalid_file";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::context_full: return "context_full";
    case ErrorCode::no_valid_token: return "no_valid_token";
    case ErrorCode::callback_failed: return "callback_failed";
    case ErrorCode::internal: return "internal";
    case ErrorCode::queue_full: return "queue_full";
    case ErrorCode::device_unavailable: return "device_unavailable";
    case ErrorCode::device_lost: return "device_lost";
  }
  return "unknown";
}

Reader::~Reader() = default;

}  // namespace decant
