// Shared by the tests of the CUDA kernels on the processor.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "cuda/attend.cuh"
#include "support/catch.hpp"
#include "support/file_rows.hpp"

namespace decant_test {

using namespace decant::detail;
using namespace decant::detail::cuda_host;

/// The order in which threads that could go on do so.
struct Schedule {
  Executor::Order order = Executor::Order::ascending;
  std::uint64_t seed = 1;
};
inline const std::vector<Schedule> kSchedules = {{Executor::Order::ascending, 1},
                                                 {Executor::Order::descending, 1},
                                                 {Executor::Order::random, 1},
                                                 {Executor::Order::random, 2}};

/// Queues launches on an executor of its own and fails the test case if one goes wrong.
struct Launcher {
  explicit Launcher(const Schedule& s = {})
      : executor(std::make_unique<Executor>(s.order, s.seed)), stream{executor.get()} {}
  ~Launcher() { CHECK(executor->error() == ""); }
  std::unique_ptr<Executor> executor;
  Stream stream;
};

inline std::size_t usize(int n) { return static_cast<std::size_t>(n); }

/// A weight packed for the kernels, aligned as the device's memory is.
struct DevicePacked {
  std::vector<Bytes16> bytes;
  DeviceWeight weight;
  explicit DevicePacked(const FileRows& from) {
    weight.form = weight_form(from.type);
    weight.group_bytes = cuda_group_bytes(from.type, from.cols);
    weight.n_groups = (from.rows + kRowGroup - 1) / kRowGroup;
    weight.n_tiles = (from.cols + kTileColumns - 1) / kTileColumns;
    bytes.resize(usize(weight.n_groups) * static_cast<std::size_t>(weight.group_bytes) / 16);
    auto* const to = reinterpret_cast<std::byte*>(bytes.data());
    for (int g = 0; g < weight.n_groups; ++g)
      cuda_pack_group(
          from.type, from.bytes.data() + static_cast<std::uint64_t>(g * kRowGroup) * from.row_bytes,
          from.row_bytes, std::min(kRowGroup, from.rows - g * kRowGroup), from.cols,
          to + static_cast<std::uint64_t>(g) * weight.group_bytes);
    weight.data = to;
  }
};

/// Rows of bf16 as the kernels want them.
struct Bf16Rows {
  int n_rows, cols, stride;
  std::vector<std::uint16_t> data;
  Bf16Rows(int rows, int columns, unsigned seed)
      : n_rows(rows),
        cols(columns),
        stride((columns + kTileColumns - 1) / kTileColumns * kTileColumns),
        data(usize(rows) * usize(stride)) {
    std::mt19937 dice(seed);
    std::normal_distribution<float> normal;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) data[usize(r * stride + c)] = f32_to_bf16(normal(dice));
  }
  double at(int row, int column) const {
    return static_cast<double>(bf16_to_f32(data[usize(row * stride + column)]));
  }
  Activations first(int n) const { return {data.data(), n, stride}; }
};

inline std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 dice(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(dice);
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace decant_test
