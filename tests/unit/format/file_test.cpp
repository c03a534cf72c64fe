// Files by odd paths, positional reads, mapping, page memory and what else the platform layer
// gives.
#include "base/file.hpp"

#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/temp_folder.hpp"

namespace decant::test {

using namespace decant_test;
using detail::File;

static std::vector<std::byte> file_test_bytes(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// Folder names of users, with their escapes spelt out: Cyrillic, CJK, an ideographic space, an
// accent, an emoji, a percent sign, quotes.
static const char* const kOddName =
    "\xD0\x97\xD0\xB0\xD0\xB3\xD1\x80\xD1\x83\xD0\xB7\xD0\xBA\xD0\xB8 \xE7\x94\xB0\xE4\xB8\xAD"
    "\xE3\x80\x80\xC3\xA9 \xF0\x9F\x99\x82 %20 'x\"";

TEST_CASE("a file is read at any position, in any order, from several threads") {
  const TempFolder folder;
  const auto bytes = file_test_bytes(100000);
  auto file = File::open(folder.write("plain", bytes));
  REQUIRE(file);
  CHECK(file->size() == bytes.size());
  std::vector<std::byte> piece(999);
  for (const std::size_t offset : {std::size_t{99001}, std::size_t{0}, std::size_t{50000}}) {
    REQUIRE(file->read(offset, piece));
    CHECK(std::memcmp(piece.data(), bytes.data() + offset, piece.size()) == 0);
  }
  CHECK(file->read(bytes.size(), {}));

  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::byte> own(100);
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t offset = (i * 131 + t * 17777) % (bytes.size() - own.size());
        if (!file->read(offset, own) ||
            std::memcmp(own.data(), bytes.data() + offset, own.size()) != 0)
          ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("reading past the end is an error that says how much there was") {
  const TempFolder folder;
  const std::string path = folder.write("short", file_test_bytes(10));
  auto file = File::open(path);
  REQUIRE(file);
  std::vector<std::byte> piece(8);
  const Status status = file->read(4, piece);
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == ErrorCode::io);
  const std::string text(status.error().message());
  CHECK(text.find(path) != text.npos);
  CHECK(text.find("wanted 8 bytes at 4, found 6") != text.npos);
  CHECK_FALSE(file->read(UINT64_MAX - 2, piece));
}

TEST_CASE("the mapping of a file holds its bytes and outlives a move") {
  const TempFolder folder;
  const auto bytes = file_test_bytes(10000);
  auto file = File::open(folder.write("mapped", bytes));
  REQUIRE(file);
  auto mapping = file->map();
  REQUIRE(mapping);
  File moved(std::move(*file));
  REQUIRE(mapping->size() == bytes.size());
  CHECK(std::memcmp(mapping->data(), bytes.data(), bytes.size()) == 0);
  CHECK(moved.map()->data() == mapping->data());

  auto empty = File::open(folder.write("empty", {}));
  REQUIRE(empty);
  REQUIRE(empty->map());
  CHECK(empty->map()->empty());
}

TEST_CASE("files open in folders of any name") {
  const TempFolder folder;
  const auto bytes = file_test_bytes(10);
  std::filesystem::create_directories(folder.file(kOddName));
  CHECK(File::open(folder.write(std::string(kOddName) + "/" + kOddName, bytes)));
  // Longer than 260 characters, the limit of old Windows calls.
  const std::string deep = std::string(200, 'a') + "/" + std::string(200, 'b');
  std::filesystem::create_directories(folder.file(deep));
  CHECK(File::open(folder.write(deep + "/model", bytes)));
#if defined(__linux__)
  CHECK(File::open(folder.write("\xFF\xFE\x80.gguf", bytes)));  // not UTF-8
#endif
}

TEST_CASE("a symbolic link is followed and a relative path is relative to the current folder") {
  const TempFolder folder;
  folder.write("target", file_test_bytes(10));
  std::filesystem::create_symlink("target", folder.file("link"));
  CHECK(File::open(folder.file("link")));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  auto file = File::open("link");
  std::filesystem::current_path(before);
  REQUIRE(file);
  std::vector<std::byte> piece(10);  // still readable after the folder changed
  CHECK(file->read(0, piece));
}

TEST_CASE("what is not a readable regular file is refused with its path") {
  const TempFolder folder;
  const auto refused = [](const std::string& path, ErrorCode code) {
    const auto file = File::open(path);
    INFO(path);
    REQUIRE_FALSE(file);
    INFO(file.error().message());
    CHECK(file.error().code() == code);
    // A very long path shows its end.
    const std::string tail = path.size() <= 700 ? path : path.substr(path.size() - 700);
    CHECK(file.error().message().find(tail) != std::string_view::npos);
  };
  refused(folder.path().string(), ErrorCode::invalid_argument);
  refused(folder.file("missing"), ErrorCode::not_found);
  refused(folder.file(kOddName), ErrorCode::not_found);
  folder.write("file", file_test_bytes(1));
  refused(folder.file("file/below"), ErrorCode::not_found);
  CHECK(File::open("").error().code() == ErrorCode::invalid_argument);
  CHECK(File::open(std::string_view("a\0b", 3)).error().code() == ErrorCode::invalid_argument);
#if !defined(_WIN32)
  refused(folder.file(std::string(300, 'n')), ErrorCode::io);  // 255 bytes is the most
  refused(folder.file(std::string(6000, 'n')), ErrorCode::io);
  std::filesystem::create_symlink("loop", folder.file("loop"));
  refused(folder.file("loop"), ErrorCode::io);
  REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
  refused(folder.file("fifo"), ErrorCode::invalid_argument);  // at once, without a writer
  refused("/dev/null", ErrorCode::invalid_argument);
#endif
}

TEST_CASE("page memory is zero, page-aligned and cheap until touched") {
  const auto small = detail::PageMemory::reserve(10);
  REQUIRE(small);
  CHECK(small->size() == 10);
  CHECK(reinterpret_cast<std::uintptr_t>(small->data()) % 4096 == 0);
  if (sizeof(void*) == 8) {
    auto large = detail::PageMemory::reserve(std::size_t{64} << 30);
    REQUIRE(large);
    CHECK(large->data()[0] == std::byte{0});
    large->data()[large->size() - 1] = std::byte{1};
    const detail::PageMemory moved(std::move(*large));
    CHECK(moved.data()[moved.size() - 1] == std::byte{1});
    CHECK(large->data() == nullptr);
  }
  const auto impossible = detail::PageMemory::reserve(SIZE_MAX - 65536);
  REQUIRE_FALSE(impossible);
  CHECK(impossible.error().code() == ErrorCode::out_of_memory);
  CHECK(detail::PageMemory::reserve(0));
}

TEST_CASE("processors and random seeds") {
  CHECK(detail::processor_count() >= 1);
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 100; ++i) seeds.insert(detail::random_seed());
  CHECK(seeds.size() == 100);
}

TEST_CASE("exceptions of a host's reader become errors") {
  struct Throwing final : Reader {
    std::uint64_t size() override { return 1; }
    Status read(std::uint64_t, std::span<std::byte>) override {
      throw std::runtime_error("disk on fire");
    }
    std::string_view name() const override { return "archive"; }
  } reader;
  const Status status = detail::guarded_read(reader, 0, {});
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == ErrorCode::callback_failed);
  CHECK(status.error().message() == "disk on fire");
}

}  // namespace decant::test
