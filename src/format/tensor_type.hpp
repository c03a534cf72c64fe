// The tensor types of GGUF files: their sizes and the exact float values of their blocks.
// The block layouts are described in docs/formats.md; values are those of gguf-py's
// `gguf.quants.dequantize`, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::detail {

/// Numbers as in the file.
enum class TensorType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  Q8_K = 15,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
};

struct TensorTypeInfo {
  std::string_view name;       // as in this enum
  std::size_t block_elements;  // consecutive elements of a row that are stored together
  std::size_t block_bytes;
  bool dequantises;  // `dequantise` knows it
};

/// nullptr for numbers that are not in the enum.
const TensorTypeInfo* tensor_type_info(TensorType type) noexcept;

/// Writes the float values of n_elements (a multiple of the type's block_elements) stored at
/// `blocks`, which needs no alignment. The type must be one that `dequantises`. Allocates nothing.
void dequantise(TensorType type, const std::byte* blocks, std::size_t n_elements,
                float* to) noexcept;

}  // namespace decant::detail
