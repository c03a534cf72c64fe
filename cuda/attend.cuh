// Attention over pages, for decode and prefill alike. A block takes a tile of queries (a few
// adjacent rows of one sequence, all heads that share a KV head), one KV head, and the 256
// positions of one split, in two passes: scores; then, with their maximum known, exponentials, sum
// and output. Splits are those of the absolute position and are merged in their order, so a query's
// result does not depend on what stands beside it.
//
// Scores are K (16 positions x 16 channels) times Q (16 channels x 8 queries), outputs V (16
// channels x 16 positions) times P (16 positions x 8 queries). Q and P are rounded to the type of
// the keys and values: f16 to f16, all others to bf16. Codes of int8 are exact in bf16, their
// scales multiply scores and P in f32; f32 keys and values enter as the sum of two bf16.
#pragma once

#include "cuda/rows.cuh"

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kAttendThreads = 128, kAttendWarps = kAttendThreads / kWarp;
inline constexpr int kSplit = 256;       // positions
inline constexpr int kAttendStages = 3;  // steps of a warp on their way
inline constexpr int kStepUnits = 4;
inline constexpr float kUnseen = -__builtin_huge_valf();

/// Adjacent rows of a sequence, n_rows * group <= 8 N.
struct AttendTile {
  std::int32_t first_row, n_rows;
};

struct AttendArgs {
  const DeviceRow* rows = nullptr;
  const AttendTile* tiles = nullptr;
  const std::int32_t* tables = nullptr;
  const float* q = nullptr;  // [rows][n_heads][key_dim]
  int n_heads = 0, group = 0;
  float scale = 1.0f, softcap = 0.0f;  // softcap 0: none
  KvView kv;
  int kv_group = 0, kv_slot = 0;
  // Of row r, split s: [rows[r].part + s][n_heads], the last x value_dim.
  float *max = nullptr, *sum = nullptr, *output = nullptr;

  constexpr int first_seen(int position) const {
    return kv.window == 0 || position < kv.window ? 0 : position - kv.window + 1;
  }
};

/// 16 x 16 keys or values in shared memory: rows of 16 channels of keys, of 16 positions of values.
/// Rows of halves are shifted so that eight of them that are loaded together lie in different
/// banks.
constexpr int unit_bytes(KvType type) {
  return type == KvType::int8 ? 256 : type == KvType::f32 ? 1024 : 512 + 64;
}
DECANT_DEVICE int half_offset(int row, int half) {
  return row * 32 + 16 * (half ^ (row >> 2 & 1)) + 64 * (row >> 3);
}

template <KvType type>
inline constexpr int kKvParts = type == KvType::f32 ? 2 : 1;

template <KvType type>
DECANT_DEVICE Pair pack_for(float low, float high) {
  if constexpr (type == KvType::f16)
    return pack_f16(low, high);
  else
    return pack_bf16(low, high);
}
template <KvType type>
DECANT_DEVICE void multiply_add(FragmentD& d, const FragmentA (&a)[kKvParts<type>],
                                const FragmentB& b) {
  for (const FragmentA& part : a)
    if constexpr (type == KvType::f16)
      mma_f16(d, part, b);
    else
      mma_bf16(d, part, b);
}

/// Channels [16 u, 16 u + 16) of a page's keys on their way to shared memory.
template <KvType type>
DECANT_DEVICE void start_keys(const std::byte* keys, int u, std::byte* unit, int lane) {
  const std::byte* const from = keys + u * 256 * static_cast<int>(kv_element_bytes(type));
  if constexpr (type == KvType::int8) {
    if (lane < 16) copy_async(unit + 16 * lane, from + 16 * lane);
  } else if constexpr (type == KvType::f32) {
    copy_async(unit + 16 * lane, from + 16 * lane);
    copy_async(unit + 16 * (lane + kWarp), from + 16 * (lane + kWarp));
  } else {
    copy_async(unit + half_offset(lane / 2, lane % 2), from + 16 * lane);
  }
}
/// The same channels of its values; slots outside [first, end) become zeros.
template <KvType type>
DECANT_DEVICE void start_values(const std::byte* values, int dim, int u, int first, int end,
                                std::byte* unit, int lane) {
  constexpr int kPieces = static_cast<int>(kv_element_bytes(type));  // of 16 bytes, in a row
  for (int i = lane; i < 16 * kPieces; i += kWarp) {
    const int slot = i / kPieces, piece = i % kPieces;
    std::byte* const to = kPieces == 2 ? unit + half_offset(slot, piece) : unit + 16 * i;
    copy_async(to, values + (slot * dim + 16 * u) * kPieces + 16 * piece,
               slot >= first && slot < end);
  }
}

/// A unit as operand A, transposed: pair 0 holds rows 4 j, 4 j + 1 of column g, pair 1 of column
/// g + 8, pairs 2 and 3 the rows 4 j + 2, 4 j + 3. Operand B in the same order is four neighbours.
template <KvType type, bool keys>
DECANT_DEVICE void load_unit(const std::byte* unit, int lane, FragmentA (&a)[kKvParts<type>]) {
  const int g = lane / 4, j = lane % 4;
  if constexpr (type == KvType::int8) {
    for (int half = 0; half < 2; ++half) {
      std::uint32_t word = 0;
      if constexpr (keys)
        word = reinterpret_cast<const std::uint32_t*>(unit)[j * 16 + g + 8 * half];
      else
        for (int i = 0; i < 4; ++i)
          word |= static_cast<std::uint32_t>(unit[(4 * j + i) * 16 + g + 8 * half]) << (8 * i);
      a[0].pair[half] = int8_to_bf16(word, 0);
      a[0].pair[2 + half] = int8_to_bf16(word, 1);
    }
  } else if constexpr (type == KvType::f32) {
    const auto* const value = reinterpret_cast<const float*>(unit);
    DECANT_UNROLL
    for (int p = 0; p < 4; ++p) {
      const int row = 4 * j + p / 2 * 2, column = g + p % 2 * 8;
      split_bf16(value[row * 16 + column], value[(row + 1) * 16 + column], p, a);
    }
  } else {
    const int r = lane % 8, m = lane / 8;
    a[0] = load_transposed(unit + half_offset(r / 2 * 4 + r % 2 + m / 2 * 2, m % 2));
  }
}

/// What the parts of the kernel know.
template <int N>
struct AttendWork {
  int lane, warp;
  int split_begin;  // position
  int first_page, last_page;
  int seen_first, seen_end;  // positions that some query sees
  int kv_head;
  int q_stride;               // halves
  std::uint16_t* q;           // [8 N][q_stride]
  float* scores;              // [8 N][kScoreStride], later P
  std::byte* ring;            // of this warp
  const std::int32_t* pages;  // the block table
  static constexpr int kScoreStride = kSplit + 8;
};

template <int N>
constexpr std::size_t attend_shared_bytes(const KvView& kv) {
  const int key = unit_bytes(kv.key_type), value = unit_bytes(kv.value_type);
  const int ring = kAttendWarps * kAttendStages * kStepUnits * (key > value ? key : value);
  return static_cast<std::size_t>(ring + 8 * N * AttendWork<N>::kScoreStride * 4 +
                                  8 * N * (kv.key_dim + 8) * 2);
}

/// Pass one: this warp's pages (every fourth one) times all queries. A step is 64 channels of one.
template <KvType type, int N>
DECANT_DEVICE void attend_scores(const AttendArgs& a, const AttendWork<N>& w) {
  const int g = w.lane / 4, j = w.lane % 4;
  const int n_units = a.kv.key_dim / 16, n_chunks = (n_units + kStepUnits - 1) / kStepUnits;
  const int my_first = w.first_page + ((w.warp - w.first_page) & (kAttendWarps - 1));
  const int n_pages = my_first > w.last_page ? 0 : (w.last_page - my_first) / kAttendWarps + 1;
  const int n_steps = n_pages * n_chunks;
  constexpr int kStepBytes = kStepUnits * unit_bytes(type);
  const auto page_of = [&](int step) { return my_first + step / n_chunks * kAttendWarps; };
  const auto start = [&](int step) {
    if (step < n_steps) {
      const std::byte* const keys = a.kv.keys(w.pages[page_of(step)], a.kv_slot, w.kv_head);
      std::byte* const to = w.ring + step % kAttendStages * kStepBytes;
      const int first = step % n_chunks * kStepUnits;
      for (int u = 0; u < kStepUnits && first + u < n_units; ++u)
        start_keys<type>(keys, first + u, to + u * unit_bytes(type), w.lane);
    }
    copy_commit();
  };
  for (int i = 0; i < kAttendStages - 1; ++i) start(i);
  FragmentD total[N] = {};
  for (int step = 0; step < n_steps; ++step) {
    copy_wait<kAttendStages - 2>();
    sync_warp();
    start(step + kAttendStages - 1);
    const std::byte* const units = w.ring + step % kAttendStages * kStepBytes;
    const int chunk = step % n_chunks;
    FragmentD part[N] = {};  // of 64 channels, which share a scale in int8
    for (int u = 0; u < kStepUnits && chunk * kStepUnits + u < n_units; ++u) {
      FragmentA keys[kKvParts<type>];
      load_unit<type, true>(units + u * unit_bytes(type), w.lane, keys);
      DECANT_UNROLL
      for (int n = 0; n < N; ++n) {
        const Bytes8 q = *reinterpret_cast<const Bytes8*>(w.q + (8 * n + g) * w.q_stride +
                                                          (chunk * kStepUnits + u) * 16 + 4 * j);
        multiply_add<type>(part[n], keys, {q.word[0], q.word[1]});
      }
    }
    const int page = page_of(step);
    RowPair scale = {1.0f, 1.0f};
    if constexpr (type == KvType::int8)
      scale = load_row_pair(
          a.kv.key_scales(w.pages[page], a.kv_slot, w.kv_head) + chunk * kPageTokens * 2, g);
    DECANT_UNROLL
    for (int n = 0; n < N; ++n) {
      if (chunk == 0) total[n] = {};
      add_scaled(total[n], part[n], scale);
      if (chunk < n_chunks - 1) continue;
      for (int i = 0; i < 4; ++i)
        w.scores[(8 * n + 2 * j + i % 2) * w.kScoreStride + page * kPageTokens - w.split_begin + g +
                 i / 2 * 8] = total[n].value[i] * a.scale;
    }
  }
}

/// A query's scores become exponentials, by one warp; masked ones become zero.
template <int N>
DECANT_DEVICE void attend_weights(const AttendArgs& a, const AttendWork<N>& w, int query,
                                  int position, std::size_t part) {
  float* const scores = w.scores + query * w.kScoreStride;
  const int first = a.first_seen(position) - w.split_begin, end = position + 1 - w.split_begin;
  const auto score_of = [&](float x) { return a.softcap == 0.0f ? x : soft_cap(x, a.softcap); };
  float value[kSplit / kWarp], max = kUnseen;
  DECANT_UNROLL
  for (int i = 0; i < kSplit / kWarp; ++i) {
    const int at = w.lane + i * kWarp;
    value[i] = at >= first && at < end ? score_of(scores[at]) : kUnseen;
    max = value[i] > max ? value[i] : max;
  }
  max = warp_max(max);
  float sum = 0.0f;
  DECANT_UNROLL
  for (int i = 0; i < kSplit / kWarp; ++i) {
    const int at = w.lane + i * kWarp;
    const bool seen = at >= first && at < end;
    value[i] = seen ? exponential(value[i] - max) : 0.0f;
    sum += value[i];
    scores[at] = value[i];
  }
  sum = warp_sum(sum);
  if (w.lane != 0) return;
  a.max[part] = max;
  a.sum[part] = sum;  // 0: this query sees nothing of the split
}

/// Pass two: this warp's channels (every fourth 16) of all pages, ascending, times all queries.
template <KvType type, int N>
DECANT_DEVICE void attend_values(const AttendArgs& a, const AttendWork<N>& w, int n_queries) {
  const int g = w.lane / 4, j = w.lane % 4, dim = a.kv.value_dim;
  const int n_mine = (dim / 16 - w.warp + kAttendWarps - 1) / kAttendWarps;  // <= kStepUnits
  const int n_steps = w.last_page - w.first_page + 1;
  constexpr int kStepBytes = kStepUnits * unit_bytes(type);
  const auto start = [&](int step) {
    if (step < n_steps) {
      const int page = w.first_page + step, begin = page * kPageTokens;
      const std::byte* const values = a.kv.values(w.pages[page], a.kv_slot, w.kv_head);
      std::byte* const to = w.ring + step % kAttendStages * kStepBytes;
      for (int u = 0; u < n_mine; ++u)
        start_values<type>(values, dim, w.warp + u * kAttendWarps, w.seen_first - begin,
                           w.seen_end - begin, to + u * unit_bytes(type), w.lane);
    }
    copy_commit();
  };
  for (int i = 0; i < kAttendStages - 1; ++i) start(i);
  FragmentD total[kStepUnits][N] = {};
  for (int step = 0; step < n_steps; ++step) {
    copy_wait<kAttendStages - 2>();
    sync_warp();
    start(step + kAttendStages - 1);
    const std::byte* const units = w.ring + step % kAttendStages * kStepBytes;
    const int page = w.first_page + step;
    float p[N][4];
    DECANT_UNROLL
    for (int n = 0; n < N; ++n) {
      const Bytes16 four = *reinterpret_cast<const Bytes16*>(
          w.scores + (8 * n + g) * w.kScoreStride + page * kPageTokens - w.split_begin + 4 * j);
      for (int i = 0; i < 4; ++i) p[n][i] = as_float(four.word[i]);
    }
    DECANT_UNROLL
    for (int u = 0; u < kStepUnits; ++u) {
      if (u >= n_mine) break;
      FragmentA values[kKvParts<type>];
      load_unit<type, false>(units + u * unit_bytes(type), w.lane, values);
      float scale[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if constexpr (type == KvType::int8) {
        const std::byte* const scales =
            a.kv.value_scales(w.pages[page], a.kv_slot, w.kv_head) +
            (w.warp + u * kAttendWarps) * 16 / kScaleChannels * kPageTokens * 2;
        for (int i = 0; i < 4; ++i)
          scale[i] = from_f16(reinterpret_cast<const std::uint16_t*>(scales)[4 * j + i]);
      }
      DECANT_UNROLL
      for (int n = 0; n < N; ++n) {
        float weight[4];
        // The scale of a slot that nobody wrote may be anything.
        for (int i = 0; i < 4; ++i) weight[i] = p[n][i] == 0.0f ? 0.0f : p[n][i] * scale[i];
        multiply_add<type>(
            total[u][n], values,
            {pack_for<type>(weight[0], weight[1]), pack_for<type>(weight[2], weight[3])});
      }
    }
  }
  const int first_row = a.tiles[block_index().z].first_row;
  DECANT_UNROLL
  for (int u = 0; u < kStepUnits; ++u)
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 4; ++i) {
        const int query = 8 * n + 2 * j + i % 2;
        if (u >= n_mine || query >= n_queries) continue;
        const int channel = (w.warp + u * kAttendWarps) * 16 + g + i / 2 * 8;
        const int part = a.rows[first_row + query / a.group].part + w.split_begin / kSplit;
        const std::size_t at = row_offset(part, a.n_heads) +
                               static_cast<std::size_t>(w.kv_head * a.group) +
                               static_cast<std::size_t>(query % a.group);
        a.output[at * static_cast<std::size_t>(dim) + static_cast<std::size_t>(channel)] =
            total[u][n].value[i];
      }
}

/// Grid: (splits that a tile may see, n_kv_heads, tiles).
template <int N>
DECANT_KERNEL(kAttendThreads)
attend_tiles(AttendArgs a) {
  wait_for_previous();
  const AttendTile tile = a.tiles[block_index().z];
  const DeviceRow first = a.rows[tile.first_row];
  AttendWork<N> w;
  w.lane = thread_index() % kWarp;
  w.warp = thread_index() / kWarp;
  w.kv_head = static_cast<int>(block_index().y);
  w.split_begin =
      (a.first_seen(first.position) / kSplit + static_cast<int>(block_index().x)) * kSplit;
  const int end = first.position + tile.n_rows;  // of what the last row sees
  const int seen = a.first_seen(first.position);
  w.seen_first = seen > w.split_begin ? seen : w.split_begin;
  w.seen_end = end < w.split_begin + kSplit ? end : w.split_begin + kSplit;
  if (w.seen_first >= w.seen_end) return;
  w.first_page = w.seen_first / kPageTokens;
  w.last_page = (w.seen_end - 1) / kPageTokens;
  w.pages = a.tables + first.table + a.kv_group * first.n_pages;
  w.q_stride = a.kv.key_dim + 8;
  w.scores = reinterpret_cast<float*>(shared_memory());
  w.q = reinterpret_cast<std::uint16_t*>(w.scores + 8 * N * w.kScoreStride);
  const int key = unit_bytes(a.kv.key_type), value = unit_bytes(a.kv.value_type);
  w.ring = reinterpret_cast<std::byte*>(w.q + 8 * N * w.q_stride) +
           w.warp * kAttendStages * kStepUnits * (key > value ? key : value);

  const int n_queries = tile.n_rows * a.group;
  const bool f16 = a.kv.key_type == KvType::f16;
  for (int i = thread_index(); i < 8 * N * a.kv.key_dim; i += kAttendThreads) {
    const int query = i / a.kv.key_dim, channel = i % a.kv.key_dim;
    float x = 0.0f;
    if (query < n_queries)
      x = a.q[row_offset(tile.first_row + query / a.group, a.n_heads * a.kv.key_dim) +
              static_cast<std::size_t>((w.kv_head * a.group + query % a.group) * a.kv.key_dim +
                                       channel)];
    w.q[query * w.q_stride + channel] =
        static_cast<std::uint16_t>(f16 ? pack_f16(x, 0.0f) : pack_bf16(x, 0.0f));
  }
  sync_block();
  switch (a.kv.key_type) {
    case KvType::f16: attend_scores<KvType::f16>(a, w); break;
    case KvType::bf16: attend_scores<KvType::bf16>(a, w); break;
    case KvType::int8: attend_scores<KvType::int8>(a, w); break;
    default: attend_scores<KvType::f32>(a, w);
  }
  sync_block();
  for (int query = w.warp; query < 8 * N; query += kAttendWarps) {
    if (query >= n_queries) {
      for (int at = w.lane; at < kSplit; at += kWarp) w.scores[query * w.kScoreStride + at] = 0.0f;
      continue;
    }
    const int row = tile.first_row + query / a.group;
    attend_weights(a, w, query, first.position + query / a.group,
                   row_offset(a.rows[row].part + w.split_begin / kSplit, a.n_heads) +
                       static_cast<std::size_t>(w.kv_head * a.group + query % a.group));
  }
  sync_block();
  switch (a.kv.value_type) {
    case KvType::f16: attend_values<KvType::f16>(a, w, n_queries); break;
    case KvType::bf16: attend_values<KvType::bf16>(a, w, n_queries); break;
    case KvType::int8: attend_values<KvType::int8>(a, w, n_queries); break;
    default: attend_values<KvType::f32>(a, w, n_queries);
  }
}

struct MergeArgs {
  const DeviceRow* rows = nullptr;
  int first_row = 0;
  const float *max = nullptr, *sum = nullptr, *output = nullptr;
  int n_heads = 0, value_dim = 0, window = 0;
  std::uint16_t* out = nullptr;  // [rows][out_stride] bf16
  int out_stride = 0;
};
inline constexpr int kMergeThreads = 64;

/// A query's splits, in ascending order. Grid: (n_heads, rows). Columns behind the last head become
/// zero.
DECANT_KERNEL(kMergeThreads) merge_splits(MergeArgs a) {
  wait_for_previous();
  const int head = static_cast<int>(block_index().x);
  const int at = a.first_row + static_cast<int>(block_index().y);
  const DeviceRow row = a.rows[at];
  const int seen = a.window == 0 || row.position < a.window ? 0 : row.position - a.window + 1;
  std::uint16_t* const out = a.out + row_offset(at, a.out_stride);
  for (int d = thread_index(); d < a.value_dim; d += kMergeThreads) {
    float max = 0.0f, sum = 0.0f, output = 0.0f;
    for (int split = seen / kSplit; split < (row.position + kSplit) / kSplit; ++split) {
      const std::size_t part =
          row_offset(row.part + split, a.n_heads) + static_cast<std::size_t>(head);
      const float other = a.sum[part];
      if (other == 0.0f) continue;
      const float value =
          a.output[part * static_cast<std::size_t>(a.value_dim) + static_cast<std::size_t>(d)];
      const float top = sum == 0.0f || a.max[part] > max ? a.max[part] : max;
      const float before = sum == 0.0f ? 0.0f : exponential(max - top);
      const float now = exponential(a.max[part] - top);
      sum = sum * before + other * now;
      output = output * before + value * now;
      max = top;
    }
    out[head * a.value_dim + d] =
        static_cast<std::uint16_t>(pack_bf16(sum == 0.0f ? 0.0f : output / sum, 0.0f));
  }
  if (head == a.n_heads - 1)
    for (int c = a.n_heads * a.value_dim + thread_index(); c < a.out_stride; c += kMergeThreads)
      out[c] = 0;
}

}  // namespace decant::detail::DECANT_CUDA_SPACE
