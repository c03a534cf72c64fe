// Arrays of float32 in numpy's .npy format, version 1.0.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace cli {

/// Writes a [rows, cols] array row by row; the number of rows is known beforehand.
class NpyWriter {
 public:
  NpyWriter(const std::string& path, std::size_t rows, std::size_t cols);
  void write(const float* values, std::size_t n);
  /// Throws if anything could not be written.
  void close();

 private:
  std::string path_;
  std::ofstream file_;
};

/// All values of a float32 or float64 array of any shape.
std::vector<float> read_npy(const std::string& path);

}  // namespace cli
