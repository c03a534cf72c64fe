// Weights as a GGUF file stores them, of all types that the fast kernels know, at random.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.hpp"
#include "format/tensor_type.hpp"

namespace decant_test {

using decant::detail::TensorType;

inline constexpr TensorType kTypes[] = {
    TensorType::F32,  TensorType::F16,  TensorType::BF16, TensorType::Q4_0, TensorType::Q4_1,
    TensorType::Q5_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::Q2_K, TensorType::Q3_K,
    TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K};

/// Random rows as a file stores them: any codes, scales of ordinary size.
struct FileRows {
  TensorType type;
  int rows, cols;
  std::uint64_t row_bytes;
  std::vector<std::byte> bytes;

  /// `fill`: what each byte of codes and sub-scales is; random if negative.
  FileRows(TensorType t, int n_rows, int n_cols, unsigned seed, int fill = -1)
      : type(t), rows(n_rows), cols(n_cols) {
    const decant::detail::TensorTypeInfo& info = *decant::detail::tensor_type_info(t);
    row_bytes = static_cast<std::uint64_t>(n_cols) / info.block_elements * info.block_bytes;
    bytes.resize(static_cast<std::size_t>(n_rows) * row_bytes);
    std::mt19937 dice(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(fill < 0 ? dice() : fill);
    const auto put_f16 = [&](std::size_t at) {
      const float value = std::ldexp(1.0f + static_cast<float>(dice() % 1000) / 1000.0f,
                                     -static_cast<int>(dice() % 9)) *
                          (dice() % 2 ? 1.0f : -1.0f);
      const std::uint16_t half = t == TensorType::BF16 ? decant::detail::f32_to_bf16(value)
                                                       : decant::detail::f32_to_f16(value);
      std::memcpy(&bytes[at], &half, 2);
    };
    const bool two = t == TensorType::Q4_1 || t == TensorType::Q5_1 || t == TensorType::Q2_K ||
                     t == TensorType::Q4_K || t == TensorType::Q5_K;
    std::size_t at_scale = 0;  // of d in a block
    if (t == TensorType::Q2_K) at_scale = 80;
    if (t == TensorType::Q3_K) at_scale = 108;
    if (t == TensorType::Q6_K) at_scale = 208;
    for (std::size_t at = 0; at < bytes.size(); at += info.block_bytes) {
      if (t == TensorType::F32) {
        const float value = static_cast<float>(static_cast<int>(dice() % 2000) - 1000) / 300.0f;
        std::memcpy(&bytes[at], &value, 4);
      } else {
        put_f16(at + at_scale);
        if (two) put_f16(at + at_scale + 2);
      }
    }
  }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<std::size_t>(rows * cols));
    for (int r = 0; r < rows; ++r)
      decant::detail::dequantise(type, bytes.data() + static_cast<std::uint64_t>(r) * row_bytes,
                                 static_cast<std::size_t>(cols),
                                 &out[static_cast<std::size_t>(r * cols)]);
    return out;
  }
};

}  // namespace decant_test
