// Every kernel on inputs at random. Compiled twice, for the GPU (on_gpu.cu) and for the executor on
// the processor (device_test.cpp), which compares what the two leave.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <type_traits>

#include "cuda/attend.cuh"
#include "support/file_rows.hpp"

namespace decant_test {

/// What a case left. A row alone must have the bits that it has among others.
struct Outcome {
  std::string name;
  std::vector<float> values;
  bool same_bits = true;
  // How far two executions may be apart: this share of the largest value.
  double tolerance = 0;
};

inline std::vector<float> normal_floats(std::size_t n, unsigned seed) {
  std::mt19937 dice(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(dice);
  return out;
}
inline std::vector<std::uint16_t> as_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> out;
  for (const float v : x) out.push_back(decant::detail::f32_to_bf16(v));
  return out;
}

}  // namespace decant_test

namespace decant::detail::DECANT_CUDA_SPACE {

using decant_test::FileRows;
using decant_test::Outcome;

inline std::size_t usize(int n) { return static_cast<std::size_t>(n); }

/// Inputs to the device, outputs back; the memory is the device's until its end.
template <class T>
T* to_device(Device& device, const std::vector<T>& from) {
  std::byte* const to = device.take(from.size() * sizeof(T) + 1);
  if (to == nullptr) return nullptr;
  device.copy_in(to, from.data(), from.size() * sizeof(T));
  static_cast<void>(device.finish());
  return reinterpret_cast<T*>(to);
}
template <class T>
std::vector<float> from_device(Device& device, const T* from, std::size_t n) {
  std::vector<T> raw(n);
  device.copy_out(raw.data(), from, n * sizeof(T));
  static_cast<void>(device.finish());
  std::vector<float> out;
  for (const T x : raw) {
    if constexpr (std::is_same_v<T, float>)
      out.push_back(x);
    else if constexpr (sizeof(T) == 2)
      out.push_back(bf16_to_f32(x));
    else
      out.push_back(static_cast<float>(std::to_integer<int>(x)));
  }
  return out;
}
inline bool begins_with(const std::vector<float>& all, const std::vector<float>& begin) {
  return std::memcmp(all.data(), begin.data(), begin.size() * sizeof(float)) == 0;
}

inline DeviceWeight weight_to_device(Device& device, TensorType type, int rows, int cols) {
  const FileRows from(type, rows, cols, 7);
  DeviceWeight weight;
  weight.form = weight_form(type);
  weight.group_bytes = cuda_group_bytes(type, cols);
  weight.n_groups = (rows + kRowGroup - 1) / kRowGroup;
  weight.n_tiles = (cols + kTileColumns - 1) / kTileColumns;
  std::vector<std::byte> packed(usize(weight.n_groups) *
                                static_cast<std::size_t>(weight.group_bytes));
  for (int g = 0; g < weight.n_groups; ++g) {
    const int first = g * kRowGroup;
    cuda_pack_group(type, from.bytes.data() + static_cast<std::uint64_t>(first) * from.row_bytes,
                    from.row_bytes, rows - first < kRowGroup ? rows - first : kRowGroup, cols,
                    packed.data() + static_cast<std::uint64_t>(g) * weight.group_bytes);
  }
  weight.data = to_device(device, packed);
  return weight;
}

inline void add_multiply_cases(Device& device, std::vector<Outcome>& outcomes) {
  const int rows = 40, cols = 512, most = 70, width = 48;
  const std::uint16_t* const x =
      to_device(device, decant_test::as_bf16(decant_test::normal_floats(usize(most * cols), 1)));
  const float* const bias = to_device(device, decant_test::normal_floats(usize(width), 2));
  for (const TensorType type : decant_test::kTypes) {
    const DeviceWeight weight = weight_to_device(device, type, rows, cols);
    const DeviceWeight up = weight_to_device(device, TensorType::Q8_0, rows, cols);
    std::vector<float> alone, gated_alone;
    for (const int n : {1, 8, 9, 17, 33, most}) {
      MultiplyArgs args;
      args.weight[0] = weight;
      args.bias[0] = bias;
      args.x = {x, n, cols};
      args.out_stride = width;
      args.out = to_device(device, std::vector<float>(usize(n * width), NAN));
      GateUpArgs gate;
      gate.gate = weight;
      gate.up = up;
      gate.activation = n % 2 == 0 ? Activation::silu : Activation::gelu_tanh;
      gate.x = args.x;
      gate.out_stride = kTileColumns;
      gate.out = to_device(device, std::vector<std::uint16_t>(usize(n * kTileColumns), 0xFFFF));
      for_token_tiles(n, [&](auto tiles) {
        const auto columns = static_cast<unsigned>((n + 8 * tiles() - 1) / (8 * tiles()));
        const int stage = stage_bytes(weight.form), other = stage_bytes(up.form);
        launch(multiply_rows<tiles()>, {static_cast<unsigned>(weight.n_groups), columns, 1},
               kMultiplyThreads, multiply_shared_bytes(stage, tiles()), device.stream, args);
        launch(multiply_gate_up<tiles()>, {static_cast<unsigned>(weight.n_groups), columns, 1},
               kMultiplyThreads, multiply_shared_bytes(stage > other ? stage : other, tiles()),
               device.stream, gate);
      });
      const std::string name =
          std::string(tensor_type_info(type)->name) + " x " + std::to_string(n);
      Outcome out{"multiply_rows " + name, from_device(device, args.out, usize(n * width)), true,
                  1e-5};
      if (n == 1) alone = out.values;
      out.same_bits = begins_with(out.values, alone);
      outcomes.push_back(out);
      Outcome gated{"multiply_gate_up " + name,
                    from_device(device, gate.out, usize(n * kTileColumns)), true, 0x1p-7};
      if (n == 1) gated_alone = gated.values;
      if (n % 2 == 1) gated.same_bits = begins_with(gated.values, gated_alone);
      outcomes.push_back(gated);
    }
    EmbedArgs embed;
    embed.table = weight;
    embed.scale = 3.5f;
    embed.n_embd = cols;
    embed.rows = to_device<DeviceRow>(device, {{39, 131071, 0, 0, 0}, {0, 5, 0, 0, 0}});
    embed.out = to_device(device, std::vector<float>(usize(2 * cols), NAN));
    embed.ropes[0].turns = to_device<double>(device, {0.15915494309189535, 0.01, 1e-7});
    embed.ropes[0].out = to_device(device, std::vector<float>(12, NAN));
    embed.ropes[0].dims = 6;
    launch(embed_rows, {2, 1, 1}, kRowThreads, 0, device.stream, embed);
    const std::string name = "embed_rows " + std::string(tensor_type_info(type)->name);
    outcomes.push_back({name, from_device(device, embed.out, usize(2 * cols)), true, 0});
    outcomes.push_back({name + " turns", from_device(device, embed.ropes[0].out, 12), true, 3e-7});
  }
}

inline void add_norm_cases(Device& device, std::vector<Outcome>& outcomes) {
  const int n = 1000, stride = 1024, rows = 3;
  for (const int kind : {0, 1, 2}) {  // nothing left; left; left and a post-norm
    const auto numbers = decant_test::normal_floats(usize(rows * n), 3);
    NormArgs args;
    args.residual = to_device(device, numbers);
    if (kind > 0) args.pending = to_device(device, decant_test::normal_floats(usize(rows * n), 4));
    if (kind > 1) args.post_norm = to_device(device, decant_test::normal_floats(usize(n), 5));
    args.norm = to_device(device, decant_test::normal_floats(usize(n), 6));
    args.out = to_device(device, std::vector<std::uint16_t>(usize(rows * stride), 0xFFFF));
    args.n = args.pending_stride = n;
    args.out_stride = stride;
    args.eps = 1e-5f;
    launch(norm_rows, {rows, 1, 1}, kRowThreads, kNormSharedBytes, device.stream, args);
    const std::string name = "norm_rows " + std::to_string(kind);
    outcomes.push_back({name, from_device(device, args.out, usize(rows * stride)), true, 0x1p-7});
    outcomes.push_back(
        {name + " stream", from_device(device, args.residual, usize(rows * n)), true, 1e-6});
  }
}

/// A pool of one slot in which head `h` of page `p` lies at p * page_stride + h * head_stride.
struct Pages {
  KvView view;
  std::vector<std::byte> bytes;
  Pages(KvType type, int n_pages, int n_kv_heads, int dim, int window) {
    const auto size = static_cast<std::uint64_t>(kPageTokens * dim) * kv_element_bytes(type);
    const std::uint64_t scales = kv_scale_bytes(type, dim);
    view.value_offset = size;
    view.key_scale_offset = 2 * size;
    view.value_scale_offset = 2 * size + scales;
    view.head_stride = 2 * size + 2 * scales;
    view.layer_stride = view.page_stride =
        view.head_stride * static_cast<std::uint64_t>(n_kv_heads);
    view.key_type = view.value_type = type;
    view.window = window;
    view.n_kv_heads = n_kv_heads;
    view.key_dim = view.value_dim = dim;
    bytes.resize(usize(n_pages) * static_cast<std::size_t>(view.page_stride), std::byte{0xFF});
  }
};

/// Heads of n positions into pages, and then attention over them.
inline void add_attend_cases(Device& device, int n, std::vector<Outcome>& outcomes) {
  struct Case {
    int group, dim, window;
  };
  for (const KvType type : {KvType::f16, KvType::bf16, KvType::f32, KvType::int8})
    for (const Case& c :
         {Case{1, 64, 0}, Case{3, 80, 40}, Case{4, 128, 0}, Case{8, 256, 300}, Case{16, 16, 0}}) {
      const int n_kv_heads = 2, n_heads = c.group * n_kv_heads;
      const int width = (n_heads + 2 * n_kv_heads) * c.dim, n_pages = (n + 15) / 16;
      Pages pages(type, n_pages, n_kv_heads, c.dim, c.window);
      pages.view.pages = to_device(device, pages.bytes);
      std::vector<DeviceRow> rows;
      for (int r = 0; r < n; ++r) rows.push_back({0, r, 0, n_pages, 2 * r});
      std::vector<std::int32_t> table;
      for (int p = 0; p < n_pages; ++p) table.push_back(n_pages - 1 - p);
      std::vector<float> turns;
      for (int r = 0; r < n; ++r)
        for (int i = 0; i < c.dim / 2; ++i) {
          const double angle = 0.01 * r * (i + 1);
          turns.push_back(static_cast<float>(std::cos(angle)));
          turns.push_back(static_cast<float>(std::sin(angle)));
        }
      PlaceArgs place;
      place.rows = to_device(device, rows);
      place.tables = to_device(device, table);
      place.qkv = to_device(device, decant_test::normal_floats(usize(n * width), 11));
      place.qkv_stride = width;
      place.n_heads = n_heads;
      place.n_kv_heads = n_kv_heads;
      place.q_norm = to_device(device, decant_test::normal_floats(usize(c.dim), 12));
      place.k_norm = place.q_norm;
      place.eps = 1e-6f;
      place.rope = to_device(device, turns);
      place.rope_dims = c.dim;
      place.rope_pairs = c.group % 2 == 0 ? RopePairs::halves : RopePairs::neighbours;
      place.q = to_device(device, std::vector<float>(usize(n * n_heads * c.dim), NAN));
      place.kv = pages.view;
      launch(place_heads,
             {static_cast<unsigned>(n), static_cast<unsigned>(n_heads + 2 * n_kv_heads), 1}, kWarp,
             kPlaceSharedBytes, device.stream, place);

      AttendArgs attend;
      attend.rows = place.rows;
      attend.tables = place.tables;
      attend.q = place.q;
      attend.n_heads = n_heads;
      attend.group = c.group;
      attend.scale = 0.3f;
      attend.softcap = c.dim == 128 ? 5.0f : 0.0f;
      attend.kv = pages.view;
      const auto parts = usize(2 * n * n_heads);
      attend.max = to_device(device, std::vector<float>(parts, NAN));
      attend.sum = to_device(device, std::vector<float>(parts, NAN));
      attend.output = to_device(device, std::vector<float>(parts * usize(c.dim), NAN));
      MergeArgs merge;
      merge.rows = attend.rows;
      merge.max = attend.max;
      merge.sum = attend.sum;
      merge.output = attend.output;
      merge.n_heads = n_heads;
      merge.value_dim = c.dim;
      merge.window = c.window;
      merge.out_stride = (n_heads * c.dim + 63) / 64 * 64;
      merge.out =
          to_device(device, std::vector<std::uint16_t>(usize(n * merge.out_stride), 0xFFFF));
      // Some rows of the beginning, of the middle and of the end, a few at a time or one at a time;
      // the latter with fewer queries to a block.
      const auto attended = [&](int rows_of_tile, auto tile_columns) {
        std::vector<float> out;
        for (const auto& [first, end] : {std::pair{0, 4}, {n * 5 / 6, n * 5 / 6 + 9}, {n - 6, n}}) {
          std::vector<AttendTile> tiles;
          for (int r = first; r < end; r += rows_of_tile)
            tiles.push_back({r, end - r < rows_of_tile ? end - r : rows_of_tile});
          attend.tiles = to_device(device, tiles);
          launch(attend_tiles<tile_columns()>,
                 {2, static_cast<unsigned>(n_kv_heads), static_cast<unsigned>(tiles.size())},
                 kAttendThreads, attend_shared_bytes<tile_columns()>(pages.view), device.stream,
                 attend);
          merge.first_row = first;
          launch(merge_splits,
                 {static_cast<unsigned>(n_heads), static_cast<unsigned>(end - first), 1},
                 kMergeThreads, 0, device.stream, merge);
          const auto rows_out = from_device(device, merge.out + usize(first * merge.out_stride),
                                            usize((end - first) * merge.out_stride));
          out.insert(out.end(), rows_out.begin(), rows_out.end());
        }
        return out;
      };
      const std::string name = " type " + std::to_string(static_cast<int>(type)) + " group " +
                               std::to_string(c.group) + " channels " + std::to_string(c.dim) +
                               " window " + std::to_string(c.window);
      outcomes.push_back({"place_heads q" + name,
                          from_device(device, place.q, usize(n * n_heads * c.dim)), true, 1e-5});
      Outcome many{"attend_tiles" + name, attended(16 / c.group, std::integral_constant<int, 2>()),
                   true, 0x1p-6};
      if (c.group <= 8)
        many.same_bits = begins_with(many.values, attended(1, std::integral_constant<int, 1>()));
      outcomes.push_back(many);
    }
}

/// Errors: those of Device. `small`: shorter sequences, for a sanitizer.
inline Result<std::vector<Outcome>> run_cases(bool small) {
  Device device;
  DECANT_TRY(device.open(0, nullptr));
  const CurrentDevice current = device.use();
  std::vector<Outcome> outcomes;
  add_multiply_cases(device, outcomes);
  add_norm_cases(device, outcomes);
  add_attend_cases(device, small ? 70 : 300, outcomes);
  DECANT_TRY(device.finish());
  return Result<std::vector<Outcome>>(std::move(outcomes));
}

}  // namespace decant::detail::DECANT_CUDA_SPACE
