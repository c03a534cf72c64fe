// Attention of a few queries over the pages of a sequence (part of kernels.inl.hpp).
//
// Positions are taken in splits of 256. Inside a split there is no running state: all scores, their
// maximum, e^(score - maximum), the sum (lane = position mod 16, pages ascending), the weighted
// values (one chain for each element, positions ascending). Splits are merged in ascending order.
// What a query does not see is skipped. So the bits do not depend on how queries share a tile.

inline constexpr float kUnseen = -3.4e38f;  // e^(kUnseen - max) is exactly 0

struct KvF32 {
  static DECANT_VEC F load(const std::byte* p, std::size_t element) {
    return f_load(reinterpret_cast<const float*>(p) + element);
  }
  static constexpr std::size_t kBytes = 4;
};
struct KvF16 {
  static DECANT_VEC F load(const std::byte* p, std::size_t element) {
    return f_from_f16(p + 2 * element);
  }
  static constexpr std::size_t kBytes = 2;
};
struct KvBF16 {
  static DECANT_VEC F load(const std::byte* p, std::size_t element) {
    return f_from_bf16(p + 2 * element);
  }
  static constexpr std::size_t kBytes = 2;
};

/// int8 is widened to f32, which is exact: keys on their way into registers, values page by page.
struct KvInt8 : KvF32 {};
template <class Kv>
inline constexpr bool kWidened = false;
template <>
inline constexpr bool kWidened<KvInt8> = true;

/// int8 values [16][value_dim] to f32.
DECANT_KERNEL void widen_values(const std::byte* codes, const std::byte* scales, int value_dim,
                                float* to) {
  float scale[kPageTokens];
  for (int d = 0; d < value_dim; d += 16) {
    if (d % kScaleChannels == 0)
      f_store(scale, f_from_f16(scales + 2 * kPageTokens * (d / kScaleChannels)));
    const int n = value_dim - d < 16 ? value_dim - d : 16;
    for (int p = 0; p < kPageTokens; ++p) {
      const std::byte* const from = codes + p * value_dim + d;
      float* const row = to + p * value_dim + d;
      if (n == 16) {
        f_store(row, f_mul(f_from_i(i_from_i8(from)), f_set(scale[p])));
        continue;
      }
      std::int8_t part[16] = {};
      __builtin_memcpy(part, from, static_cast<std::size_t>(n));
      f_store_part(row, f_mul(f_from_i(i_from_i8(part)), f_set(scale[p])), n);
    }
  }
}

/// Where the values of pages in use at the same time are widened to: behind the queries, scores and
/// outputs.
DECANT_VEC float* widened(const AttendArgs& a, int page) {
  return a.scratch + kQueries * (a.key_dim + kCpuSplit + kPageTokens + a.value_dim) +
         page * kPageTokens * a.value_dim;
}
template <class Kv>
DECANT_VEC const std::byte* page_values_of(const AttendArgs& a, int page, [[maybe_unused]] int at) {
  const std::int32_t where = a.block_table[page];
  const std::byte* const values = a.kv->values(where, a.slot, a.kv_head);
  if constexpr (!kWidened<Kv>) {
    return values;
  } else {
    float* const to = widened(a, at);
    widen_values(values, a.kv->value_scales(where, a.slot, a.kv_head), a.value_dim, to);
    return reinterpret_cast<const std::byte*>(to);
  }
}

/// What is read after what is being read: the next pages of keys, after the last ones the first
/// pages of values, after those the next split's keys.
DECANT_VEC void prefetch_keys(const AttendArgs& a, int page) {
  const std::byte* const at = a.kv->keys(a.block_table[page], a.slot, a.kv_head);
  prefetch(at, at + kv_element_bytes(a.kv->key_type) *
                        static_cast<std::size_t>(a.key_dim * kPageTokens));
}
DECANT_VEC void prefetch_values(const AttendArgs& a, int page) {
  const std::byte* const at = a.kv->values(a.block_table[page], a.slot, a.kv_head);
  prefetch(at, at + kv_element_bytes(a.kv->value_type) *
                        static_cast<std::size_t>(a.value_dim * kPageTokens));
}

/// N queries that go through the pages together. One pointer for all of them: twelve would not stay
/// in registers.
template <int N>
struct QueryTile {
  float* q;                    // [key_dim][N]
  float* scores;               // [page of the split][N][16], later the weights
  float* output;               // [N][value_dim] of the split
  int see_from[N], see_to[N];  // positions
};

/// One channel of the keys of a page: acc[N] += q[N] k, acc of a query `Stride` apart.
template <int N, int Stride>
DECANT_VEC void add_channel(const float* q, F k, F* acc) {
  q = reloaded(q);
  DECANT_UNROLL(16)
  for (int i = 0; i < N; ++i) acc[i * Stride] = f_fma(f_set(q[i]), k, acc[i * Stride]);
}
/// The same of the four channels that lie together in int8 keys.
template <int N, int P, int Byte>
DECANT_VEC void add_channels_of_int8(const float* q, const I* four, const F* step, F* acc) {
  DECANT_UNROLL(4)
  for (int p = 0; p < P; ++p)
    add_channel<N, P>(q, f_mul(f_from_i(i_byte<Byte>(four[p])), step[p]), acc + p);
  if constexpr (Byte < 3) add_channels_of_int8<N, P, Byte + 1>(q + N, four, step, acc);
}

/// Scores of N queries against P pages, to scores[P][N][16]. `scales`: of int8 keys.
template <class Kv, int N, int P>
DECANT_KERNEL void page_scores(const std::byte* const* keys,
                               [[maybe_unused]] const std::byte* const* scales, int key_dim,
                               float scale, const float* q, float* scores) {
  F acc[N * P];
  DECANT_UNROLL(32)
  for (int i = 0; i < N * P; ++i) acc[i] = f_set(0.0f);
  if constexpr (kWidened<Kv>) {
    for (int d = 0; d < key_dim; d += 4, q += 4 * N) {
      I four[P];
      F step[P];
      DECANT_UNROLL(4)
      for (int p = 0; p < P; ++p) {
        four[p] = i_load(keys[p] + d * kPageTokens);
        step[p] = f_from_f16(scales[p] + 2 * kPageTokens * (d / kScaleChannels));
      }
      add_channels_of_int8<N, P, 0>(q, four, step, acc);
    }
  } else {
    for (int d = 0; d < key_dim; ++d, q += N) {
      DECANT_UNROLL(4)
      for (int p = 0; p < P; ++p)
        add_channel<N, P>(q, Kv::load(keys[p], static_cast<std::size_t>(d) * kPageTokens), acc + p);
    }
  }
  DECANT_UNROLL(16)
  for (int i = 0; i < N; ++i)
    for (int p = 0; p < P; ++p)
      f_store(scores + (p * N + i) * kPageTokens, f_mul(acc[i * P + p], f_set(scale)));
}

template <class Kv, int N>
DECANT_KERNEL void split_scores(const AttendArgs& a, const QueryTile<N>& tile, int first_page,
                                int last_page) {
  // Several pages at once keep enough chains in flight when there are few queries.
  constexpr int kAtOnce = kQueries / N > 4 ? 4 : kQueries / N > 1 ? kQueries / N : 1;
  const std::byte *keys[kAtOnce], *scales[kAtOnce];
  float* scores = tile.scores;
  int page = first_page;
  for (; page + kAtOnce <= last_page + 1; page += kAtOnce, scores += kAtOnce * N * kPageTokens) {
    for (int p = 0; p < kAtOnce; ++p) {
      keys[p] = a.kv->keys(a.block_table[page + p], a.slot, a.kv_head);
      scales[p] = a.kv->key_scales(a.block_table[page + p], a.slot, a.kv_head);
      if (page + kAtOnce + p <= last_page) prefetch_keys(a, page + kAtOnce + p);
    }
    page_scores<Kv, N, kAtOnce>(keys, scales, a.key_dim, a.scale, tile.q, scores);
  }
  if constexpr (kAtOnce > 1)
    for (; page <= last_page; ++page, scores += N * kPageTokens) {
      keys[0] = a.kv->keys(a.block_table[page], a.slot, a.kv_head);
      scales[0] = a.kv->key_scales(a.block_table[page], a.slot, a.kv_head);
      page_scores<Kv, N, 1>(keys, scales, a.key_dim, a.scale, tile.q, scores);
    }
}

/// output[d .. d + 16 V) += the weighted values of positions [from, to), counted from the first of
/// the given pages, of each query. All: every query sees all of them.
template <class Kv, int N, int V, bool All>
DECANT_KERNEL void page_values(const std::byte* const* pages, int n_pages, int value_dim, int d,
                               const float* weights, float* output, const int* from,
                               const int* to) {
  F acc[N * V];
  DECANT_UNROLL(32)
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) acc[i * V + v] = f_load(output + i * value_dim + d + 16 * v);
  for (int page = 0; page < n_pages; ++page, weights += N * kPageTokens)
    for (int p = 0; p < kPageTokens; ++p) {
      F x[V];
      DECANT_UNROLL(4)
      for (int v = 0; v < V; ++v)
        x[v] = Kv::load(pages[page], static_cast<std::size_t>(p * value_dim + d + 16 * v));
      DECANT_UNROLL(16)
      for (int i = 0; i < N; ++i) {
        if constexpr (!All)
          if (page * kPageTokens + p < from[i] || page * kPageTokens + p >= to[i]) continue;
        const F w = f_set(weights[i * kPageTokens + p]);
        DECANT_UNROLL(4)
        for (int v = 0; v < V; ++v) acc[i * V + v] = f_fma(w, x[v], acc[i * V + v]);
      }
    }
  DECANT_UNROLL(32)
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) f_store(output + i * value_dim + d + 16 * v, acc[i * V + v]);
}

template <class Kv, int N>
DECANT_KERNEL void split_values(const AttendArgs& a, const QueryTile<N>& tile, int first_page,
                                int last_page) {
  constexpr int kAtOnce = kAccumulators / N >= 4 ? 4 : kAccumulators / N >= 2 ? 2 : 1;
  const int value_dim = a.value_dim;
  int all_from = 0, all_to = (last_page + 1) * kPageTokens;  // positions that every query sees
  for (int i = 0; i < N; ++i) {
    if (tile.see_from[i] > all_from) all_from = tile.see_from[i];
    if (tile.see_to[i] < all_to) all_to = tile.see_to[i];
  }
  const float* weights = tile.scores;
  for (int page = first_page, n = 1; page <= last_page; page += n, weights += n * N * kPageTokens) {
    const int start = page * kPageTokens;
    const bool all = start >= all_from && start + kPageTokens <= all_to;
    n = all ? (all_to - start) / kPageTokens : 1;
    if (n > kCpuMaxPages) n = kCpuMaxPages;
    const std::byte* values[kCpuMaxPages];
    for (int p = 0; p < n; ++p) {
      values[p] = page_values_of<Kv>(a, page + p, p);
      if (page + n + p <= last_page) prefetch_values(a, page + n + p);
    }
    int from[N], to[N];
    for (int i = 0; i < N; ++i) {
      from[i] = tile.see_from[i] > start ? tile.see_from[i] - start : 0;
      to[i] = tile.see_to[i] < start + n * kPageTokens ? tile.see_to[i] - start : n * kPageTokens;
    }
    int d = 0;
    for (; d + 16 * kAtOnce <= value_dim; d += 16 * kAtOnce)
      if (all)
        page_values<Kv, N, kAtOnce, true>(values, n, value_dim, d, weights, tile.output, from, to);
      else
        page_values<Kv, N, kAtOnce, false>(values, n, value_dim, d, weights, tile.output, from, to);
    if constexpr (kAtOnce > 1)
      for (; d + 16 <= value_dim; d += 16)
        page_values<Kv, N, 1, false>(values, n, value_dim, d, weights, tile.output, from, to);
    if (d == value_dim) continue;
    const int left = value_dim - d;
    for (int i = 0; i < N; ++i) {
      float* const output = tile.output + i * value_dim + d;
      F acc = f_load_part(output, left);
      for (int at = from[i]; at < to[i]; ++at) {
        const int p = at % kPageTokens;
        std::byte part[16 * Kv::kBytes] = {};
        __builtin_memcpy(
            part,
            values[at / kPageTokens] + Kv::kBytes * static_cast<std::size_t>(p * value_dim + d),
            Kv::kBytes * static_cast<std::size_t>(left));
        const float weight = weights[(at / kPageTokens * N + i) * kPageTokens + p];
        acc = f_fma(f_set(weight), Kv::load(part, 0), acc);
      }
      f_store_part(output, acc, left);
    }
  }
}

DECANT_VEC float highest(F a) {
  float v[16];
  f_store(v, a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) v[i] = v[i] > v[i + step] ? v[i] : v[i + step];
  return v[0];
}

/// One query's scores of pages, `stride` apart and positions [lo, hi) of them seen, to weights;
/// their maximum and sum.
DECANT_KERNEL void split_weights(float* scores, int stride, int n_pages, int lo, int hi, float* max,
                                 float* sum) {
  for (int p = 0; p < lo; ++p) scores[p / kPageTokens * stride + p % kPageTokens] = kUnseen;
  for (int p = hi; p < n_pages * kPageTokens; ++p)
    scores[p / kPageTokens * stride + p % kPageTokens] = kUnseen;
  F top = f_set(kUnseen);
  for (int page = 0; page < n_pages; ++page) top = f_max(f_load(scores + page * stride), top);
  *max = highest(top);
  const F m = f_set(*max);
  F total = f_set(0.0f);
  for (int page = 0; page < n_pages; ++page) {
    const F e = f_exp(f_sub(f_load(scores + page * stride), m));
    f_store(scores + page * stride, e);
    total = f_add(total, e);
  }
  *sum = f_sum(total);
}

DECANT_KERNEL void merge(float* max, float* sum, float* output, float other_max, float other_sum,
                         const float* other_output, int value_dim) {
  if (other_sum == 0.0f) return;
  if (*sum == 0.0f) {
    *max = other_max;
    *sum = other_sum;
    __builtin_memcpy(output, other_output, static_cast<std::size_t>(value_dim) * sizeof(float));
    return;
  }
  const float top = other_max > *max ? other_max : *max;
  const float before = exp_one(*max - top), now = exp_one(other_max - top);
  *max = top;
  *sum = *sum * before + other_sum * now;
  int d = 0;
  for (; d + 16 <= value_dim; d += 16)
    f_store(output + d, f_add(f_mul(f_load(output + d), f_set(before)),
                              f_mul(f_load(other_output + d), f_set(now))));
  for (; d < value_dim; ++d) output[d] = output[d] * before + other_output[d] * now;
}

/// Queries [first, first + N) of the call.
template <int N>
DECANT_KERNEL void attend_tile(const AttendArgs& a, int first) {
  QueryTile<N> tile;
  tile.q = a.scratch;
  tile.scores = tile.q + kQueries * a.key_dim;
  tile.output = tile.scores + kQueries * (kCpuSplit + kPageTokens);
  int lowest = 1 << 30, highest_seen = 0;
  for (int i = 0; i < N; ++i) {
    const int query = first + i, position = a.first_position + query / a.group;
    tile.see_from[i] = a.window == 0 || position < a.window ? 0 : position - a.window + 1;
    tile.see_to[i] = position + 1;
    if (tile.see_from[i] < lowest) lowest = tile.see_from[i];
    if (tile.see_to[i] > highest_seen) highest_seen = tile.see_to[i];
    const float* const q = a.q + static_cast<std::size_t>(query / a.group) * a.q_stride +
                           static_cast<std::size_t>(query % a.group * a.key_dim);
    for (int d = 0; d < a.key_dim; ++d) tile.q[d * N + i] = q[d];
  }
  for (int split = a.first_split; split < a.first_split + a.n_splits; ++split) {
    const int begin = split * kCpuSplit;
    const int from = begin > lowest ? begin : lowest;
    const int to = begin + kCpuSplit < highest_seen ? begin + kCpuSplit : highest_seen;
    if (from >= to) continue;
    const int first_page = from / kPageTokens, last_page = (to - 1) / kPageTokens;
    const int pages_begin = first_page * kPageTokens;
    switch (a.kv->key_type) {
      case KvType::f16: split_scores<KvF16, N>(a, tile, first_page, last_page); break;
      case KvType::bf16: split_scores<KvBF16, N>(a, tile, first_page, last_page); break;
      case KvType::int8: split_scores<KvInt8, N>(a, tile, first_page, last_page); break;
      default: split_scores<KvF32, N>(a, tile, first_page, last_page);
    }
    for (int page = first_page; page <= last_page && page < first_page + kCpuMaxPages; ++page)
      prefetch_values(a, page);
    if (a.softcap != 0.0f)
      soft_cap(tile.scores, (last_page - first_page + 1) * N * kPageTokens, a.softcap);
    float max[N], sum[N];
    for (int i = 0; i < N; ++i) {
      const int lo = from > tile.see_from[i] ? from : tile.see_from[i],
                hi = to < tile.see_to[i] ? to : tile.see_to[i];
      max[i] = sum[i] = 0.0f;
      if (lo < hi)
        split_weights(tile.scores + i * kPageTokens, N * kPageTokens, last_page - first_page + 1,
                      lo - pages_begin, hi - pages_begin, &max[i], &sum[i]);
    }
    __builtin_memset(tile.output, 0, static_cast<std::size_t>(N * a.value_dim) * sizeof(float));
    switch (a.kv->value_type) {
      case KvType::f16: split_values<KvF16, N>(a, tile, first_page, last_page); break;
      case KvType::bf16: split_values<KvBF16, N>(a, tile, first_page, last_page); break;
      case KvType::int8: split_values<KvInt8, N>(a, tile, first_page, last_page); break;
      default: split_values<KvF32, N>(a, tile, first_page, last_page);
    }
    if (split + 1 < a.first_split + a.n_splits && to < highest_seen)
      prefetch_keys(a, last_page + 1);
    for (int i = 0; i < N; ++i)
      merge(a.max + first + i, a.sum + first + i,
            a.output + static_cast<std::size_t>(first + i) * static_cast<std::size_t>(a.value_dim),
            max[i], sum[i], tile.output + i * a.value_dim, a.value_dim);
  }
}

DECANT_KERNEL void attend(const AttendArgs& a) {
  const int n = a.n_rows * a.group;
  for (int i = 0; i < n; ++i) a.sum[i] = 0.0f;
  int first = 0;
  for (; first + kQueries <= n; first += kQueries) attend_tile<kQueries>(a, first);
  for (; first + 4 <= n; first += 4) attend_tile<4>(a, first);
  switch (n - first) {
    case 3: return attend_tile<3>(a, first);
    case 2: return attend_tile<2>(a, first);
    case 1: return attend_tile<1>(a, first);
    default: return;
  }
}
