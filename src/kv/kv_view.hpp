// What kernels see of the KV cache: pages of 16 positions, strides, and how to find one.
//
// A page belongs to one group of layers and holds, for each of the group's layers and KV heads,
//   K [key_dim][16]    (lane = position in the page, so that scores of 16 positions go in parallel)
//   V [16][value_dim]
// Position p of a sequence lies in the page `block_table[p / 16]`, slot p % 16.
#pragma once

#include <decant/decant.hpp>

namespace decant::detail {

inline constexpr int kPageTokens = 16;

/// The bytes of one stored key or value element.
constexpr std::size_t kv_element_bytes(KvType type) { return type == KvType::f32 ? 4 : 2; }

/// Layers that keep the same positions in pages of the same shape.
struct KvGroupSpec {
  std::vector<int> layers;  // ascending; a layer's slot is its index here
  int window = 0;           // positions a token sees, itself included; 0: all before it
  int n_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  bool same_shape(const KvGroupSpec& o) const {
    return window == o.window && n_kv_heads == o.n_kv_heads && key_dim == o.key_dim &&
           value_dim == o.value_dim;
  }
};

/// One group's pool. Plain data; valid while the KvCache lives.
struct KvView {
  std::byte* pages = nullptr;      // [n_pages][n_layers][n_kv_heads]{K, V}
  std::uint64_t page_stride = 0;   // bytes between pages
  std::uint64_t layer_stride = 0;  // bytes between layer slots of a page
  std::uint64_t head_stride = 0;   // bytes between KV heads of a layer slot
  std::uint64_t value_offset = 0;  // bytes from K to V
  KvType key_type = KvType::f32, value_type = KvType::f32;
  int window = 0, n_kv_heads = 0, key_dim = 0, value_dim = 0;

  std::byte* keys(std::int32_t page, int slot, int head) const {
    return pages + static_cast<std::uint64_t>(page) * page_stride +
           static_cast<std::uint64_t>(slot) * layer_stride +
           static_cast<std::uint64_t>(head) * head_stride;
  }
  std::byte* values(std::int32_t page, int slot, int head) const {
    return keys(page, slot, head) + value_offset;
  }
};

}  // namespace decant::detail
