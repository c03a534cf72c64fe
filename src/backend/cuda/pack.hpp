// How weights lie for the CUDA kernels: groups of 16 rows, each cut into tiles of 64 columns in the
// order in which lanes of a warp hold them as operand A of a matrix product. All integer types of
// the CPU path take one of two code widths; types of 5 and 6 bits lie in 8, of 2 and 3 in 4.
//
//   group   tiles in ascending order; K-quants: for each 256 columns f16 scales [16 rows] (and
//           minimums [16]), then their 4 tiles
//   tile    for each 32 columns f16 scales [16] (and minimums [16]), K-quants: sub-scale bytes
//           [16] each as in PackBlock::bytes; then the codes; no scales in float types
//   codes   lane 4 g + j, step s of 16 columns, pair p holds row g + 8 (p % 2), columns
//           16 s + 4 j + 2 (p / 2) and the next one:
//     int4  [lane][s] words, nibble p the first element of pair p, nibble 4 + p the second
//     int8  [s / 2][lane][s % 2][p] two signed bytes
//     bf16, f16  [s][lane][p] two halves
//     f32   [s][p / 2][lane][p % 2] two floats
//
// Columns are filled up to a tile and rows to a group with zeros.
#pragma once

#include "backend/backend.hpp"

namespace decant::detail {

enum class WeightCode : std::uint8_t { int4, int8, bf16, f16, f32 };

inline constexpr int kTileColumns = 64;

/// A type's place in the layout above.
struct WeightForm {
  WeightCode code = WeightCode::f32;
  bool has_min = false;  // a minimum is added to each product of scale and code
  bool super = false;    // K-quant
  bool halves = false;   // sub-scales are of 16 columns
  int zero = 0;          // subtracted from codes of 4 bits
  int header_bytes = 0;  // of 256 columns, in front of their tiles
  int scale_bytes = 0;   // of 32 columns, in the tile
  int tile_bytes = 0;

  /// Where tile t begins in its group, and the scales of its 256 columns.
  constexpr std::uint64_t tile_offset(int t) const {
    return header_offset(t) + static_cast<std::uint64_t>(header_bytes) +
           (super ? static_cast<std::uint64_t>(t % 4) * static_cast<std::uint64_t>(tile_bytes) : 0);
  }
  constexpr std::uint64_t header_offset(int t) const {
    return super ? static_cast<std::uint64_t>(t / 4) *
                       static_cast<std::uint64_t>(header_bytes + 4 * tile_bytes)
                 : static_cast<std::uint64_t>(t) * static_cast<std::uint64_t>(tile_bytes);
  }
};

/// Of a type that cuda_group_bytes knows.
WeightForm weight_form(TensorType type);

/// As packed_group_bytes and pack_group of the CPU (backend/cpu/pack.hpp), in this layout.
std::uint64_t cuda_group_bytes(TensorType type, int cols);
void cuda_pack_group(TensorType type, const std::byte* rows, std::uint64_t row_bytes, int n_rows,
                     int cols, std::byte* to);
inline constexpr Packing kCudaPacking{cuda_group_bytes, cuda_pack_group};

}  // namespace decant::detail
