// A GGUF file (versions 2 and 3, little-endian, one or many parts) as validated metadata and
// tensors. Opening reads the headers and checks every number in them against the real size of the
// file; tensor data is read later, tensor by tensor. Limits are listed in docs/formats.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "format/tensor_type.hpp"

namespace decant::detail {

struct GgufTensor {
  std::string name;
  TensorType type = TensorType::F32;
  int n_dims = 0;
  std::array<std::uint64_t, 4> shape = {1, 1, 1, 1};  // ne0 (the row length) first; missing = 1
  std::uint64_t offset = 0;                           // of its bytes in its part
  std::uint64_t bytes = 0;
  int part = 0;

  std::uint64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

/// Move-only. All const members may be called from any thread, except `read` when the bytes come
/// from a host's Reader: from one thread at a time then. Views live as long as this object.
class Gguf {
 public:
  /// Finds the other parts of a split file beside the first. Errors: not_found, io, invalid_file,
  /// unsupported, invalid_argument, out_of_memory (mapping).
  static Result<Gguf> open(std::string_view path, bool mapped);
  /// Files that may end before their tensors' data, which then cannot be read.
  static Result<Gguf> open_headers(std::string_view path);
  /// The memory must outlive this object.
  static Result<Gguf> open(std::span<const std::byte> memory);
  /// One reader for each part, in order; they must outlive this object. Also callback_failed.
  static Result<Gguf> open(std::span<Reader* const> parts);

  std::uint32_t version() const { return version_; }
  std::string_view name() const;  ///< of the first part, for error texts
  std::string_view name(int part) const;
  std::span<const GgufTensor> tensors() const { return tensors_; }  ///< in the order of the file
  const GgufTensor* find_tensor(std::string_view name) const;       ///< nullptr: none
  bool mapped() const;                                              ///< from mapped files or memory

  /// The bytes of a tensor of this file; `to` is exactly as long. Errors: io, callback_failed,
  /// invalid_argument, whatever the host's Reader answers.
  Status read(const GgufTensor& tensor, std::span<std::byte> to) const;
  /// The part of them that begins `from` bytes into the tensor.
  Status read(const GgufTensor& tensor, std::uint64_t from, std::span<std::byte> to) const;
  /// The bytes in place, aligned to 8; nullptr unless mapped (or when memory given by the host is
  /// not aligned to 8).
  const std::byte* mapped_data(const GgufTensor& tensor) const;

  // Metadata of the first part. An absent key gives the fallback or an empty vector; a value of
  // another type is an invalid_file error that names the key.
  bool has(std::string_view key) const;
  Result<std::string_view> string(std::string_view key, std::string_view fallback) const;
  Result<std::uint64_t> uint(std::string_view key, std::uint64_t fallback) const;  // any integer
  Result<double> number(std::string_view key, double fallback) const;  // any integer or float
  Result<bool> boolean(std::string_view key, bool fallback) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<float>> floats(std::string_view key) const;  // of integers or floats
  /// Any integer type or bool; a single value gives one element.
  Result<std::vector<std::int64_t>> integers(std::string_view key) const;
  /// Keys in the order of the file with short texts: strings whole, arrays as "[string x 49152]".
  std::vector<std::pair<std::string, std::string>> describe() const;

 private:
  // A metadata value, by its place in its part's header.
  struct Value {
    std::uint64_t key = 0;   // offset of the key's length
    std::uint32_t type = 0;  // GGUF's number; of the elements if `array`
    bool array = false;
    std::uint64_t count = 1;   // of elements
    std::uint64_t offset = 0;  // of the first element; strings begin with their length
  };
  struct Part {
    std::unique_ptr<File> file;  // null: not ours
    Reader* reader = nullptr;    // null: memory
    std::string name;
    std::uint64_t size = 0;
    bool mapped = false;
    bool headers_only = false;           // data may be missing
    std::vector<std::byte> buffer;       // the header, unless mapped
    std::span<const std::byte> mapping;  // the whole part, if mapped
    std::vector<Value> values;           // in the order of the file
    std::vector<std::uint32_t> by_key;   // indices of `values`, sorted by key

    std::span<const std::byte> bytes() const { return mapped ? mapping : std::span(buffer); }
    std::string_view key(const Value& value) const;
    std::string_view string_at(std::uint64_t offset) const;
    const Value* find(std::string_view key) const;
    Error type_error(const Value& value, std::string_view wanted) const;
    Result<std::uint64_t> uint(std::string_view key, std::uint64_t fallback) const;
  };
  friend class GgufParser;

  Gguf() = default;
  static Result<Gguf> open_path(std::string_view path, bool mapped, bool headers_only);
  Status add_file(std::string_view path, bool map, bool headers_only);
  Status add_reader(Reader* reader);
  Status add_part(Part part);
  Status check_split(const Part& part);
  Status check_whole();

  std::uint32_t version_ = 0;
  std::uint64_t n_parts_ = 1;  // as the first part says
  std::vector<Part> parts_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices of `tensors_`, sorted by name
};

}  // namespace decant::detail
