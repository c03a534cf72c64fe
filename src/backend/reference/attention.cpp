// See attention.hpp.
#include "base/fp_contract.hpp"

#include "backend/reference/attention.hpp"

#include <algorithm>
#include <cstring>

#include "backend/kv_int8.hpp"
#include "base/float16.hpp"
#include "base/math.hpp"

namespace decant::detail {

AttentionScratch::AttentionScratch(int max_group, int max_key_dim, int max_value_dim)
    : page(static_cast<std::size_t>(std::max(max_key_dim, max_value_dim)) * kPageTokens),
      scores(static_cast<std::size_t>(kAttentionRows * max_group) * kAttentionSplit),
      max(static_cast<std::size_t>(kAttentionRows * max_group)),
      sum(static_cast<std::size_t>(kAttentionRows * max_group)),
      output(static_cast<std::size_t>(kAttentionRows * max_group * max_value_dim)) {}

/// A page's int8 keys as [key_dim][16], its values as [16][value_dim].
static void attention_widen_int8(const std::byte* codes, const std::byte* scales, bool keys,
                                 int dim, double* to) {
  for (int d = 0; d < dim; ++d)
    for (int t = 0; t < kPageTokens; ++t)
      to[keys ? d * kPageTokens + t : t * dim + d] = static_cast<double>(
          load_int8(codes, scales, keys ? int8_key_index(d, t) : int8_value_index(d, t, dim),
                    int8_scale_index(d, t)));
}

std::uint64_t AttentionScratch::bytes(int max_group, int max_key_dim, int max_value_dim) {
  const auto queries = static_cast<std::uint64_t>(kAttentionRows * max_group);
  return sizeof(double) *
         (static_cast<std::uint64_t>(std::max(max_key_dim, max_value_dim)) * kPageTokens +
          queries * (kAttentionSplit + 2 + static_cast<std::uint64_t>(max_value_dim)));
}

/// A page's keys or values in the order of their type; `scales` only of int8.
static void attention_widen(const std::byte* from, const std::byte* scales, KvType type, bool keys,
                            int dim, double* to) {
  if (type == KvType::int8) return attention_widen_int8(from, scales, keys, dim, to);
  const std::size_t n = static_cast<std::size_t>(dim) * kPageTokens;
  for (std::size_t i = 0; i < n; ++i) {
    if (type != KvType::f32) {
      std::uint16_t half;
      std::memcpy(&half, from + 2 * i, sizeof half);
      to[i] = static_cast<double>(type == KvType::f16 ? f16_to_f32(half) : bf16_to_f32(half));
    } else {
      float single;
      std::memcpy(&single, from + 4 * i, sizeof single);
      to[i] = static_cast<double>(single);
    }
  }
}

/// Sixteen lanes to one value by a fixed tree.
static double attention_tree_sum(double* lanes) {
  for (int width = kPageTokens / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

void attend_reference(const AttentionQuery& query, AttentionScratch& s) noexcept {
  const LayerSpec& layer = *query.layer;
  const int group = layer.group(), key_dim = layer.key_dim, value_dim = layer.value_dim;
  const int n = query.n_rows * group;  // queries: [row][head of the group]
  const int last = query.first_position + query.n_rows - 1;
  // Row r sees positions [first_visible(r), first_position + r].
  const auto first_visible = [&](int row) {
    return layer.window == 0 ? 0 : std::max(0, query.first_position + row - layer.window + 1);
  };
  std::fill_n(s.sum.begin(), n, 0.0);

  for (int begin = first_visible(0) / kAttentionSplit * kAttentionSplit; begin <= last;
       begin += kAttentionSplit) {
    const int end = std::min(begin + kAttentionSplit, last + 1);
    const int first_page = std::max(begin, first_visible(0)) / kPageTokens;
    const int last_page = (end - 1) / kPageTokens;

    for (int page = first_page; page <= last_page; ++page) {
      const std::int32_t at_page = query.block_table[page];
      const std::byte* keys = query.kv->keys(at_page, layer.kv_slot, query.kv_head);
      attention_widen(keys, query.kv->key_scales(at_page, layer.kv_slot, query.kv_head),
                      query.kv->key_type, true, key_dim, s.page.data());
      for (int i = 0; i < n; ++i) {
        const float* q = query.q + static_cast<std::size_t>(i / group) * query.q_stride +
                         (query.kv_head * group + i % group) * key_dim;
        double dot[kPageTokens] = {};
        for (int d = 0; d < key_dim; ++d) {
          const double qd = static_cast<double>(q[d]);
          for (int t = 0; t < kPageTokens; ++t)
            dot[t] += qd * s.page[static_cast<std::size_t>(d * kPageTokens + t)];
        }
        double* scores =
            &s.scores[static_cast<std::size_t>(i * kAttentionSplit + page * kPageTokens - begin)];
        for (int t = 0; t < kPageTokens; ++t)
          scores[t] = soft_cap_d(dot[t] * layer.attention_scale, layer.attention_softcap);
      }
    }

    // The split's max and exponentials for each query; then its outputs, page by page.
    for (int i = 0; i < n; ++i) {
      const int from = std::max(begin, first_visible(i / group));
      const int to = std::min(end, query.first_position + i / group + 1);
      if (from >= to) continue;  // an empty split leaves the state untouched
      const auto at = static_cast<std::size_t>(i);
      double* scores = &s.scores[at * kAttentionSplit];
      double max = scores[from - begin];
      for (int p = from + 1; p < to; ++p) max = std::max(max, scores[p - begin]);
      double lanes[kPageTokens] = {};
      for (int p = from; p < to; ++p) {
        scores[p - begin] = exp_d(scores[p - begin] - max);
        lanes[p % kPageTokens] += scores[p - begin];
      }
      const double sum = attention_tree_sum(lanes);
      double* output = &s.output[at * static_cast<std::size_t>(value_dim)];
      if (s.sum[at] == 0.0) {  // the first split that this query sees
        s.max[at] = max;
        s.sum[at] = sum;
        std::fill_n(output, value_dim, 0.0);
        continue;
      }
      // (max, sum, output) of before and of this split, both brought to the larger max. This
      // split's share goes into its weights, so that its output adds up in place.
      const double merged = std::max(s.max[at], max);
      const double before = exp_d(s.max[at] - merged), now = exp_d(max - merged);
      s.max[at] = merged;
      s.sum[at] = s.sum[at] * before + sum * now;
      for (int d = 0; d < value_dim; ++d) output[d] *= before;
      for (int p = from; p < to; ++p) scores[p - begin] *= now;
    }
    for (int page = first_page; page <= last_page; ++page) {
      const std::int32_t at_page = query.block_table[page];
      const std::byte* values = query.kv->values(at_page, layer.kv_slot, query.kv_head);
      attention_widen(values, query.kv->value_scales(at_page, layer.kv_slot, query.kv_head),
                      query.kv->value_type, false, value_dim, s.page.data());
      for (int i = 0; i < n; ++i) {
        const int row = i / group;
        const int from = std::max(page * kPageTokens, std::max(begin, first_visible(row)));
        const int to =
            std::min({page * kPageTokens + kPageTokens, end, query.first_position + row + 1});
        double* output =
            &s.output[static_cast<std::size_t>(i) * static_cast<std::size_t>(value_dim)];
        for (int p = from; p < to; ++p) {
          const double weight = s.scores[static_cast<std::size_t>(i * kAttentionSplit + p - begin)];
          const double* v = &s.page[static_cast<std::size_t>(p % kPageTokens) *
                                    static_cast<std::size_t>(value_dim)];
          for (int d = 0; d < value_dim; ++d) output[d] += weight * v[d];
        }
      }
    }
  }

  for (int i = 0; i < n; ++i) {
    float* out = query.out + static_cast<std::size_t>(i / group) * query.out_stride +
                 (query.kv_head * group + i % group) * value_dim;
    const double* output =
        &s.output[static_cast<std::size_t>(i) * static_cast<std::size_t>(value_dim)];
    for (int d = 0; d < value_dim; ++d)
      out[d] = static_cast<float>(output[d] / s.sum[static_cast<std::size_t>(i)]);
  }
}

}  // namespace decant::detail
