#include "npy.hpp"

#include <bit>
#include <cstdint>
#include <filesystem>
#include <stdexcept>

static_assert(std::endian::native == std::endian::little,
              "arrays are written as they lie in memory");

namespace cli {

// A std::string with UTF-8, as everywhere in the program.
static std::filesystem::path utf8_path(const std::string& path) {
  return std::filesystem::path(std::u8string(path.begin(), path.end()));
}

NpyWriter::NpyWriter(const std::string& path, std::size_t rows, std::size_t cols)
    : path_(path), file_(utf8_path(path), std::ios::binary) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                       std::to_string(rows) + ", " + std::to_string(cols) + "), }";
  // Magic, version and length take 10 bytes; the data begins at a multiple of 64.
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  const char size[] = {static_cast<char>(header.size() & 0xFF),
                       static_cast<char>(header.size() >> 8)};
  file_ << std::string_view("\x93NUMPY\x01\x00", 8) << std::string_view(size, 2) << header;
}

void NpyWriter::write(const float* values, std::size_t n) {
  file_.write(reinterpret_cast<const char*>(values),
              static_cast<std::streamsize>(n * sizeof(float)));
}

void NpyWriter::close() {
  file_.close();
  if (!file_) throw std::runtime_error("cannot write " + path_);
}

template <class T>
static std::vector<float> read_values(std::ifstream& file) {
  std::vector<float> values;
  for (T value; file.read(reinterpret_cast<char*>(&value), sizeof value);)
    values.push_back(static_cast<float>(value));
  return values;
}

std::vector<float> read_npy(const std::string& path) {
  std::ifstream file(utf8_path(path), std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  char start[10] = {};
  file.read(start, sizeof start);
  if (!file || std::string_view(start, 6) != "\x93NUMPY" || start[6] != 1)
    throw std::runtime_error(path + " is no .npy file of version 1");
  std::string header(static_cast<std::size_t>(static_cast<unsigned char>(start[8])) +
                         static_cast<std::size_t>(static_cast<unsigned char>(start[9])) * 256,
                     '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (file && header.find("'<f4'") != std::string::npos) return read_values<float>(file);
  if (file && header.find("'<f8'") != std::string::npos) return read_values<double>(file);
  throw std::runtime_error(path + " holds no array of float32 or float64");
}

}  // namespace cli
