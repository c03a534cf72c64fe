// The Linux and macOS twin of platform.hpp.
#if !defined(_WIN32)

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string>

#include "base/platform/platform.hpp"

#if defined(__linux__)
#include <sched.h>
#include <sys/auxv.h>
#include <sys/random.h>
#endif

namespace decant::detail {

static_assert(sizeof(off_t) == 8, "build with _FILE_OFFSET_BITS=64");

// strerror depends on the host's locale and is not thread-safe everywhere.
static std::string_view posix_error_text(int code) {
  switch (code) {
    case EACCES:
    case EPERM: return "permission denied";
    case ENOSPC:
    case EDQUOT: return "no space is left on the device";
    case ENOENT:
    case ENOTDIR: return "there is no such folder";
    case EISDIR: return "it is a folder";
    case EROFS: return "the file system is read-only";
    case EIO: return "input/output error of the device";
    case ELOOP: return "too many symbolic links";
    case EMFILE:
    case ENFILE: return "too many open files";
    case ENAMETOOLONG: return "the name is too long for the system";
    case ENOMEM: return "out of memory";
    case EOVERFLOW: return "the file is too large for the system";
    case ESTALE: return "the file is gone from the server";
    default: return "error of the system";
  }
}

static Error posix_file_error(std::string_view action, std::string_view path, int code) {
  return make_error(code == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::io,
                    "cannot {} '{}': {} (errno {})", action, shown_path(path),
                    posix_error_text(code), code);
}

Result<FileHandle> file_open(std::string_view path) {
  if (path.empty()) return Error(ErrorCode::invalid_argument, "the path of the file is empty");
  if (path.find('\0') != path.npos)
    return make_error(ErrorCode::invalid_argument, "the path '{}' contains a zero byte",
                      shown_path(path));
  const std::string terminated(path);
  int descriptor = -1;
  do {
    // Without O_NONBLOCK a pipe would make us wait for its writer.
    descriptor = ::open(terminated.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return make_error(ErrorCode::not_found, "there is no file '{}'", shown_path(path));
    if (errno == ENXIO || errno == ENODEV)
      return make_error(ErrorCode::invalid_argument, "'{}' is not a regular file",
                        shown_path(path));
    return posix_file_error("open", path, errno);
  }
  struct stat info = {};
  if (::fstat(descriptor, &info) != 0) {
    const int code = errno;
    ::close(descriptor);
    return posix_file_error("examine", path, code);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor);
    if (S_ISDIR(info.st_mode))
      return make_error(ErrorCode::invalid_argument, "'{}' is a folder; name a file in it",
                        shown_path(path));
    return make_error(ErrorCode::invalid_argument, "'{}' is a pipe or device, not a regular file",
                      shown_path(path));
  }
  return static_cast<FileHandle>(descriptor);
}

/// A name beside `path` that nobody else uses.
static std::string posix_beside(std::string_view path) {
  std::string name(path);
  name += ".new-";
  std::uint64_t bits = random_seed();
  for (int i = 0; i < 16; ++i, bits >>= 4) name += "0123456789abcdef"[bits & 15];
  return name;
}

static Status posix_write(int descriptor, std::string_view path, std::span<const std::byte> bytes) {
  constexpr std::size_t kMostPerCall = std::size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMostPerCall));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return posix_file_error("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  if (::fsync(descriptor) != 0) return posix_file_error("write", path, errno);
  return {};
}

Status file_replace(std::string_view path, std::span<const std::byte> bytes) {
  if (path.empty()) return Error(ErrorCode::invalid_argument, "the path of the file is empty");
  if (path.find('\0') != path.npos)
    return make_error(ErrorCode::invalid_argument, "the path '{}' contains a zero byte",
                      shown_path(path));
  const std::string target(path), beside = posix_beside(path);
  const int descriptor =
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
  if (descriptor < 0) return posix_file_error("create", beside, errno);
  Status status = posix_write(descriptor, path, bytes);
  if (::close(descriptor) != 0 && status) status = posix_file_error("write", path, errno);
  if (status && ::rename(beside.c_str(), target.c_str()) != 0)
    status = posix_file_error("replace", path, errno);
  if (!status) ::unlink(beside.c_str());
  return status;
}

void file_close(FileHandle file) noexcept { ::close(static_cast<int>(file)); }

Result<std::uint64_t> file_size(FileHandle file, std::string_view path) {
  struct stat info = {};
  if (::fstat(static_cast<int>(file), &info) != 0) return posix_file_error("examine", path, errno);
  return static_cast<std::uint64_t>(info.st_size);
}

Status file_read(FileHandle file, std::string_view path, std::uint64_t offset,
                 std::span<std::byte> to) {
  constexpr std::size_t kMostPerCall = std::size_t{1} << 30;  // macOS refuses 2^31 and more
  const std::size_t wanted = to.size();
  const std::uint64_t begin = offset;
  while (!to.empty()) {
    if (offset > static_cast<std::uint64_t>(INT64_MAX))
      return posix_file_error("read", path, EINVAL);
    const ssize_t n = ::pread(static_cast<int>(file), to.data(), std::min(to.size(), kMostPerCall),
                              static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return posix_file_error("read", path, errno);
    if (n == 0)
      return make_error(ErrorCode::io, "'{}' ends too soon: wanted {} bytes at {}, found {}",
                        shown_path(path), wanted, begin, wanted - to.size());
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<std::span<const std::byte>> file_map(FileHandle file, std::string_view path,
                                            std::uint64_t size) {
  if (size == 0) return std::span<const std::byte>();
  if (size > SIZE_MAX)
    return make_error(ErrorCode::out_of_memory, "'{}' is too large to map in a 32-bit process",
                      shown_path(path));
  void* data = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED,
                      static_cast<int>(file), 0);
  if (data == MAP_FAILED) return posix_file_error("map", path, errno);
  return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(size));
}

void file_unmap(std::span<const std::byte> mapping) noexcept {
  if (!mapping.empty()) ::munmap(const_cast<std::byte*>(mapping.data()), mapping.size());
}

Result<PageMemory> PageMemory::reserve(std::size_t bytes) {
  if (bytes == 0) return PageMemory();
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
  flags |= MAP_NORESERVE;
#endif
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::out_of_memory, "the system has no {} bytes of memory left", bytes);
#if defined(MADV_HUGEPAGE)
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes >= kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish; refusal is harmless
#endif
  return PageMemory(static_cast<std::byte*>(data), bytes);
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

int processor_count() noexcept {
#if defined(__linux__)
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return std::max(1, CPU_COUNT(&allowed));
#endif
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  return online < 1 ? 1 : static_cast<int>(online);
}

bool cpu_has_dot_product() noexcept {
#if defined(__linux__) && defined(__aarch64__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
  return (::getauxval(AT_HWCAP) & kDotProduct) != 0;
#elif defined(__APPLE__) && defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

std::uint64_t process_id() noexcept { return static_cast<std::uint64_t>(getpid()); }

std::uint64_t random_seed() noexcept {
  std::uint64_t seed = 0;
#if defined(__linux__)
  ssize_t n = 0;
  do {
    n = ::getrandom(&seed, sizeof seed, 0);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof seed)) return seed;
#else
  if (::getentropy(&seed, sizeof seed) == 0) return seed;
#endif
  // No source of entropy (a sandbox forbids it): the clock and our place in memory must do.
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  seed = static_cast<std::uint64_t>(now.tv_sec) * 1000000007u +
         static_cast<std::uint64_t>(now.tv_nsec);
  return (seed ^ reinterpret_cast<std::uintptr_t>(&seed)) * 0x9e3779b97f4a7c15u;
}

}  // namespace decant::detail

#endif
