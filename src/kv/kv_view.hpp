// What kernels see of the KV cache: pages of 16 positions, strides, and how to find one.
//
// A page belongs to one group of layers and holds, for each of the group's layers and KV heads,
//   K [key_dim][16]    (lane = position in the page, so that scores of 16 positions go in parallel)
//   V [16][value_dim]
// int8 keys lie [key_dim / 4][16][4] instead, and behind K and V of a head stand their scales, f16
// [ceil(dim / 64)][16]: one for each token and 64 channels.
// Position p of a sequence lies in the page `block_table[p / 16]`, slot p % 16.
#pragma once

#include <decant/decant.hpp>

#include <cstring>

namespace decant::detail {

inline constexpr int kPageTokens = 16;

inline constexpr int kScaleChannels = 64;  // that share a scale, in int8

/// The bytes of one stored key or value element, without scales.
constexpr std::size_t kv_element_bytes(KvType type) {
  return type == KvType::f32 ? 4 : type == KvType::int8 ? 1 : 2;
}
/// The bytes of a page's scales for one head.
constexpr std::size_t kv_scale_bytes(KvType type, int dim) {
  return type == KvType::int8
             ? static_cast<std::size_t>((dim + kScaleChannels - 1) / kScaleChannels) * kPageTokens *
                   2
             : 0;
}

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
  std::uint64_t key_scale_offset = 0, value_scale_offset = 0;  // bytes from K to the scales
  KvType key_type = KvType::f32, value_type = KvType::f32;
  int window = 0, n_kv_heads = 0, key_dim = 0, value_dim = 0;

  constexpr std::byte* keys(std::int32_t page, int slot, int head) const {
    return pages + static_cast<std::uint64_t>(page) * page_stride +
           static_cast<std::uint64_t>(slot) * layer_stride +
           static_cast<std::uint64_t>(head) * head_stride;
  }
  constexpr std::byte* values(std::int32_t page, int slot, int head) const {
    return keys(page, slot, head) + value_offset;
  }
  constexpr std::byte* key_scales(std::int32_t page, int slot, int head) const {
    return keys(page, slot, head) + key_scale_offset;
  }
  constexpr std::byte* value_scales(std::int32_t page, int slot, int head) const {
    return keys(page, slot, head) + value_scale_offset;
  }
};

/// How whole pages are moved where they lie. Here: in the host's memory.
class PageAccess {
 public:
  virtual ~PageAccess() = default;
  virtual void copy_page(const KvView& view, std::int32_t from, std::int32_t to) noexcept {
    std::memcpy(view.keys(to, 0, 0), view.keys(from, 0, 0),
                static_cast<std::size_t>(view.page_stride));
  }
  /// A page's bytes, [page_stride].
  virtual void read_page(const KvView& view, std::int32_t page, std::byte* to) noexcept {
    std::memcpy(to, view.keys(page, 0, 0), static_cast<std::size_t>(view.page_stride));
  }
  virtual void write_page(const KvView& view, std::int32_t page, const std::byte* from) noexcept {
    std::memcpy(view.keys(page, 0, 0), from, static_cast<std::size_t>(view.page_stride));
  }
};

}  // namespace decant::detail
