// The header of one part of a GGUF file: fetches it in growing pieces and checks everything in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "format/gguf.hpp"
#include "format/gguf_value.hpp"

namespace decant::detail {

// Limits, see docs/formats.md.
inline constexpr std::uint64_t kGgufMostHeaderBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kGgufMostFileBytes = std::uint64_t{1} << 56;
inline constexpr std::uint64_t kGgufMostValues = 1 << 16;
inline constexpr std::uint64_t kGgufMostTensors = 1 << 20;
inline constexpr std::uint64_t kGgufMostKeyBytes = 65535;
inline constexpr std::uint64_t kGgufMostNameBytes = 127;
inline constexpr std::uint64_t kGgufMostParts = 99999;
inline constexpr std::uint64_t kGgufLeastAlignment = 8;
inline constexpr std::uint64_t kGgufMostAlignment = 1 << 20;
inline constexpr std::uint64_t kGgufDefaultAlignment = 32;

class GgufParser {
 public:
  /// Fills in the part's values and appends its tensors; `index` is the part's number from 0.
  GgufParser(Gguf::Part& part, std::size_t index, std::vector<GgufTensor>& tensors)
      : part_(part), index_(index), tensors_(tensors), bytes_(part.bytes()) {}
  Status run();
  std::uint32_t version() const { return version_; }

 private:
  // The steps of run(), in this order.
  Status begin();
  Status values();
  Status tensors();
  Status place_tensors();

  Status skip_elements(const Gguf::Value& value);
  Status shape_and_size(GgufTensor& tensor);
  Error not_gguf() const;

  // Makes the next n bytes available in bytes_.
  Status need(std::uint64_t n, std::string_view what);
  // The view lives until the next need().
  Status take_string(std::string_view& text, std::uint64_t most, std::string_view what);
  template <class T>
  Status take(T& value, std::string_view what) {
    DECANT_TRY(need(sizeof(T), what));
    value = gguf_load<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return {};
  }

  std::uint64_t left() const { return part_.size - at_; }
  bool starts_with(std::string_view text) const {
    return bytes_.size() >= text.size() &&
           std::memcmp(bytes_.data(), text.data(), text.size()) == 0;
  }
  std::string_view key_of(const Gguf::Value& value) const { return gguf_shown(part_.key(value)); }

  // Errors that begin with the part's name.
  template <class... Args>
  Error fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    char text[512];
    return make_error(code, "'{}': {}", shown_path(part_.name),
                      format_into(text, format, fmt::make_format_args(args...)));
  }
  template <class... Args>
  Error invalid(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::invalid_file, format, std::forward<Args>(args)...);
  }

  Gguf::Part& part_;
  std::size_t index_;
  std::vector<GgufTensor>& tensors_;
  std::span<const std::byte> bytes_;  // of the header, as far as it was fetched
  std::uint64_t at_ = 0;
  std::uint32_t version_ = 0;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_values_ = 0;
  std::uint64_t alignment_ = kGgufDefaultAlignment;
  std::size_t first_ = 0;  // this part's first entry of tensors_
};

}  // namespace decant::detail
