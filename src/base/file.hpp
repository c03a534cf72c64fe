// Sources of bytes: a file on disk and a span of memory, both as the public Reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/platform/platform.hpp"

namespace decant::detail {

/// A regular file, open for reading until destroyed. `read` and `map` keep no position; `read` may
/// be called from any thread.
class File final : public Reader {
 public:
  /// Errors: see file_open.
  static Result<File> open(std::string_view path);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File() override;

  std::uint64_t size() override { return size_; }  ///< as it was when opened
  Status read(std::uint64_t offset, std::span<std::byte> to) override;
  std::string_view name() const override { return path_; }
  /// The whole file in memory, read-only; the same span at every call, gone with this object. The
  /// file must not shrink.
  Result<std::span<const std::byte>> map();

 private:
  File(FileHandle handle, std::string path) noexcept : handle_(handle), path_(std::move(path)) {}
  FileHandle handle_ = kNoFile;
  std::uint64_t size_ = 0;
  std::string path_;
  std::span<const std::byte> mapping_;
};

/// Bytes that somebody else keeps alive.
class MemoryReader final : public Reader {
 public:
  explicit MemoryReader(std::span<const std::byte> bytes, std::string_view name = "memory")
      : bytes_(bytes), name_(name) {}
  std::uint64_t size() override { return bytes_.size(); }
  Status read(std::uint64_t offset, std::span<std::byte> to) override;
  std::string_view name() const override { return name_; }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

/// `reader.read` with exceptions of a host's Reader turned into callback_failed.
Status guarded_read(Reader& reader, std::uint64_t offset, std::span<std::byte> to) noexcept;

}  // namespace decant::detail
