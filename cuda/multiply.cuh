// Weights times activations. Weights are operand A, 16 rows at a time, and tokens operand B, 8 at a
// time, so a token's sums do not depend on how many others there are: every output is the sum of
// four warps' sums, in order, each over tiles of 64 columns w, w + 4, ... in ascending order.
//
// What is rounded: activations, to bf16, by whoever made them. Weights are not: codes of 4 and 8
// bits are integers that bf16 holds, f16 is the sum of two and f32 of three bf16. Products are
// summed in f32 by the matrix unit; a block's sum is multiplied by its scale in f32.
#pragma once

#include "backend/cuda/pack.hpp"
#include "cuda/device.cuh"

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kMultiplyThreads = 128, kMultiplyWarps = kMultiplyThreads / kWarp;
inline constexpr int kStages = 4;  // tiles of a warp on their way at the same time

/// A packed weight in the device's memory.
struct DeviceWeight {
  const std::byte* data = nullptr;
  std::uint64_t group_bytes = 0;
  int n_groups = 0, n_tiles = 0;
  WeightForm form;
};

/// Rows of bf16; columns behind the last one of a weight, up to a whole tile, are zero or belong to
/// zero weights.
struct Activations {
  const std::uint16_t* data = nullptr;  // [n_rows][stride]
  int n_rows = 0, stride = 0;
};

template <WeightCode code>
inline constexpr int kParts = code == WeightCode::f16   ? 2
                              : code == WeightCode::f32 ? 3
                                                        : 1;

/// Bytes of a tile with its scales in shared memory: the header of its 256 columns comes first.
constexpr int stage_bytes(const WeightForm& form) { return form.header_bytes + form.tile_bytes; }
constexpr std::size_t multiply_shared_bytes(int stage, int n_tiles) {
  const int ring = kMultiplyWarps * kStages * stage;
  const int sums = kMultiplyWarps * kRowGroup * 8 * n_tiles * 4;
  return static_cast<std::size_t>(ring > sums ? ring : sums);
}

/// 128: bf16 numbers whose last bit counts 1.
inline constexpr Pair kBf16Bias = 0x43004300u;

/// Splits two floats into bf16 parts whose sum they are, the largest first.
template <int Parts>
DECANT_DEVICE void split_bf16(float low, float high, int p, FragmentA (&a)[Parts]) {
  DECANT_UNROLL
  for (int part = 0; part < Parts; ++part) {
    const Pair pair = pack_bf16(low, high);
    a[part].pair[p] = pair;
    low -= as_float(pair << 16);
    high -= as_float(pair & 0xFFFF0000u);
  }
}

/// Signed bytes 2 i and 2 i + 1 of a word.
DECANT_DEVICE Pair int8_to_bf16(std::uint32_t word, int i) {
  const Pair two = choose_bytes(word, 0, i == 0 ? 0x4140 : 0x4342);
  // 128 + the low seven bits, minus 128 or, if the sign bit is set, 256.
  return subtract_bf16((two & 0x007F007Fu) | kBf16Bias, (two & 0x00800080u) | kBf16Bias);
}

/// Columns 16 step .. 16 step + 15 of a tile as operand A, in one part or as a sum of several.
template <WeightCode code>
DECANT_DEVICE void load_weights(const std::byte* codes, int step, Pair offset, int lane,
                                FragmentA (&a)[kParts<code>]) {
  if constexpr (code == WeightCode::int4) {
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(codes)[lane * 4 + step];
    DECANT_UNROLL
    for (int p = 0; p < 4; ++p) {
      const Pair nibbles = word >> (4 * p) & 0x000F000Fu;
      a[0].pair[p] = subtract_bf16(nibbles | kBf16Bias, offset);
    }
  } else if constexpr (code == WeightCode::int8) {
    const Bytes8 bytes =
        reinterpret_cast<const Bytes8*>(codes)[(step / 2 * kWarp + lane) * 2 + step % 2];
    DECANT_UNROLL
    for (int p = 0; p < 4; ++p) a[0].pair[p] = int8_to_bf16(bytes.word[p / 2], p % 2);
  } else if constexpr (code == WeightCode::f32) {
    DECANT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Bytes16 four =
          reinterpret_cast<const Bytes16*>(codes)[(step * 2 + half) * kWarp + lane];
      split_bf16(as_float(four.word[0]), as_float(four.word[1]), 2 * half, a);
      split_bf16(as_float(four.word[2]), as_float(four.word[3]), 2 * half + 1, a);
    }
  } else {
    const Bytes16 eight = reinterpret_cast<const Bytes16*>(codes)[step * kWarp + lane];
    DECANT_UNROLL
    for (int p = 0; p < 4; ++p)
      if constexpr (code == WeightCode::bf16)
        a[0].pair[p] = eight.word[p];
      else
        split_bf16(from_f16(static_cast<std::uint16_t>(eight.word[p])),
                   from_f16(static_cast<std::uint16_t>(eight.word[p] >> 16)), p, a);
  }
}

/// A scale (or minimum) of row g and one of row g + 8.
struct RowPair {
  float first, second;
};
DECANT_DEVICE RowPair load_row_pair(const std::byte* f16, int g) {
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(f16);
  return {from_f16(halves[g]), from_f16(halves[g + 8])};
}
/// Times sub-scales, which are signed bytes where there is no minimum.
DECANT_DEVICE RowPair scale_row_pair(RowPair by, const std::byte* bytes, int g, bool is_signed) {
  const auto value = [&](int row) {
    const int byte = static_cast<int>(bytes[row]);
    return static_cast<float>(is_signed && byte >= 128 ? byte - 256 : byte);
  };
  return {by.first * value(g), by.second * value(g + 8)};
}

/// total += scale x sum, row by row.
DECANT_DEVICE void add_scaled(FragmentD& total, const FragmentD& sum, RowPair scale) {
  DECANT_UNROLL
  for (int i = 0; i < 4; ++i)
    total.value[i] = fused(i < 2 ? scale.first : scale.second, sum.value[i], total.value[i]);
}

/// 16 columns of a token as operand B, from column 4 j of theirs on.
DECANT_DEVICE FragmentB load_activations(const Activations& x, int token, int column) {
  if (token >= x.n_rows) return {};
  const Bytes8 four = *reinterpret_cast<const Bytes8*>(
      x.data + static_cast<std::size_t>(token) * static_cast<std::size_t>(x.stride) + column);
  return {four.word[0], four.word[1]};
}

/// total[n] += tile x tokens [first_token + 8 n, + 8).
template <WeightCode code, int N>
DECANT_DEVICE void multiply_tile(const std::byte* stage, const WeightForm& form,
                                 const Activations& x, int first_token, int first_column, int lane,
                                 FragmentD (&total)[N]) {
  constexpr Pair kOne = 0x3F803F80u;
  const FragmentA ones = {kOne, kOne, kOne, kOne};
  const int g = lane / 4, j = lane % 4;
  const std::byte* const tile = stage + form.header_bytes;
  const Pair offset = kBf16Bias | static_cast<Pair>(form.zero) | static_cast<Pair>(form.zero) << 16;
  DECANT_UNROLL
  for (int block = 0; block < 2; ++block) {  // of 32 columns
    FragmentA a[2][kParts<code>];
    DECANT_UNROLL
    for (int half = 0; half < 2; ++half)
      load_weights<code>(tile + 2 * form.scale_bytes, 2 * block + half, offset, lane, a[half]);
    const auto activations = [&](int n, int half) {
      return load_activations(x, first_token + 8 * n + g,
                              first_column + 32 * block + 16 * half + 4 * j);
    };
    if constexpr (code == WeightCode::int4 || code == WeightCode::int8) {
      const std::byte* const scales = tile + block * form.scale_bytes;
      const std::byte* const f16 = form.super ? stage : scales;
      RowPair scale[2] = {load_row_pair(f16, g), {}}, min[2] = {};
      scale[1] = scale[0];
      if (form.has_min) min[0] = min[1] = load_row_pair(f16 + 2 * kRowGroup, g);
      if (form.super)
        for (int half = 0; half < 2; ++half) {
          const int of_scale = form.halves ? half : 0, of_min = form.halves ? 2 + half : 1;
          scale[half] =
              scale_row_pair(scale[half], scales + kRowGroup * of_scale, g, !form.has_min);
          if (form.has_min)
            min[half] = scale_row_pair(min[half], scales + kRowGroup * of_min, g, false);
        }
      DECANT_UNROLL
      for (int n = 0; n < N; ++n) {
        const FragmentB b[2] = {activations(n, 0), activations(n, 1)};
        FragmentD sum{};
        mma_bf16(sum, a[0][0], b[0]);
        if (form.halves) {
          add_scaled(total[n], sum, scale[0]);
          sum = {};
        }
        mma_bf16(sum, a[1][0], b[1]);
        add_scaled(total[n], sum, scale[1]);
        if (!form.has_min) continue;
        // The sum of a block's activations is one more product, with a matrix of ones.
        sum = {};
        mma_bf16(sum, ones, b[0]);
        if (form.halves) {
          add_scaled(total[n], sum, min[0]);
          sum = {};
        }
        mma_bf16(sum, ones, b[1]);
        add_scaled(total[n], sum, min[1]);
      }
    } else {
      DECANT_UNROLL
      for (int n = 0; n < N; ++n)
        for (int half = 0; half < 2; ++half) {
          const FragmentB b = activations(n, half);
          for (int part = 0; part < kParts<code>; ++part) mma_bf16(total[n], a[half][part], b);
        }
    }
  }
}

/// This warp's share of a group's columns, streamed through its ring in shared memory.
template <WeightCode code, int N>
DECANT_DEVICE void multiply_share(const DeviceWeight& weight, int group, const Activations& x,
                                  int first_token, FragmentD (&total)[N]) {
  const int lane = thread_index() % kWarp, warp = thread_index() / kWarp;
  const WeightForm& form = weight.form;
  const std::byte* const from =
      weight.data + static_cast<std::uint64_t>(group) * weight.group_bytes;
  const int stage = stage_bytes(form);
  std::byte* const ring = shared_memory() + warp * kStages * stage;
  const int n_mine = (weight.n_tiles - warp + kMultiplyWarps - 1) / kMultiplyWarps;
  const auto start = [&](int i) {
    if (i < n_mine) {
      const int tile = warp + i * kMultiplyWarps;
      std::byte* const to = ring + i % kStages * stage;
      for (int at = 16 * lane; at < form.header_bytes; at += 16 * kWarp)
        copy_async(to + at, from + form.header_offset(tile) + at);
      for (int at = 16 * lane; at < form.tile_bytes; at += 16 * kWarp)
        copy_async(to + form.header_bytes + at, from + form.tile_offset(tile) + at);
    }
    copy_commit();  // also of nothing, so that the number of groups is the same everywhere
  };
  for (int i = 0; i < kStages - 1; ++i) start(i);
  wait_for_previous();  // weights are there from the beginning
  for (int i = 0; i < n_mine; ++i) {
    copy_wait<kStages - 2>();
    sync_warp();  // the tile is there for all lanes, and nobody reads the one before any more
    start(i + kStages - 1);
    multiply_tile<code>(ring + i % kStages * stage, form, x, first_token,
                        (warp + i * kMultiplyWarps) * kTileColumns, lane, total);
  }
}

/// 16 rows of a weight times 8 N tokens: out[n] is row thread % 16, token first_token + 8 n +
/// thread / 16. Uses all of multiply_shared_bytes.
template <int N>
DECANT_DEVICE void multiply_group(const DeviceWeight& weight, int group, const Activations& x,
                                  int first_token, float (&out)[N]) {
  FragmentD total[N] = {};
  switch (weight.form.code) {
    case WeightCode::int4:
      multiply_share<WeightCode::int4>(weight, group, x, first_token, total);
      break;
    case WeightCode::int8:
      multiply_share<WeightCode::int8>(weight, group, x, first_token, total);
      break;
    case WeightCode::bf16:
      multiply_share<WeightCode::bf16>(weight, group, x, first_token, total);
      break;
    case WeightCode::f16:
      multiply_share<WeightCode::f16>(weight, group, x, first_token, total);
      break;
    case WeightCode::f32:
      multiply_share<WeightCode::f32>(weight, group, x, first_token, total);
      break;
  }
  const int thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp;
  constexpr int kSums = kRowGroup * 8 * N;  // of a warp: [token][row]
  auto* const sums = reinterpret_cast<float*>(shared_memory());
  sync_block();  // the rings are free
  DECANT_UNROLL
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, token = 8 * n + 2 * (lane % 4) + i % 2;
      sums[warp * kSums + token * kRowGroup + row] = total[n].value[i];
    }
  sync_block();
  DECANT_UNROLL
  for (int n = 0; n < N; ++n) {
    const int at = 8 * kRowGroup * n + thread;
    out[n] = ((sums[at] + sums[kSums + at]) + sums[2 * kSums + at]) + sums[3 * kSums + at];
  }
  sync_block();  // the sums are read
}

// --------------------------------------------------------------------------------------- kernels

/// Up to three weights that read the same rows; their outputs stand side by side.
struct MultiplyArgs {
  DeviceWeight weight[3];
  const float* bias[3] = {};  // [16 n_groups] or null
  Activations x;
  float softcap = 0.0f;  // outputs become softcap tanh(output / softcap); 0: as they are
  float* out = nullptr;  // [rows][out_stride]
  int out_stride = 0;
};

/// cap tanh(x / cap), which stays below cap.
DECANT_DEVICE float soft_cap(float x, float cap) { return cap * hyperbolic_tangent(x / cap); }

/// Grid: (all groups, tokens / 8 N).
template <int N>
DECANT_KERNEL(kMultiplyThreads)
multiply_rows(MultiplyArgs a) {
  int group = static_cast<int>(block_index().x), which = 0;
  const int column = group * kRowGroup + thread_index() % kRowGroup;
  while (group >= a.weight[which].n_groups) group -= a.weight[which++].n_groups;
  const int first_token = static_cast<int>(block_index().y) * 8 * N;
  float out[N];
  multiply_group(a.weight[which], group, a.x, first_token, out);
  const float* const bias = a.bias[which];
  const float add = bias == nullptr ? 0.0f : bias[group * kRowGroup + thread_index() % kRowGroup];
  DECANT_UNROLL
  for (int n = 0; n < N; ++n) {
    const int token = first_token + 8 * n + thread_index() / kRowGroup;
    const float value = out[n] + add;
    if (token < a.x.n_rows)
      a.out[static_cast<std::size_t>(token) * static_cast<std::size_t>(a.out_stride) + column] =
          a.softcap == 0.0f ? value : soft_cap(value, a.softcap);
  }
}

struct GateUpArgs {
  DeviceWeight gate, up;
  const float *gate_bias = nullptr, *up_bias = nullptr;
  Activation activation = Activation::silu;
  Activations x;
  std::uint16_t* out = nullptr;  // [rows][out_stride] bf16
  int out_stride = 0;
};

DECANT_DEVICE float activate(Activation activation, float x) {
  if (activation == Activation::silu) return x / (1.0f + exponential(-x));
  constexpr float kSqrt2OverPi = 0.79788456080286535588f;  // Hendrycks & Gimpel 2016
  const float inner = kSqrt2OverPi * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

/// activation(gate x) (up x). Grid: (groups of one of the two, tokens / 8 N). Columns up to the
/// next whole tile become zero.
template <int N>
DECANT_KERNEL(kMultiplyThreads)
multiply_gate_up(GateUpArgs a) {
  const int group = static_cast<int>(block_index().x);
  const int first_token = static_cast<int>(block_index().y) * 8 * N;
  float gate[N], up[N];
  multiply_group(a.gate, group, a.x, first_token, gate);
  multiply_group(a.up, group, a.x, first_token, up);
  const int column = group * kRowGroup + thread_index() % kRowGroup;
  const float add_gate = a.gate_bias == nullptr ? 0.0f : a.gate_bias[column];
  const float add_up = a.up_bias == nullptr ? 0.0f : a.up_bias[column];
  const int filled = (a.gate.n_groups * kRowGroup + kTileColumns - 1) / kTileColumns * kTileColumns;
  DECANT_UNROLL
  for (int n = 0; n < N; ++n) {
    const int token = first_token + 8 * n + thread_index() / kRowGroup;
    if (token >= a.x.n_rows) continue;
    std::uint16_t* const row =
        a.out + static_cast<std::size_t>(token) * static_cast<std::size_t>(a.out_stride);
    const float value = activate(a.activation, gate[n] + add_gate) * (up[n] + add_up);
    row[column] = static_cast<std::uint16_t>(pack_bf16(value, 0.0f));
    if (group == a.gate.n_groups - 1)
      for (int c = column + kRowGroup; c < filled; c += kRowGroup) row[c] = 0;
  }
}

/// out(n, first token, tokens of a block) for the smallest N that takes all rows at once, or 8.
template <class Out>
void for_token_tiles(int n_rows, Out out) {
  if (n_rows <= 8) return out(std::integral_constant<int, 1>());
  if (n_rows <= 16) return out(std::integral_constant<int, 2>());
  if (n_rows <= 32) return out(std::integral_constant<int, 4>());
  out(std::integral_constant<int, 8>());
}

}  // namespace decant::detail::DECANT_CUDA_SPACE
