// Paged attention with grouped-query heads and sliding windows, in double precision.
//
// Splits are [256 i, 256 i + 256) of the absolute position. Inside a split there is no running
// state: all visible scores, their max, the exponentials, their sum (lane = position mod 16, pages
// ascending, then a fixed tree) and the output (positions ascending). Splits merge in ascending
// order as (max, sum, output); why that is exact: Milakov & Gimelshein 2018, Dao et al. 2022.
// Masked positions are skipped, never multiplied by zero. A query's result depends on its own
// position alone, not on the rows beside it.
#pragma once

#include <vector>

#include "backend/backend.hpp"

namespace decant::detail {

inline constexpr int kAttentionSplit = 256;
inline constexpr int kAttentionRows = 16;  // rows of one sequence that share a look at the pages

/// Working memory of one worker.
struct AttentionScratch {
  AttentionScratch(int max_group, int max_key_dim, int max_value_dim);
  /// What one takes.
  static std::uint64_t bytes(int max_group, int max_key_dim, int max_value_dim);
  std::vector<double> page;    // [max(key_dim, value_dim)][16]: a page's keys or values, widened
  std::vector<double> scores;  // [rows][group][256]
  std::vector<double> max;     // [rows][group]: of the splits so far
  std::vector<double> sum;     // [rows][group]
  std::vector<double> output;  // [rows][group][value_dim]
};

struct AttentionQuery {
  const LayerSpec* layer;
  const KvView* kv;
  const std::int32_t* block_table;  // [pages]
  int kv_head;
  int n_rows;  // at most kAttentionRows, at positions first_position, + 1, ...
  int first_position;
  const float* q;  // [n_rows] rows of q_stride: [n_heads][key_dim]
  std::size_t q_stride;
  float* out;  // [n_rows] rows of out_stride: [n_heads][value_dim]
  std::size_t out_stride;
};

/// Attention of all query heads of one KV head. Reads pages only, also for the rows' own positions.
void attend_reference(const AttentionQuery& query, AttentionScratch& scratch) noexcept;

}  // namespace decant::detail
