#include "backend/cuda/pack.hpp"

#include <cstring>

#include "backend/cpu/pack.hpp"

namespace decant::detail {

WeightForm weight_form(TensorType type) {
  WeightForm form;
  if (const PackLayout* layout = pack_layout(type)) {
    const bool wide = layout->bits > 4;
    form.code = wide ? WeightCode::int8 : WeightCode::int4;
    form.has_min = layout->has_min();
    form.super = layout->byte_scales != 0;
    form.halves = layout->halves();
    form.zero = layout->zero();
    const int f16_bytes = 2 * kRowGroup * layout->f16_scales;
    form.header_bytes = form.super ? f16_bytes : 0;
    form.scale_bytes = form.super ? kRowGroup * layout->byte_scales : f16_bytes;
    form.tile_bytes = 2 * form.scale_bytes + kRowGroup * kTileColumns / (wide ? 1 : 2);
    return form;
  }
  form.code = type == TensorType::F32   ? WeightCode::f32
              : type == TensorType::F16 ? WeightCode::f16
                                        : WeightCode::bf16;
  form.tile_bytes = kRowGroup * kTileColumns * (type == TensorType::F32 ? 4 : 2);
  return form;
}

std::uint64_t cuda_group_bytes(TensorType type, int cols) {
  if (packed_group_bytes(type, cols) == 0) return 0;
  // A super-block is 4 tiles, so a group ends where its next tile would begin.
  const WeightForm form = weight_form(type);
  return form.header_offset((cols + kTileColumns - 1) / kTileColumns);
}

/// Where element (row, column) of a tile of floats lies, in elements.
static std::size_t cuda_float_index(WeightCode code, int row, int column) {
  const int lane = 4 * (row % 8) + column % 16 / 4, step = column / 16;
  const int pair = row / 8 + column % 4 / 2 * 2, i = column % 2;
  return static_cast<std::size_t>(code == WeightCode::f32
                                      ? ((step * 2 + pair / 2) * 32 + lane) * 4 + pair % 2 * 2 + i
                                      : (step * 32 + lane) * 8 + pair * 2 + i);
}

static void cuda_pack_code(const WeightForm& form, int row, int column, int code, std::byte* to) {
  const int lane = 4 * (row % 8) + column % 16 / 4, step = column / 16;
  const int pair = row / 8 + column % 4 / 2 * 2, i = column % 2;
  if (form.code == WeightCode::int8) {
    to[((step / 2 * 32 + lane) * 2 + step % 2) * 8 + pair * 2 + i] =
        static_cast<std::byte>(code - form.zero);
  } else {
    const int nibble = pair + 4 * i;
    to[(lane * 4 + step) * 4 + nibble / 2] |= static_cast<std::byte>(code << (nibble % 2 * 4));
  }
}

void cuda_pack_group(TensorType type, const std::byte* rows, std::uint64_t row_bytes, int n_rows,
                     int cols, std::byte* to) {
  const WeightForm form = weight_form(type);
  std::memset(to, 0, static_cast<std::size_t>(cuda_group_bytes(type, cols)));
  const auto tile = [&](int column) { return to + form.tile_offset(column / kTileColumns); };
  const PackLayout* layout = pack_layout(type);
  if (layout == nullptr) {
    const std::size_t bytes = type == TensorType::F32 ? 4 : 2;
    for (int r = 0; r < n_rows; ++r)
      for (int c = 0; c < cols; ++c)
        std::memcpy(
            tile(c) + bytes * cuda_float_index(form.code, r, c % kTileColumns),
            rows + static_cast<std::uint64_t>(r) * row_bytes + bytes * static_cast<std::size_t>(c),
            bytes);
    return;
  }
  for (int b = 0; b < cols / kActBlock; ++b) {
    std::byte* const at = tile(b * kActBlock);
    std::byte* const scales = at + b % 2 * form.scale_bytes;
    std::byte* const f16 = form.super ? to + form.header_offset(b / 2) : scales;
    for (int r = 0; r < kRowGroup; ++r) {
      PackBlock block{};
      if (r < n_rows)
        pack_read(type, rows + static_cast<std::uint64_t>(r) * row_bytes, b, block);
      else
        std::memset(block.codes, form.zero, sizeof block.codes);
      for (int i = 0; i < layout->f16_scales; ++i)
        std::memcpy(f16 + 2 * (kRowGroup * i + r), &block.f16[i], 2);
      for (int i = 0; i < layout->byte_scales; ++i)
        scales[kRowGroup * i + r] = static_cast<std::byte>(block.bytes[i]);
      for (int c = 0; c < kActBlock; ++c)
        cuda_pack_code(form, r, b % 2 * kActBlock + c, block.codes[c], at + 2 * form.scale_bytes);
    }
  }
}

}  // namespace decant::detail
