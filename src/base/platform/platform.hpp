// Everything the library asks of the operating system, except threads. One twin per system stands
// beside this header; all of them are compiled everywhere and are empty on other systems.
// Paths are UTF-8 (on Linux and macOS any bytes) and appear in every error text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/result.hpp"

namespace decant::detail {

/// A POSIX descriptor or a Windows HANDLE; -1 is none on both.
using FileHandle = std::intptr_t;
inline constexpr FileHandle kNoFile = -1;

/// The path as error texts show it: the end of one so long that it would leave no room for the
/// rest.
inline std::string_view shown_path(std::string_view path) {
  constexpr std::size_t kMost = 700;
  return path.size() <= kMost ? path : path.substr(path.size() - kMost);
}

/// Opens a regular file for reading. Errors: not_found, invalid_argument (a folder, pipe or device,
/// a path with a zero byte), io.
Result<FileHandle> file_open(std::string_view path);
void file_close(FileHandle file) noexcept;
Result<std::uint64_t> file_size(FileHandle file, std::string_view path);
/// All of `to` from `offset` on. Leaves no file position behind: any thread may read at any time.
/// Errors: io, also when the file ends before.
Status file_read(FileHandle file, std::string_view path, std::uint64_t offset,
                 std::span<std::byte> to);
/// The first `size` bytes, read-only; page by page when touched. The file must not shrink while
/// mapped. Errors: io, out_of_memory.
Result<std::span<const std::byte>> file_map(FileHandle file, std::string_view path,
                                            std::uint64_t size);
void file_unmap(std::span<const std::byte> mapping) noexcept;

/// Makes the file hold these bytes: all of them are written beside it first, so that at no time
/// another content than the old or the new one bears the name. Errors: io, invalid_argument.
Status file_replace(std::string_view path, std::span<const std::byte> bytes);

/// Zeroed memory for page pools and arenas: reserved at once, taken from the system when first
/// touched, in huge pages where the system likes to. Page-aligned. Move-only.
class PageMemory {
 public:
  PageMemory() noexcept = default;
  /// Errors: out_of_memory.
  static Result<PageMemory> reserve(std::size_t bytes);
  PageMemory(PageMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PageMemory& operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PageMemory();
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  PageMemory(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Processors this process may run on, at least 1.
int processor_count() noexcept;

/// Whether the processor has the int8 dot product instructions of Armv8.2; false elsewhere.
bool cpu_has_dot_product() noexcept;

/// Another number in each process that fork makes; always the same where there is no fork.
std::uint64_t process_id() noexcept;

/// 64 random bits from the system.
std::uint64_t random_seed() noexcept;

}  // namespace decant::detail
