// Metadata values of GGUF files: their types and how to read one from the header's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace decant::detail {

// Numbers of the metadata types.
enum GgufType : std::uint32_t {
  kGgufU8,
  kGgufI8,
  kGgufU16,
  kGgufI16,
  kGgufU32,
  kGgufI32,
  kGgufF32,
  kGgufBool,
  kGgufString,
  kGgufArray,
  kGgufU64,
  kGgufI64,
  kGgufF64,
  kGgufTypeCount
};

struct GgufTypeInfo {
  std::string_view name;
  std::uint64_t bytes;        // 0: not fixed
  std::uint64_t least_bytes;  // that an element takes in an array
};

inline const GgufTypeInfo& gguf_type_info(std::uint32_t type) {
  static constexpr GgufTypeInfo infos[kGgufTypeCount] = {
      {"u8", 1, 1},  {"i8", 1, 1},  {"u16", 2, 2},  {"i16", 2, 2},    {"u32", 4, 4},
      {"i32", 4, 4}, {"f32", 4, 4}, {"bool", 1, 1}, {"string", 0, 8}, {"array", 0, 12},
      {"u64", 8, 8}, {"i64", 8, 8}, {"f64", 8, 8}};
  return infos[type];
}

template <class T>
T gguf_load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Integers and bool; empty for other types and for u64 above INT64_MAX.
inline std::optional<std::int64_t> gguf_integer(std::uint32_t type, const std::byte* from) {
  switch (type) {
    case kGgufU8:
    case kGgufBool: return gguf_load<std::uint8_t>(from);
    case kGgufI8: return gguf_load<std::int8_t>(from);
    case kGgufU16: return gguf_load<std::uint16_t>(from);
    case kGgufI16: return gguf_load<std::int16_t>(from);
    case kGgufU32: return gguf_load<std::uint32_t>(from);
    case kGgufI32: return gguf_load<std::int32_t>(from);
    case kGgufI64: return gguf_load<std::int64_t>(from);
    case kGgufU64: {
      const auto value = gguf_load<std::uint64_t>(from);
      if (value > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

// Integers and floats; empty for other types.
inline std::optional<double> gguf_number(std::uint32_t type, const std::byte* from) {
  if (type == kGgufF32) return static_cast<double>(gguf_load<float>(from));
  if (type == kGgufF64) return gguf_load<double>(from);
  if (type == kGgufU64) return static_cast<double>(gguf_load<std::uint64_t>(from));
  if (type == kGgufBool) return std::nullopt;
  if (const auto integer = gguf_integer(type, from)) return static_cast<double>(*integer);
  return std::nullopt;
}

// Keys and names as error texts show them.
inline std::string_view gguf_shown(std::string_view text) { return text.substr(0, 100); }

}  // namespace decant::detail
