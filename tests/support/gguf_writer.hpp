// Writes GGUF files in memory, well-formed or broken on purpose. Written from the published
// description of the format, without the library's own code.
//
//   GgufWriter w;
//   w.add_string("general.architecture", "llama");
//   w.add_u32("llama.block_count", 2);
//   w.add_tensor("output.weight", 0 /* F32 */, {32, 64}, floats);   // ne0 (row length) first
//   std::vector<std::byte> file = w.finish();
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace decant_test {

class GgufWriter {
 public:
  using Bytes = std::vector<std::byte>;

  explicit GgufWriter(std::uint32_t version = 3, std::uint64_t alignment = 32)
      : version_(version), alignment_(alignment) {
    if (alignment != 32) add_u32("general.alignment", static_cast<std::uint32_t>(alignment));
  }

  // ---- metadata, in the order of the calls
  void add_u8(std::string_view key, std::uint8_t v) { add_scalar(key, 0, v); }
  void add_i8(std::string_view key, std::int8_t v) { add_scalar(key, 1, v); }
  void add_u16(std::string_view key, std::uint16_t v) { add_scalar(key, 2, v); }
  void add_i16(std::string_view key, std::int16_t v) { add_scalar(key, 3, v); }
  void add_u32(std::string_view key, std::uint32_t v) { add_scalar(key, 4, v); }
  void add_i32(std::string_view key, std::int32_t v) { add_scalar(key, 5, v); }
  void add_f32(std::string_view key, float v) { add_scalar(key, 6, v); }
  void add_bool(std::string_view key, bool v) {
    add_scalar(key, 7, static_cast<std::uint8_t>(v ? 1 : 0));
  }
  void add_u64(std::string_view key, std::uint64_t v) { add_scalar(key, 10, v); }
  void add_i64(std::string_view key, std::int64_t v) { add_scalar(key, 11, v); }
  void add_f64(std::string_view key, double v) { add_scalar(key, 12, v); }
  void add_string(std::string_view key, std::string_view v) {
    begin_value(key, 8);
    put_string(metadata_, v);
  }
  void add_strings(std::string_view key, std::span<const std::string> v) {
    begin_array(key, 8, v.size());
    for (const std::string& s : v) put_string(metadata_, s);
  }
  void add_u32s(std::string_view key, std::span<const std::uint32_t> v) { add_array(key, 4, v); }
  void add_i32s(std::string_view key, std::span<const std::int32_t> v) { add_array(key, 5, v); }
  void add_f32s(std::string_view key, std::span<const float> v) { add_array(key, 6, v); }
  void add_bools(std::string_view key, std::span<const std::uint8_t> v) { add_array(key, 7, v); }
  void add_f64s(std::string_view key, std::span<const double> v) { add_array(key, 12, v); }
  template <class T>
  void add_array(std::string_view key, std::uint32_t element_type, std::span<const T> v) {
    begin_array(key, element_type, v.size());
    for (const T& x : v) put(metadata_, x);
  }
  /// Any bytes after key and type number: values that no honest program writes.
  void add_raw(std::string_view key, std::uint32_t type, std::span<const std::byte> value) {
    begin_value(key, type);
    metadata_.insert(metadata_.end(), value.begin(), value.end());
  }

  // ---- tensors: `shape` has ne0 (the row length) first, `type` is the file's number
  void add_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> shape,
                  std::span<const std::byte> data) {
    while (data_.size() % alignment_ != 0) data_.push_back(std::byte{0});
    add_tensor_entry(name, type, std::move(shape), data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
  }
  void add_tensor(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> shape,
                  std::span<const float> data) {
    add_tensor(name, type, std::move(shape), std::as_bytes(data));
  }
  void add_f32_tensor(std::string_view name, std::vector<std::uint64_t> shape,
                      std::span<const float> data) {
    add_tensor(name, 0, std::move(shape), std::as_bytes(data));
  }
  /// Only the entry in the header; `offset` is relative to the data section.
  void add_tensor_entry(std::string_view name, std::uint32_t type, std::vector<std::uint64_t> shape,
                        std::uint64_t offset) {
    put_string(tensors_, name);
    put(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (std::uint64_t n : shape) put(tensors_, n);
    put(tensors_, type);
    put(tensors_, offset);
    ++n_tensors_;
  }

  // ---- lies
  void set_counts(std::uint64_t n_tensors, std::uint64_t n_values) {
    counts_ = {n_tensors, n_values};
    has_counts_ = true;
  }
  void set_magic(std::string_view magic) { magic_ = magic; }

  Bytes finish() const {
    Bytes out = header();
    if (n_tensors_ != 0 || !data_.empty())
      while (out.size() % alignment_ != 0) out.push_back(std::byte{0});
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }
  /// Everything before the padding in front of the data.
  Bytes header() const {
    Bytes out;
    for (char c : magic_) out.push_back(static_cast<std::byte>(c));
    put(out, version_);
    put(out, has_counts_ ? counts_.n_tensors : n_tensors_);
    put(out, has_counts_ ? counts_.n_values : n_values_);
    out.insert(out.end(), metadata_.begin(), metadata_.end());
    out.insert(out.end(), tensors_.begin(), tensors_.end());
    return out;
  }

  template <class T>
  static void put(Bytes& to, T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    to.insert(to.end(), bytes, bytes + sizeof value);
  }
  static void put_string(Bytes& to, std::string_view text) {
    put(to, static_cast<std::uint64_t>(text.size()));
    for (char c : text) to.push_back(static_cast<std::byte>(c));
  }

 private:
  void begin_value(std::string_view key, std::uint32_t type) {
    put_string(metadata_, key);
    put(metadata_, type);
    ++n_values_;
  }
  void begin_array(std::string_view key, std::uint32_t type, std::size_t count) {
    begin_value(key, 9);
    put(metadata_, type);
    put(metadata_, static_cast<std::uint64_t>(count));
  }
  template <class T>
  void add_scalar(std::string_view key, std::uint32_t type, T value) {
    begin_value(key, type);
    put(metadata_, value);
  }

  struct Counts {
    std::uint64_t n_tensors = 0;
    std::uint64_t n_values = 0;
  };
  std::uint32_t version_;
  std::uint64_t alignment_;
  std::string magic_ = "GGUF";
  Counts counts_;
  bool has_counts_ = false;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_values_ = 0;
  Bytes metadata_;
  Bytes tensors_;
  Bytes data_;
};

}  // namespace decant_test
