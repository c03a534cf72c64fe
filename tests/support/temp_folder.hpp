// A fresh folder for a test's files, removed with all it holds.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "base/platform/platform.hpp"

namespace decant_test {

class TempFolder {
 public:
  TempFolder() {
    path_ = std::filesystem::temp_directory_path() /
            ("decant-test-" + std::to_string(decant::detail::random_seed()));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The path of an entry as the library takes it: UTF-8, or any bytes where the system allows
  /// them.
  std::string file(std::string_view name) const { return path_.string() + "/" + std::string(name); }
  /// Writes a file and gives its path.
  std::string write(std::string_view name, std::span<const std::byte> bytes) const {
    const std::string path = file(name);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw std::runtime_error("cannot write " + path);
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace decant_test
