#include "base/file.hpp"

#include <cstring>
#include <utility>

namespace decant::detail {

Result<File> File::open(std::string_view path) {
  std::string copy(path);  // first: running out of memory must not leak the handle
  DECANT_ASSIGN(const FileHandle handle, file_open(path));
  File file(handle, std::move(copy));
  DECANT_ASSIGN(file.size_, file_size(handle, path));
  return file;
}

File::File(File&& other) noexcept
    : handle_(std::exchange(other.handle_, kNoFile)),
      size_(other.size_),
      path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, {})) {}

File::~File() {
  file_unmap(mapping_);
  if (handle_ != kNoFile) file_close(handle_);
}

Status File::read(std::uint64_t offset, std::span<std::byte> to) {
  return file_read(handle_, path_, offset, to);
}

Result<std::span<const std::byte>> File::map() {
  if (mapping_.empty()) {
    DECANT_ASSIGN(mapping_, file_map(handle_, path_, size_));
  }
  return mapping_;
}

Status MemoryReader::read(std::uint64_t offset, std::span<std::byte> to) {
  if (offset > bytes_.size() || to.size() > bytes_.size() - offset)
    return make_error(ErrorCode::io, "'{}' ends too soon: wanted {} bytes at {}, it has {}", name_,
                      to.size(), offset, bytes_.size());
  if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  return {};
}

Status guarded_read(Reader& reader, std::uint64_t offset, std::span<std::byte> to) noexcept {
  try {
    return reader.read(offset, to);
  } catch (...) {
    const Error error = current_exception_error();
    return Error(ErrorCode::callback_failed, error.message());
  }
}

}  // namespace decant::detail
