// Split attention on the executor, against softmax(scale q.k) v in double precision over the
// visible positions, of the keys and values as the pages hold them and the queries rounded as the
// kernel does; with soft caps also softmax(cap tanh(scale q.k / cap)) v. Whatever a query must not
// see is NaN in the pages, or large.
#include "backend/kv_int8.hpp"
#include "cuda_host/support.hpp"
#include "kv/kv_cache.hpp"

using namespace decant_test;
using decant::KvType;

namespace {

struct Chunk {  // rows of a sequence of its own
  int first_position, n_rows;
};
struct AttendCase {
  int n_heads, n_kv_heads, key_dim, value_dim;
  KvType keys, values;
  int window;
  std::vector<Chunk> chunks;
  float softcap = 0.0f;
  int n() const {
    int rows = 0;
    for (const Chunk& c : chunks) rows += c.n_rows;
    return rows;
  }
};

/// What the pages hold where no query may look: NaN, or large numbers of all types.
constexpr int kNan = 0xFF, kLarge = 0x7A;

/// Pages, tables and queries of a case, the same ones for the same seed and position.
struct Attended {
  AttendCase c;
  std::shared_ptr<KvCache> cache;  // lays the pages out
  std::vector<Bytes16> pool;
  KvView view;
  std::vector<DeviceRow> rows;
  std::vector<std::int32_t> tables;
  std::vector<float> q;
  int n_parts = 0;

  Attended(const AttendCase& of, unsigned seed, int unseen = kNan) : c(of) {
    const KvGroupSpec group{{0, 1}, c.window, c.n_kv_heads, c.key_dim, c.value_dim};
    int n_pages = 0;
    for (const Chunk& chunk : c.chunks)
      n_pages += (chunk.first_position + chunk.n_rows - 1) / kPageTokens + 1;
    cache = KvCache::create(std::span(&group, 1), c.keys, c.values,
                            static_cast<std::uint64_t>(n_pages) * kPageTokens)
                .value();
    view = cache->views()[0];
    // Not a byte more than the pages: the address sanitizer sees what reads beyond.
    pool.resize(static_cast<std::size_t>(view.page_stride) / 16 * usize(n_pages));
    view.pages = reinterpret_cast<std::byte*>(pool.data());
    std::memset(view.pages, unseen, pool.size() * 16);
    int next = n_pages;  // pages from the last one down
    for (std::size_t i = 0; i < c.chunks.size(); ++i) {
      const Chunk& chunk = c.chunks[i];
      const int end = chunk.first_position + chunk.n_rows, pages = (end - 1) / kPageTokens + 1;
      const int table = static_cast<int>(tables.size());
      for (int p = 0; p < pages; ++p) tables.push_back(--next);
      const int seen = c.window == 0 ? 0 : std::max(0, chunk.first_position - c.window + 1);
      for (int p = seen; p < end; ++p) write(tables[usize(table + p / kPageTokens)], p, seed);
      for (int r = 0; r < chunk.n_rows; ++r) {
        const int position = chunk.first_position + r;
        rows.push_back({0, position, table, pages, n_parts});
        n_parts += (end - 1) / kSplit + 1;  // a tile writes its splits for all its rows
        const auto row = random_floats(usize(c.n_heads * c.key_dim),
                                       seed * 31 + static_cast<unsigned>(position));
        q.insert(q.end(), row.begin(), row.end());
      }
    }
  }

  void write(std::int32_t page, int p, unsigned seed) {
    const int slot = p % kPageTokens;
    auto numbers = random_floats(usize(c.n_kv_heads * (c.key_dim + c.value_dim)),
                                 seed * 7919 + static_cast<unsigned>(p));
    float* x = numbers.data();
    const auto put = [&](int head, int dim, bool is_key, KvType type) {
      std::byte* const to = is_key ? view.keys(page, 1, head) : view.values(page, 1, head);
      if (type == KvType::int8)
        store_int8(x, dim, slot, is_key, to,
                   is_key ? view.key_scales(page, 1, head) : view.value_scales(page, 1, head));
      else
        for (int i = 0; i < dim; ++i) {
          const auto at = usize(is_key ? i * kPageTokens + slot : slot * dim + i);
          const std::uint16_t half = type == KvType::f16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
          if (type == KvType::f32)
            std::memcpy(to + 4 * at, &x[i], 4);
          else
            std::memcpy(to + 2 * at, &half, 2);
        }
      x += dim;
    };
    for (int head = 0; head < c.n_kv_heads; ++head) {
      put(head, c.key_dim, true, c.keys);
      put(head, c.value_dim, false, c.values);
    }
  }
  /// Adds 3 keys[s] to all scores of split s: channel 0 of f16 keys and of queries.
  void lift(const std::vector<float>& keys) {
    for (const Chunk& chunk : c.chunks)
      for (int p = 0; p < chunk.first_position + chunk.n_rows; ++p)
        for (int head = 0; head < c.n_kv_heads; ++head) {
          std::byte* const to = view.keys(tables[usize(p / kPageTokens)], 1, head);
          const std::uint16_t half = f32_to_f16(keys[usize(p / kSplit)]);
          std::memcpy(to + 2 * (p % kPageTokens), &half, 2);
        }
    for (std::size_t at = 0; at < q.size(); at += usize(c.key_dim)) q[at] = 10.0f;
  }
  double read(const DeviceRow& row, int p, int head, int i, bool is_key) const {
    const std::int32_t page = tables[usize(row.table + p / kPageTokens)];
    const int slot = p % kPageTokens, dim = is_key ? c.key_dim : c.value_dim;
    const std::byte* const from = is_key ? view.keys(page, 1, head) : view.values(page, 1, head);
    const KvType type = is_key ? c.keys : c.values;
    if (type == KvType::int8)
      return static_cast<double>(load_int8(
          from, is_key ? view.key_scales(page, 1, head) : view.value_scales(page, 1, head),
          is_key ? int8_key_index(i, slot) : int8_value_index(i, slot, dim),
          int8_scale_index(i, slot)));
    const auto at = usize(is_key ? i * kPageTokens + slot : slot * dim + i);
    float single;
    std::uint16_t half;
    if (type == KvType::f32) return std::memcpy(&single, from + 4 * at, 4), single;
    std::memcpy(&half, from + 2 * at, 2);
    return static_cast<double>(type == KvType::f16 ? f16_to_f32(half) : bf16_to_f32(half));
  }

  /// In tiles of 8 N queries, as many rows of a sequence as fit, at most `most`.
  template <int N>
  std::vector<std::uint16_t> run(const Schedule& schedule, int most = 16) {
    const int group = c.n_heads / c.n_kv_heads;
    std::vector<AttendTile> tiles;
    for (int row = 0; row < c.n(); ++row) {
      const bool joins = row > 0 && rows[usize(row - 1)].table == rows[usize(row)].table &&
                         tiles.back().n_rows < std::min(most, 8 * N / group);
      if (joins)
        tiles.back().n_rows += 1;
      else
        tiles.push_back({row, 1});
    }
    AttendArgs a;
    a.rows = rows.data();
    a.tiles = tiles.data();
    a.tables = tables.data();
    a.q = q.data();
    a.n_heads = c.n_heads;
    a.group = group;
    a.scale = 0.3f;
    a.softcap = c.softcap;
    a.kv = view;
    a.kv_slot = 1;
    const auto heads = usize(n_parts * c.n_heads);
    std::vector<float> max(heads, NAN), sum(heads, NAN), output(heads * usize(c.value_dim), NAN);
    a.max = max.data();
    a.sum = sum.data();
    a.output = output.data();
    MergeArgs m;
    m.rows = a.rows;
    m.max = a.max;
    m.sum = a.sum;
    m.output = a.output;
    m.n_heads = c.n_heads;
    m.value_dim = c.value_dim;
    m.window = c.window;
    m.out_stride = (c.n_heads * c.value_dim + 63) / 64 * 64;
    std::vector<std::uint16_t> out(usize(c.n() * m.out_stride), 0xFFFF);
    m.out = out.data();
    int splits = 1;
    for (const DeviceRow& row : rows) splits = std::max(splits, row.position / kSplit + 1);
    Launcher launcher(schedule);
    launch(attend_tiles<N>,
           {static_cast<unsigned>(splits), static_cast<unsigned>(c.n_kv_heads),
            static_cast<unsigned>(tiles.size())},
           kAttendThreads, attend_shared_bytes<N>(view), launcher.stream, a);
    launch(merge_splits, {static_cast<unsigned>(c.n_heads), static_cast<unsigned>(c.n()), 1},
           kMergeThreads, 0, launcher.stream, m);
    return out;
  }

  /// The largest error in units of what the roundings allow.
  double error(const std::vector<std::uint16_t>& out) const {
    const int stride = (c.n_heads * c.value_dim + 63) / 64 * 64, group = c.n_heads / c.n_kv_heads;
    const double of_weights = c.values == KvType::f16 ? 0x1p-11 : 0x1p-8;
    double worst = 0;
    for (int r = 0; r < c.n(); ++r) {
      const DeviceRow& row = rows[usize(r)];
      const int first = c.window == 0 ? 0 : std::max(0, row.position - c.window + 1);
      for (int h = 0; h < c.n_heads; ++h) {
        std::vector<double> score;
        for (int p = first; p <= row.position; ++p) {
          double dot = 0;
          for (int i = 0; i < c.key_dim; ++i) {
            const float x = q[usize((r * c.n_heads + h) * c.key_dim + i)];
            const float rounded =
                c.keys == KvType::f16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
            dot += static_cast<double>(rounded) * read(row, p, h / group, i, true);
          }
          dot *= static_cast<double>(0.3f);
          const double cap = static_cast<double>(c.softcap);
          score.push_back(cap == 0.0 ? dot : cap * std::tanh(dot / cap));
        }
        const double max = *std::max_element(score.begin(), score.end());
        double sum = 0;
        for (double& s : score) sum += s = std::exp(s - max);
        for (int d = 0; d < c.value_dim; ++d) {
          double value = 0, magnitude = 0;
          for (int p = first; p <= row.position; ++p) {
            const double term = score[usize(p - first)] / sum * read(row, p, h / group, d, false);
            value += term;
            magnitude += std::abs(term);
          }
          const double got =
              static_cast<double>(bf16_to_f32(out[usize(r * stride + h * c.value_dim + d)]));
          const double allowed =
              (of_weights + 0x1p-14) * magnitude + 0x1p-8 * std::abs(value) + 1e-6;
          const double e = std::abs(got - value) / allowed;
          worst = e <= worst ? worst : e;  // NaN counts
        }
      }
      for (int i = c.n_heads * c.value_dim; i < stride; ++i)
        if (out[usize(r * stride + i)] != 0) worst = INFINITY;
    }
    return worst;
  }
};

const KvType kKvTypes[] = {KvType::f32, KvType::f16, KvType::bf16, KvType::int8};

}  // namespace

TEST_CASE("cuda attention: groups, widths and types against double precision") {
  unsigned seed = 1;
  for (const int group : {1, 3, 4, 5, 7, 8, 16})
    for (const KvType type : kKvTypes)
      for (const int dim : {16, 64, 80, 256}) {
        if (dim == 256 && group > 4) continue;
        const AttendCase c{2 * group, 2, dim, dim, type, type, 0, {{37, 3}}};
        Attended a(c, ++seed);
        CAPTURE(group, static_cast<int>(type), dim);
        CHECK(a.error(a.run<2>({})) <= 1.0);
        if (group <= 8) CHECK(a.error(a.run<1>(kSchedules[2])) <= 1.0);
      }
}

TEST_CASE("cuda attention: keys and values of their own types and widths") {
  for (const KvType keys : kKvTypes)
    for (const KvType values : kKvTypes) {
      Attended a({6, 2, 144, 96, keys, values, 0, {{270, 2}, {0, 1}, {15, 2}}}, 5);
      CAPTURE(static_cast<int>(keys), static_cast<int>(values));
      for (const Schedule& s : {kSchedules[0], kSchedules[2]}) CHECK(a.error(a.run<2>(s)) <= 1.0);
    }
}

TEST_CASE("cuda attention: borders of pages, splits and windows") {
  unsigned seed = 100;
  for (const int window : {0, 1, 2, 15, 16, 17, 100, 255, 256, 257, 300})
    for (const int first : {0, 15, 16, 240, 255, 256, 511, 600})
      for (const int n : {1, 5}) {
        const int unseen = ++seed % 3 == 0 ? kLarge : kNan;
        Attended a({2, 1, 32, 16, KvType::f16, KvType::f16, window, {{first, n}}}, seed, unseen);
        CAPTURE(window, first, n, unseen);
        CHECK(a.error(a.run<2>({})) <= 1.0);
      }
}

TEST_CASE("cuda attention: soft-capped scores") {
  unsigned seed = 200;
  for (const KvType type : kKvTypes)
    for (const float softcap : {0.5f, 5.0f, 50.0f})
      for (const int window : {0, 20}) {
        Attended a({6, 2, 64, 64, type, type, window, {{270, 3}, {15, 2}}, softcap}, ++seed);
        CAPTURE(static_cast<int>(type), softcap, window);
        CHECK(a.error(a.run<2>({})) <= 1.0);
      }
}

TEST_CASE("cuda attention: splits whose scores are far apart, or far from zero") {
  for (const std::vector<float>& keys : {std::vector<float>{40, -40, 40},
                                         {-40, 40, -40},
                                         {-40, -40, -40},
                                         {40, 40, 40},
                                         {-40, -39.5, -40}}) {
    Attended a({2, 1, 32, 16, KvType::f16, KvType::f16, 0, {{600, 2}}}, 3);
    a.lift(keys);
    CHECK(a.error(a.run<2>({})) <= 1.0);
  }
}

TEST_CASE("cuda attention: bits depend neither on neighbours, tiles nor the schedule") {
  for (const KvType type : kKvTypes)
    for (const int window : {0, 40}) {
      const AttendCase all{6,
                           2,
                           64,
                           64,
                           type,
                           type,
                           window,
                           {{300, 6}, {20, 1}, {255, 3}},
                           window == 0 ? 0.0f : 2.0f};
      Attended together(all, 9);
      const auto wanted = together.run<2>({});
      for (const Schedule& s : kSchedules) CHECK((together.run<2>(s) == wanted));
      CHECK((together.run<1>({}) == wanted));
      CHECK((together.run<2>({}, 1) == wanted));
      int row = 0;
      for (const Chunk& chunk : all.chunks)
        for (int r = 0; r < chunk.n_rows; ++r, ++row) {
          AttendCase alone = all;
          alone.chunks = {{chunk.first_position + r, 1}};
          const auto out = Attended(alone, 9).run<1>({});
          CHECK(std::equal(out.begin(), out.end(),
                           wanted.begin() + row * static_cast<std::ptrdiff_t>(out.size())));
        }
    }
}

TEST_CASE("cuda attention: addresses beyond 2^32 and rows beyond 2^31 elements") {
  KvView view;
  view.page_stride = 1 << 20;
  view.layer_stride = 1 << 16;
  view.head_stride = 1 << 12;
  view.value_offset = 1 << 11;
  CHECK(view.values(70000, 3, 2) - view.pages ==
        70000LL * (1 << 20) + 3 * (1 << 16) + 2 * (1 << 12) + (1 << 11));
  CHECK(row_offset(16384, 262144) == 4294967296ull);
  const WeightForm form = weight_form(TensorType::Q6_K);
  CHECK(form.tile_offset(1 << 22) == (1ull << 20) * (32 + 4 * 1088) + 32);
}
