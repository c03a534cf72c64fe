// Kernels that work on rows of activations: embedding, norms, and what becomes of q, k and v.
#pragma once

#include "cuda/multiply.cuh"
#include "kv/kv_view.hpp"

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kRowThreads = 256;
inline constexpr int kMaxHead = 256;  // channels of a head

/// A token of a pass; position -1: of none, its row is only there to fill up a graph, is written to
/// no page and sees nothing. `table` is where its sequence's block tables begin, those of all
/// groups one after another, each of `n_pages` page numbers; `part` where its splits of attention
/// lie.
struct DeviceRow {
  std::int32_t token, position;
  std::int32_t table, n_pages;
  std::int32_t part;
};

DECANT_DEVICE std::size_t row_offset(int row, int stride) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(stride);
}

/// The sum over the lanes of a warp, by a fixed tree; the same in all of them.
DECANT_DEVICE float warp_sum(float value) {
  DECANT_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
DECANT_DEVICE float warp_max(float value) {
  DECANT_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// ----------------------------------------------------------------------------------- embedding

/// An element of a packed weight: the value that `dequantise` gives.
DECANT_DEVICE float weight_element(const DeviceWeight& weight, int row, int column) {
  const WeightForm& form = weight.form;
  const int t = column / kTileColumns, c = column % kTileColumns, r = row % kRowGroup;
  const std::byte* const group =
      weight.data + static_cast<std::uint64_t>(row / kRowGroup) * weight.group_bytes;
  const std::byte* const tile = group + form.tile_offset(t);
  const std::byte* const codes = tile + 2 * form.scale_bytes;
  const int lane = 4 * (r % 8) + c % 16 / 4, step = c / 16, pair = r / 8 + c % 4 / 2 * 2, i = c % 2;
  int code = 0;
  switch (form.code) {
    case WeightCode::f32:
      return reinterpret_cast<const float*>(
          codes)[((step * 2 + pair / 2) * kWarp + lane) * 4 + pair % 2 * 2 + i];
    case WeightCode::f16:
    case WeightCode::bf16: {
      const std::uint16_t half =
          reinterpret_cast<const std::uint16_t*>(codes)[(step * kWarp + lane) * 8 + pair * 2 + i];
      return form.code == WeightCode::f16 ? from_f16(half)
                                          : as_float(static_cast<std::uint32_t>(half) << 16);
    }
    case WeightCode::int8:
      code = reinterpret_cast<const std::int8_t*>(
          codes)[((step / 2 * kWarp + lane) * 2 + step % 2) * 8 + pair * 2 + i];
      break;
    case WeightCode::int4:
      code = static_cast<int>(reinterpret_cast<const std::uint32_t*>(codes)[lane * 4 + step] >>
                                  (4 * pair + 16 * i) &
                              15) -
             form.zero;
      break;
  }
  const std::byte* const scales = tile + c / 32 * form.scale_bytes;
  const auto* const f16 =
      reinterpret_cast<const std::uint16_t*>(form.super ? group + form.header_offset(t) : scales);
  float scale = from_f16(f16[r]), min = form.has_min ? from_f16(f16[kRowGroup + r]) : 0.0f;
  if (form.super) {
    const int half = form.halves ? c % 32 / 16 : 0;
    const int byte = static_cast<int>(scales[kRowGroup * half + r]);
    scale *= static_cast<float>(!form.has_min && byte >= 128 ? byte - 256 : byte);
    if (form.has_min)
      min *= static_cast<float>(scales[kRowGroup * (form.halves ? 2 + half : 1) + r]);
  }
  const float value = scale * static_cast<float>(code);
  return form.has_min ? value + min : value;
}

/// Rope tables of up to this many kinds of layers.
inline constexpr int kMaxRopes = 2;
struct RopeTable {
  const double* turns = nullptr;  // [dims / 2] of a pair from one position to the next
  float* out = nullptr;           // [rows][dims / 2]{cos, sin}
  int dims = 0;
};

struct EmbedArgs {
  const DeviceRow* rows = nullptr;
  DeviceWeight table;
  float scale = 1.0f;
  float* out = nullptr;  // [rows][n_embd]
  int n_embd = 0;
  RopeTable ropes[kMaxRopes];
};

/// The residual stream's beginning, and how far each row's heads will turn. Grid: (rows).
DECANT_KERNEL(kRowThreads) embed_rows(EmbedArgs a) {
  wait_for_previous();
  const int at = static_cast<int>(block_index().x);
  const DeviceRow row = a.rows[at];
  for (int c = thread_index(); c < a.n_embd; c += kRowThreads)
    a.out[row_offset(at, a.n_embd) + static_cast<std::size_t>(c)] =
        weight_element(a.table, row.token, c) * a.scale;
  for (const RopeTable& rope : a.ropes)
    for (int i = thread_index(); i < rope.dims / 2; i += kRowThreads) {
      // Whole turns go in double; what is left is small enough for single precision.
      const double turns = static_cast<double>(row.position) * rope.turns[i];
      const double left = turns - nearest_integer(turns);
      float* const to = rope.out + row_offset(at, rope.dims) + 2 * i;
      sine_cosine_pi(static_cast<float>(2.0 * left), to[1], to[0]);
    }
}

// ---------------------------------------------------------------------------------------- norms

/// The sum over a block's threads: of a warp by its tree, of the warps in order.
DECANT_DEVICE float block_sum(float value) {
  auto* const sums = reinterpret_cast<float*>(shared_memory());
  value = warp_sum(value);
  if (thread_index() % kWarp == 0) sums[thread_index() / kWarp] = value;
  sync_block();
  float sum = sums[0];
  for (int warp = 1; warp < kRowThreads / kWarp; ++warp) sum += sums[warp];
  sync_block();
  return sum;
}
inline constexpr std::size_t kNormSharedBytes = kRowThreads / kWarp * sizeof(float);

struct NormArgs {
  float* residual = nullptr;         // [rows][n]; becomes residual + post-norm(pending)
  const float* pending = nullptr;    // [rows][pending_stride], what the last operation left; null:
                                     // nothing
  const float* post_norm = nullptr;  // [n], null: none
  const float* norm = nullptr;       // [n]
  const std::int32_t* which = nullptr;  // [blocks] rows, null: all
  std::uint16_t* out = nullptr;         // [blocks][out_stride] bf16
  int n = 0, pending_stride = 0, out_stride = 0;
  float eps = 0.0f;
};

/// x / rms(x) * weight (Zhang & Sennrich 2019) of the residual stream with what was left added to
/// it. Grid: (rows).
DECANT_KERNEL(kRowThreads) norm_rows(NormArgs a) {
  wait_for_previous();
  const int at = static_cast<int>(block_index().x);
  const int row = a.which == nullptr ? at : a.which[at];
  float* const residual = a.residual + row_offset(row, a.n);
  const float* const pending =
      a.pending == nullptr ? nullptr : a.pending + row_offset(row, a.pending_stride);
  const auto inverse_rms = [&](float squares) {
    return 1.0f / square_root(squares / static_cast<float>(a.n) + a.eps);
  };
  float scale = 1.0f;
  if (pending != nullptr && a.post_norm != nullptr) {
    float squares = 0.0f;
    for (int c = thread_index(); c < a.n; c += kRowThreads)
      squares = fused(pending[c], pending[c], squares);
    scale = inverse_rms(block_sum(squares));
  }
  float squares = 0.0f;
  for (int c = thread_index(); c < a.n; c += kRowThreads) {
    float x = residual[c];
    if (pending != nullptr) {
      x += a.post_norm != nullptr ? pending[c] * scale * a.post_norm[c] : pending[c];
      residual[c] = x;
    }
    squares = fused(x, x, squares);
  }
  scale = inverse_rms(block_sum(squares));
  std::uint16_t* const out = a.out + row_offset(at, a.out_stride);
  for (int c = thread_index(); c < a.out_stride; c += kRowThreads) {
    const float x = c < a.n ? residual[c] * scale * a.norm[c] : 0.0f;
    out[c] = static_cast<std::uint16_t>(pack_bf16(x, 0.0f));
  }
}

// -------------------------------------------------------------------------- q, k, v to their
// places

struct PlaceArgs {
  const DeviceRow* rows = nullptr;
  const std::int32_t* tables = nullptr;
  const float* qkv = nullptr;  // [rows][qkv_stride]: heads of q, k, v, each filled up to 16 rows
  int qkv_stride = 0, n_heads = 0, n_kv_heads = 0;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [key_dim], null: none
  float eps = 0.0f;
  const float* rope = nullptr;  // [rows][dims / 2]{cos, sin}
  int rope_dims = 0;
  RopePairs rope_pairs = RopePairs::neighbours;
  float* q = nullptr;  // [rows][n_heads][key_dim]
  KvView kv;
  int kv_group = 0, kv_slot = 0;
};

/// In place, by one warp, in pieces of the largest power of two that divides n; see kv_int8.hpp.
DECANT_DEVICE void rotate_hadamard(float* x, int n, int lane) {
  const int piece = n & -n;
  for (int half = 1; half < piece; half *= 2) {
    for (int i = lane; i < n / 2; i += kWarp) {
      const int low = i / half * 2 * half + i % half;
      const float a = x[low], b = x[low + half];
      x[low] = a + b;
      x[low + half] = a - b;
    }
    sync_warp();
  }
  const float norm = 1.0f / square_root(static_cast<float>(piece));
  for (int i = lane; i < n; i += kWarp) x[i] *= norm;  // read on by the same lane
}

/// The smallest f16 that is not below a value >= 0; the largest one if there is none.
DECANT_DEVICE std::uint16_t half_not_below(float value) {
  auto half = static_cast<std::uint16_t>(pack_f16(value, 0.0f));
  if (from_f16(half) < value) ++half;
  return half > 0x7BFF ? 0x7BFF : half;
}

/// One token's key or value into a page as int8, by one warp; see kv_int8.hpp.
DECANT_DEVICE void place_int8(const float* x, int dim, int slot, bool is_key, std::byte* codes,
                              std::byte* scales, int lane) {
  for (int begin = 0; begin < dim; begin += kScaleChannels) {
    const int end = begin + kScaleChannels < dim ? begin + kScaleChannels : dim;
    float most = 0.0f;
    for (int i = begin + lane; i < end; i += kWarp) {
      const float magnitude = x[i] < 0.0f ? -x[i] : x[i];
      most = magnitude <= 3.4028234e38f ? (magnitude > most ? magnitude : most)
                                        : __builtin_huge_valf();
    }
    most = warp_max(most);
    const bool finite = most <= 3.4028234e38f;
    const std::uint16_t scale = finite ? half_not_below(most / 127.0f) : std::uint16_t{0x7E00};
    if (lane == 0)
      reinterpret_cast<std::uint16_t*>(scales)[begin / kScaleChannels * kPageTokens + slot] = scale;
    const float step = finite ? from_f16(scale) : 0.0f;
    const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    for (int i = begin + lane; i < end; i += kWarp) {
      float y = finite ? x[i] * inverse : 0.0f;
      y = y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y;
      const int code = static_cast<int>(nearest_integer(static_cast<double>(y)));
      const int at = is_key ? (i / 4 * kPageTokens + slot) * 4 + i % 4 : slot * dim + i;
      reinterpret_cast<std::int8_t*>(codes)[at] = static_cast<std::int8_t>(code);
    }
  }
}

/// One head of q, k or v: norm, RoPE; k and v go into their pages. Grid: (rows, all heads), one
/// warp each.
DECANT_KERNEL(kWarp) place_heads(PlaceArgs a) {
  wait_for_previous();
  const int lane = thread_index(), at = static_cast<int>(block_index().x);
  int head = static_cast<int>(block_index().y);
  const bool is_q = head < a.n_heads, is_k = !is_q && head < a.n_heads + a.n_kv_heads;
  const auto filled = [](int n) { return (n + kRowGroup - 1) / kRowGroup * kRowGroup; };
  const int dim = is_q || is_k ? a.kv.key_dim : a.kv.value_dim;
  const float* from = a.qkv + row_offset(at, a.qkv_stride);
  if (is_q || is_k) {
    from += head * filled(dim);
    if (is_k) head -= a.n_heads;
  } else {
    head -= a.n_heads + a.n_kv_heads;
    from += (a.n_heads + a.n_kv_heads) * filled(a.kv.key_dim) + head * filled(dim);
  }
  auto* const x = reinterpret_cast<float*>(shared_memory());
  for (int i = lane; i < dim; i += kWarp) x[i] = from[i];
  sync_warp();

  if (is_q || is_k) {
    const float* const norm = is_q ? a.q_norm : a.k_norm;
    if (norm != nullptr) {
      float squares = 0.0f;
      for (int i = lane; i < dim; i += kWarp) squares = fused(x[i], x[i], squares);
      const float scale = 1.0f / square_root(warp_sum(squares) / static_cast<float>(dim) + a.eps);
      for (int i = lane; i < dim; i += kWarp) x[i] = x[i] * scale * norm[i];
      sync_warp();
    }
    const float* const turn = a.rope + row_offset(at, a.rope_dims);
    const bool neighbours = a.rope_pairs == RopePairs::neighbours;
    for (int i = lane; i < a.rope_dims / 2; i += kWarp) {
      const int first = neighbours ? 2 * i : i;
      const int second = neighbours ? first + 1 : i + a.rope_dims / 2;
      const float cosine = turn[2 * i], sine = turn[2 * i + 1], u = x[first], v = x[second];
      x[first] = fused(-v, sine, u * cosine);
      x[second] = fused(u, sine, v * cosine);
    }
    sync_warp();
    if (a.kv.key_type == KvType::int8) rotate_hadamard(x, dim, lane);
  }
  if (is_q) {
    float* const to = a.q + row_offset(at, a.n_heads * dim) + head * dim;
    for (int i = lane; i < dim; i += kWarp) to[i] = x[i];
    return;
  }
  const DeviceRow row = a.rows[at];
  if (row.position < 0) return;
  const std::int32_t page =
      a.tables[row.table + a.kv_group * row.n_pages + row.position / kPageTokens];
  const int slot = row.position % kPageTokens;
  const KvType type = is_k ? a.kv.key_type : a.kv.value_type;
  std::byte* const to =
      is_k ? a.kv.keys(page, a.kv_slot, head) : a.kv.values(page, a.kv_slot, head);
  if (type == KvType::int8) {
    std::byte* const scales =
        is_k ? a.kv.key_scales(page, a.kv_slot, head) : a.kv.value_scales(page, a.kv_slot, head);
    return place_int8(x, dim, slot, is_k, to, scales, lane);
  }
  for (int i = lane; i < dim; i += kWarp) {
    const int index = is_k ? i * kPageTokens + slot : slot * dim + i;
    if (type == KvType::f32)
      reinterpret_cast<float*>(to)[index] = x[i];
    else
      reinterpret_cast<std::uint16_t*>(to)[index] = static_cast<std::uint16_t>(
          type == KvType::f16 ? pack_f16(x[i], 0.0f) : pack_bf16(x[i], 0.0f));
  }
}
inline constexpr std::size_t kPlaceSharedBytes = kMaxHead * sizeof(float);

}  // namespace decant::detail::DECANT_CUDA_SPACE
