// Repacks weights into groups of 16 rows for the CPU kernels ("R16").
//
// A group holds, for each 32 columns, the 16 rows' scales and then their codes, so that lane r of a
// vector works on row r. Codes of b bits lie in vectors of 64 bytes, byte 4 r + c for row r:
//   4 bits  vector j < 4: columns 4 j + c in the low nibble, 16 + 4 j + c in the high one
//   1 bit   one vector: bit j column 4 j + c, bit 4 + j column 16 + 4 j + c (the fifth or third
//   bit) 2 bits  two vectors: bits 2 j, 2 j + 1 column 4 j + c; the second one columns 16 + 4 j + c
//   8 bits  vector j < 8: column 4 j + c, biased by 128
// Scales: f16 d (and m); K-quants: f16 d (and -dmin) every 256 columns, then a byte for each
// sub-scale (and sub-minimum). Float weights: 16 rows interleaved element by element. Nothing is
// rounded: the bytes are those of the file but for sub-scales (6 or 4 bits become 8).
#pragma once

#include "backend/cpu/kernels.hpp"

namespace decant::detail {

/// How an integer type lies in a packed group.
struct PackLayout {
  TensorType type;
  int bits;         // of a code
  int f16_scales;   // f16 values for each row and block (32-column types) or super-block (K-quants)
  int byte_scales;  // sub-scales and sub-minimums for each row and block of 32; 0: no K-quant
  bool has_min() const { return f16_scales == 2; }
  /// Sub-scales are of 16 columns: byte 0 and 1 (then 2 and 3 the sub-minimums), not of 32.
  bool halves() const { return byte_scales != 0 && byte_scales == 2 * f16_scales; }
  /// Subtracted from codes; those with a minimum begin at 0.
  int zero() const { return has_min() ? 0 : 1 << (bits - 1); }
};
/// Null: a float type, or one that the fast kernels do not know.
const PackLayout* pack_layout(TensorType type);

/// A row's block of 32 columns, taken apart.
struct PackBlock {
  std::uint8_t codes[kActBlock];
  std::uint16_t f16[2];   // scale (and minimum, its sign as it is added)
  std::uint8_t bytes[4];  // sub-scales: signed where there is no minimum
};
/// Block `block` of a row as the file has it.
void pack_read(TensorType type, const std::byte* row, int block, PackBlock& to);

/// Bytes of one group of 16 rows of `cols` columns; 0 if the CPU kernels do not know the type.
std::uint64_t packed_group_bytes(TensorType type, int cols);
bool packed_is_integer(TensorType type);

/// Rows [16 group, 16 group + n_rows) of a weight, n_rows <= 16, to one packed group; missing rows
/// become zero. `rows` points to the first of them as the file stores them.
void pack_group(TensorType type, const std::byte* rows, std::uint64_t row_bytes, int n_rows,
                int cols, std::byte* to);
inline constexpr Packing kCpuPacking{packed_group_bytes, pack_group};

/// Row `row` of a packed weight as floats: the values that `dequantise` gives, bit for bit.
void unpack_row(const Weight& weight, int row, float* to);

}  // namespace decant::detail
