// The Windows twin of platform.hpp: wide calls only, paths of any length.
#if defined(_WIN32)

#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

#include <algorithm>
#include <string>

#include "base/platform/platform.hpp"

// RtlGenRandom under its exported name; no header declares it.
extern "C" BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG size);

namespace decant::detail {

static HANDLE windows_handle(FileHandle file) { return reinterpret_cast<HANDLE>(file); }

static Error windows_file_error(std::string_view action, std::string_view path, DWORD code) {
  const bool memory = code == ERROR_NOT_ENOUGH_MEMORY || code == ERROR_COMMITMENT_LIMIT;
  std::string_view text = "error of the system";
  if (memory) text = "out of memory";
  if (code == ERROR_ACCESS_DENIED) text = "permission denied";
  if (code == ERROR_SHARING_VIOLATION || code == ERROR_LOCK_VIOLATION)
    text = "another program holds it open";
  if (code == ERROR_TOO_MANY_OPEN_FILES) text = "too many open files";
  if (code == ERROR_INVALID_NAME || code == ERROR_FILENAME_EXCED_RANGE)
    text = "the system does not allow this name";
  return make_error(memory ? ErrorCode::out_of_memory : ErrorCode::io,
                    "cannot {} '{}': {} (error {})", action, shown_path(path), text, code);
}

// UTF-8 to an absolute wide path; from 248 characters on with the prefix that lifts MAX_PATH.
static Result<std::wstring> windows_path(std::string_view path) {
  const auto refuse = [&](std::string_view why) {
    return make_error(ErrorCode::invalid_argument, "the path '{}' {}", shown_path(path), why);
  };
  if (path.empty()) return Error(ErrorCode::invalid_argument, "the path of the file is empty");
  if (path.find('\0') != path.npos) return refuse("contains a zero byte");
  if (path.size() > 32767 * 3) return refuse("is too long for the system");
  const int bytes = static_cast<int>(path.size());
  const int length =
      ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, nullptr, 0);
  if (length <= 0) return refuse("is not UTF-8");
  std::wstring wide(static_cast<std::size_t>(length), L'\0');
  ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, wide.data(), length);
  if (wide.starts_with(L"\\\\?\\") || wide.starts_with(L"\\\\.\\")) return wide;
  const DWORD room = ::GetFullPathNameW(wide.c_str(), 0, nullptr, nullptr);
  if (room == 0) return windows_file_error("resolve", path, ::GetLastError());
  std::wstring full(room, L'\0');
  const DWORD written = ::GetFullPathNameW(wide.c_str(), room, full.data(), nullptr);
  if (written == 0 || written >= room) return windows_file_error("resolve", path, ::GetLastError());
  full.resize(written);
  if (full.size() < 248) return full;
  if (full.starts_with(L"\\\\")) return L"\\\\?\\UNC" + full.substr(1);
  return L"\\\\?\\" + full;
}

Result<FileHandle> file_open(std::string_view path) {
  DECANT_ASSIGN(const std::wstring wide, windows_path(path));
  const DWORD attributes = ::GetFileAttributesW(wide.c_str());
  if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0)
    return make_error(ErrorCode::invalid_argument, "'{}' is a folder; name a file in it",
                      shown_path(path));
  const HANDLE handle =
      ::CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE) {
    const DWORD code = ::GetLastError();
    if (code == ERROR_FILE_NOT_FOUND || code == ERROR_PATH_NOT_FOUND)
      return make_error(ErrorCode::not_found, "there is no file '{}'", shown_path(path));
    return windows_file_error("open", path, code);
  }
  if (::GetFileType(handle) != FILE_TYPE_DISK) {
    ::CloseHandle(handle);
    return make_error(ErrorCode::invalid_argument, "'{}' is a pipe or device, not a regular file",
                      shown_path(path));
  }
  return reinterpret_cast<FileHandle>(handle);
}

static Status windows_write(HANDLE handle, std::string_view path,
                            std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = static_cast<DWORD>(std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    DWORD written = 0;
    if (!::WriteFile(handle, bytes.data(), n, &written, nullptr))
      return windows_file_error("write", path, ::GetLastError());
    bytes = bytes.subspan(written);
  }
  if (!::FlushFileBuffers(handle)) return windows_file_error("write", path, ::GetLastError());
  return {};
}

Status file_replace(std::string_view path, std::span<const std::byte> bytes) {
  DECANT_ASSIGN(const std::wstring target, windows_path(path));
  std::wstring beside = target + L".new-";
  std::uint64_t bits = random_seed();
  for (int i = 0; i < 16; ++i, bits >>= 4) beside += L"0123456789abcdef"[bits & 15];
  const HANDLE handle = ::CreateFileW(beside.c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW,
                                      FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE)
    return windows_file_error("create a file beside", path, ::GetLastError());
  Status status = windows_write(handle, path, bytes);
  ::CloseHandle(handle);
  if (status && !::MoveFileExW(beside.c_str(), target.c_str(),
                               MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
    status = windows_file_error("replace", path, ::GetLastError());
  if (!status) ::DeleteFileW(beside.c_str());
  return status;
}

void file_close(FileHandle file) noexcept { ::CloseHandle(windows_handle(file)); }

Result<std::uint64_t> file_size(FileHandle file, std::string_view path) {
  LARGE_INTEGER size = {};
  if (!::GetFileSizeEx(windows_handle(file), &size))
    return windows_file_error("examine", path, ::GetLastError());
  return static_cast<std::uint64_t>(size.QuadPart);
}

Status file_read(FileHandle file, std::string_view path, std::uint64_t offset,
                 std::span<std::byte> to) {
  constexpr std::size_t kMostPerCall = std::size_t{1} << 30;
  const std::size_t wanted = to.size();
  const std::uint64_t begin = offset;
  while (!to.empty()) {
    OVERLAPPED place = {};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    DWORD n = 0;
    if (!::ReadFile(windows_handle(file), to.data(),
                    static_cast<DWORD>(std::min(to.size(), kMostPerCall)), &n, &place)) {
      const DWORD code = ::GetLastError();
      if (code != ERROR_HANDLE_EOF) return windows_file_error("read", path, code);
      n = 0;
    }
    if (n == 0)
      return make_error(ErrorCode::io, "'{}' ends too soon: wanted {} bytes at {}, found {}",
                        shown_path(path), wanted, begin, wanted - to.size());
    to = to.subspan(n);
    offset += n;
  }
  return {};
}

Result<std::span<const std::byte>> file_map(FileHandle file, std::string_view path,
                                            std::uint64_t size) {
  if (size == 0) return std::span<const std::byte>();
  if (size > SIZE_MAX)
    return make_error(ErrorCode::out_of_memory, "'{}' is too large to map in a 32-bit process",
                      shown_path(path));
  const HANDLE section =
      ::CreateFileMappingW(windows_handle(file), nullptr, PAGE_READONLY,
                           static_cast<DWORD>(size >> 32), static_cast<DWORD>(size), nullptr);
  if (section == nullptr) return windows_file_error("map", path, ::GetLastError());
  const void* data = ::MapViewOfFile(section, FILE_MAP_READ, 0, 0, static_cast<SIZE_T>(size));
  const DWORD code = ::GetLastError();
  ::CloseHandle(section);  // the view keeps the section alive
  if (data == nullptr) return windows_file_error("map", path, code);
  return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(size));
}

void file_unmap(std::span<const std::byte> mapping) noexcept {
  if (!mapping.empty()) ::UnmapViewOfFile(mapping.data());
}

Result<PageMemory> PageMemory::reserve(std::size_t bytes) {
  if (bytes == 0) return PageMemory();
  // Large pages need a privilege that ordinary programs lack, so none are asked for.
  void* data = ::VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (data == nullptr)
    return make_error(ErrorCode::out_of_memory, "the system has no {} bytes of memory left", bytes);
  return PageMemory(static_cast<std::byte*>(data), bytes);
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) ::VirtualFree(data_, 0, MEM_RELEASE);
}

int processor_count() noexcept {
  const DWORD n = ::GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
  return n < 1 ? 1 : static_cast<int>(n);
}

bool cpu_has_dot_product() noexcept { return false; }

std::uint64_t process_id() noexcept { return 0; }

std::uint64_t random_seed() noexcept {
  std::uint64_t seed = 0;
  if (SystemFunction036(&seed, sizeof seed)) return seed;
  LARGE_INTEGER ticks = {};
  ::QueryPerformanceCounter(&ticks);
  return (static_cast<std::uint64_t>(ticks.QuadPart) ^ reinterpret_cast<std::uintptr_t>(&seed)) *
         0x9e3779b97f4a7c15u;
}

}  // namespace decant::detail

#endif
