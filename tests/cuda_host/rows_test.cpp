// Embedding, norms and the ways of q, k and v to their places, against double precision.
#include "backend/kv_int8.hpp"
#include "cuda_host/support.hpp"
#include "kv/kv_cache.hpp"

using namespace decant_test;
using decant::KvType;

namespace {

double inverse_rms(std::span<const float> x, double eps) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
}

}  // namespace

TEST_CASE("cuda rows: embedding rows of all types, scaled, and turns of every position") {
  for (const TensorType type : kTypes)
    for (const Schedule& s : {kSchedules[0], kSchedules[2]}) {
      const int cols = tensor_type_info(type)->block_elements == 256 ? 256 : 96;
      const FileRows table(type, 40, cols, 3);
      const auto values = table.values();
      const DevicePacked packed(table);
      const std::vector<DeviceRow> rows = {
          {39, 5, 0, 0, 0}, {0, 131071, 0, 0, 0}, {17, 0, 0, 0, 0}};
      const std::vector<double> turns = {0.15915494309189535, 0.01, 1e-7};
      std::vector<float> out(rows.size() * usize(cols), NAN), rope(rows.size() * 6, NAN);
      EmbedArgs a;
      a.rows = rows.data();
      a.table = packed.weight;
      a.scale = 3.5f;
      a.out = out.data();
      a.n_embd = cols;
      a.ropes[1] = {turns.data(), rope.data(), 6};
      Launcher launcher(s);
      launch(embed_rows, {3, 1, 1}, kRowThreads, 0, launcher.stream, a);
      std::size_t n_wrong = 0;
      double worst = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::size_t c = 0; c < usize(cols); ++c)
          n_wrong += out[r * usize(cols) + c] != values[usize(rows[r].token * cols) + c] * 3.5f;
        for (std::size_t i = 0; i < 3; ++i) {
          const double angle = 6.28318530717958647693 * turns[i] * rows[r].position;
          worst =
              std::max(worst, std::abs(static_cast<double>(rope[r * 6 + 2 * i]) - std::cos(angle)));
          worst = std::max(
              worst, std::abs(static_cast<double>(rope[r * 6 + 2 * i + 1]) - std::sin(angle)));
        }
      }
      CAPTURE(tensor_type_info(type)->name);
      CHECK(n_wrong == 0);
      CHECK(worst <= 3e-7);  // phase within rounding of what is left of a turn
    }
}

TEST_CASE("cuda rows: residual, post-norm and norm") {
  const int n = 90, stride = 128, pending_stride = 96;
  const double eps = 1e-5;
  const auto post = random_floats(usize(n), 1), weight = random_floats(usize(n), 2);
  const auto left = random_floats(usize(5 * pending_stride), 3);
  const auto before = random_floats(usize(5 * n), 4);
  for (const Schedule& s : kSchedules)
    // Nothing left; left; left and a post-norm; a post-norm, but nothing left.
    for (const int kind : {0, 1, 2, 3})
      for (const std::vector<std::int32_t>& which :
           {std::vector<std::int32_t>{}, std::vector<std::int32_t>{4, 1}}) {
        std::vector<float> residual = before;
        const std::size_t blocks = which.empty() ? 5 : which.size();
        std::vector<std::uint16_t> out(blocks * usize(stride), 0xFFFF);
        NormArgs a;
        a.residual = residual.data();
        a.pending = kind == 0 || kind == 3 ? nullptr : left.data();
        a.post_norm = kind >= 2 ? post.data() : nullptr;
        a.norm = weight.data();
        a.which = which.empty() ? nullptr : which.data();
        a.out = out.data();
        a.n = n;
        a.pending_stride = pending_stride;
        a.out_stride = stride;
        a.eps = static_cast<float>(eps);
        Launcher launcher(s);
        launch(norm_rows, {static_cast<unsigned>(blocks), 1, 1}, kRowThreads, kNormSharedBytes,
               launcher.stream, a);
        for (std::size_t b = 0; b < blocks; ++b) {
          const std::size_t r = which.empty() ? b : usize(which[b]);
          const std::span pending(left.data() + r * usize(pending_stride), usize(n));
          std::vector<float> sum(before.begin() + static_cast<std::ptrdiff_t>(r) * n,
                                 before.begin() + static_cast<std::ptrdiff_t>(r + 1) * n);
          const double scale = inverse_rms(pending, eps);
          for (std::size_t c = 0; c < usize(n); ++c) {
            const double x = static_cast<double>(pending[c]);
            const double add = a.pending == nullptr     ? 0
                               : a.post_norm == nullptr ? x
                                                        : x * scale * static_cast<double>(post[c]);
            sum[c] = static_cast<float>(static_cast<double>(sum[c]) + add);
            CHECK(std::abs(residual[r * usize(n) + c] - sum[c]) <= 2e-6f);
          }
          const double rms = inverse_rms(sum, eps);
          for (std::size_t c = 0; c < usize(stride); ++c) {
            const double wanted =
                c < usize(n) ? static_cast<double>(sum[c]) * rms * static_cast<double>(weight[c])
                             : 0.0;
            const double got = static_cast<double>(bf16_to_f32(out[b * usize(stride) + c]));
            CHECK(std::abs(got - wanted) <= std::abs(wanted) * (0x1p-8 + 1e-5) + 1e-6);
          }
        }
      }
}

TEST_CASE("cuda rows: heads are normed, turned and put into pages") {
  struct Case {
    KvType keys, values;
    int key_dim, value_dim, rope_dims;
    RopePairs pairs;
    bool norms;
  };
  const Case cases[] = {{KvType::f32, KvType::f32, 48, 32, 48, RopePairs::neighbours, true},
                        {KvType::f16, KvType::bf16, 64, 64, 32, RopePairs::halves, false},
                        {KvType::bf16, KvType::f16, 256, 16, 256, RopePairs::halves, true},
                        {KvType::int8, KvType::int8, 96, 80, 96, RopePairs::neighbours, true},
                        {KvType::int8, KvType::f16, 128, 128, 128, RopePairs::halves, false}};
  const int n_heads = 4, n_kv_heads = 2;
  for (const Case& c : cases)
    for (const Schedule& s : kSchedules) {
      const KvGroupSpec group{{0, 1}, 0, n_kv_heads, c.key_dim, c.value_dim};
      const auto cache = KvCache::create(std::span(&group, 1), c.keys, c.values, 64).value();
      const KvView view = cache->views()[0];
      // The last row only fills up: its keys and values go nowhere.
      const std::vector<DeviceRow> rows = {
          {0, 17, 0, 2, 0}, {0, 18, 0, 2, 0}, {0, 3, 4, 1, 0}, {0, -1, 0, 0, 0}};
      // Two groups of tables: [sequence][group][page]; this is group 1.
      const std::vector<std::int32_t> tables = {0, -1, 3, 1, -1, 2};
      const std::vector<std::byte> page_0(view.pages, view.pages + view.page_stride);
      const int width = (n_heads + n_kv_heads) * c.key_dim + n_kv_heads * c.value_dim;
      const auto qkv = random_floats(rows.size() * usize(width), 5);
      const auto q_norm = random_floats(usize(c.key_dim), 6),
                 k_norm = random_floats(usize(c.key_dim), 7);
      std::vector<float> rope(rows.size() * usize(c.rope_dims));
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (int i = 0; i < c.rope_dims / 2; ++i) {
          const double angle = 0.1 * rows[r].position * (i + 1);
          rope[r * usize(c.rope_dims) + usize(2 * i)] = static_cast<float>(std::cos(angle));
          rope[r * usize(c.rope_dims) + usize(2 * i + 1)] = static_cast<float>(std::sin(angle));
        }
      std::vector<float> q(rows.size() * usize(n_heads * c.key_dim), NAN);
      PlaceArgs a;
      a.rows = rows.data();
      a.tables = tables.data();
      a.qkv = qkv.data();
      a.qkv_stride = width;
      a.n_heads = n_heads;
      a.n_kv_heads = n_kv_heads;
      a.q_norm = c.norms ? q_norm.data() : nullptr;
      a.k_norm = c.norms ? k_norm.data() : nullptr;
      a.eps = 1e-6f;
      a.rope = rope.data();
      a.rope_dims = c.rope_dims;
      a.rope_pairs = c.pairs;
      a.q = q.data();
      a.kv = view;
      a.kv_group = 1;
      a.kv_slot = 1;
      Launcher launcher(s);
      launch(place_heads, {4, static_cast<unsigned>(n_heads + 2 * n_kv_heads), 1}, kWarp,
             kPlaceSharedBytes, launcher.stream, a);
      CHECK(std::equal(page_0.begin(), page_0.end(), view.pages));

      double worst = 0;
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (int h = 0; h < n_heads + 2 * n_kv_heads; ++h) {
          const bool is_q = h < n_heads, is_k = !is_q && h < n_heads + n_kv_heads;
          const int dim = is_q || is_k ? c.key_dim : c.value_dim;
          const int from = is_q || is_k ? h * c.key_dim
                                        : (n_heads + n_kv_heads) * c.key_dim +
                                              (h - n_heads - n_kv_heads) * c.value_dim;
          std::span<const float> raw(qkv.data() + r * usize(width) + usize(from), usize(dim));
          std::vector<double> x(raw.begin(), raw.end());
          if (is_q || is_k) {
            if (c.norms) {
              const double rms = inverse_rms(raw, 1e-6);
              for (std::size_t i = 0; i < x.size(); ++i)
                x[i] *= rms * static_cast<double>(is_q ? q_norm[i] : k_norm[i]);
            }
            for (int i = 0; i < c.rope_dims / 2; ++i) {
              const double angle = 0.1 * rows[r].position * (i + 1);
              const auto first = usize(c.pairs == RopePairs::neighbours ? 2 * i : i);
              const auto second =
                  c.pairs == RopePairs::neighbours ? first + 1 : first + usize(c.rope_dims / 2);
              const double u = x[first], v = x[second];
              x[first] = u * std::cos(angle) - v * std::sin(angle);
              x[second] = u * std::sin(angle) + v * std::cos(angle);
            }
            if (c.keys == KvType::int8) {  // its own definition: a matrix of signs
              const int piece = dim & -dim;
              std::vector<double> turned(x.size());
              for (int i = 0; i < dim; ++i)
                for (int k = 0; k < piece; ++k)
                  turned[usize(i)] +=
                      x[usize(i / piece * piece + k)] *
                      (std::popcount(static_cast<unsigned>(i % piece & k)) % 2 ? -1.0 : 1.0) /
                      std::sqrt(piece);
              x = turned;
            }
          }
          const auto compare = [&](double got, double wanted, double step) {
            const double e = std::abs(got - wanted) / (std::abs(wanted) * step + 1e-5);
            worst = e <= worst ? worst : e;
          };
          if (is_q) {
            for (int i = 0; i < dim; ++i)
              compare(static_cast<double>(q[(r * n_heads + usize(h)) * usize(dim) + usize(i)]),
                      x[usize(i)], 1e-5);
            continue;
          }
          if (rows[r].position < 0) continue;
          const int head = (h - n_heads) % n_kv_heads, slot = rows[r].position % kPageTokens;
          const std::int32_t page =
              tables[usize(rows[r].table + rows[r].n_pages + rows[r].position / kPageTokens)];
          const std::byte* const at = is_k ? view.keys(page, 1, head) : view.values(page, 1, head);
          const KvType type = is_k ? c.keys : c.values;
          for (int i = 0; i < dim; ++i) {
            const auto index = usize(is_k ? i * kPageTokens + slot : slot * dim + i);
            std::uint16_t half = 0;
            float single = 0;
            if (type == KvType::int8) {
              double most = 0;
              for (int k = i / 64 * 64; k < std::min(dim, i / 64 * 64 + 64); ++k)
                most = std::max(most, std::abs(x[usize(k)]));
              const double got = static_cast<double>(load_int8(
                  at, is_k ? view.key_scales(page, 1, head) : view.value_scales(page, 1, head),
                  is_k ? int8_key_index(i, slot) : int8_value_index(i, slot, dim),
                  int8_scale_index(i, slot)));
              CHECK(std::abs(got - x[usize(i)]) <= most / 127 * 0.5 * 1.002 + 1e-5);
            } else if (type == KvType::f32) {
              std::memcpy(&single, at + 4 * index, 4);
              compare(static_cast<double>(single), x[usize(i)], 1e-5);
            } else {
              std::memcpy(&half, at + 2 * index, 2);
              compare(
                  static_cast<double>(type == KvType::f16 ? f16_to_f32(half) : bf16_to_f32(half)),
                  x[usize(i)], type == KvType::f16 ? 0x1p-11 + 1e-5 : 0x1p-8 + 1e-5);
            }
          }
        }
      CAPTURE(static_cast<int>(c.keys), c.key_dim);
      CHECK(worst <= 1.0);
    }
}

namespace {

/// One token with one head of 64 channels, of keys that do not turn and of values, into an int8
/// page: at slot 2 of the latter's codes and scales.
struct Int8Place {
  std::shared_ptr<KvCache> cache;
  KvView view;
  explicit Int8Place(const std::vector<float>& value) {
    const KvGroupSpec group{{0}, 0, 1, 64, 64};
    cache = KvCache::create(std::span(&group, 1), KvType::int8, KvType::int8, 16).value();
    view = cache->views()[0];
    const std::vector<DeviceRow> rows = {{0, 2, 0, 1, 0}};
    const std::vector<std::int32_t> tables = {0};
    std::vector<float> qkv(192, 1.0f), q(64);
    std::copy(value.begin(), value.end(), qkv.begin() + 128);
    PlaceArgs a;
    a.rows = rows.data();
    a.tables = tables.data();
    a.qkv = qkv.data();
    a.qkv_stride = 192;
    a.n_heads = a.n_kv_heads = 1;
    a.q = q.data();
    a.kv = view;
    Launcher launcher;
    launch(place_heads, {1, 3, 1}, kWarp, kPlaceSharedBytes, launcher.stream, a);
  }
  std::uint16_t scale(bool is_key = false) const {
    std::uint16_t scale;
    std::memcpy(&scale, (is_key ? view.key_scales(0, 0, 0) : view.value_scales(0, 0, 0)) + 2 * 2,
                2);
    return scale;
  }
  int code(int i) const {
    return static_cast<std::int8_t>(
        std::to_integer<unsigned char>(view.values(0, 0, 0)[2 * 64 + i]));
  }
};

}  // namespace

TEST_CASE("cuda rows: what is not finite shows in int8 pages") {
  for (const float odd : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> value(64, 1.0f);
    value[5] = odd;
    const Int8Place placed(value);
    CHECK(std::isnan(f16_to_f32(placed.scale())));
    CHECK(!std::isnan(f16_to_f32(placed.scale(true))));
  }
}

TEST_CASE("cuda rows: the scale of int8 is the smallest f16 that no code exceeds") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    auto value = random_floats(64, seed);
    for (float& x : value) x *= std::ldexp(1.0f, static_cast<int>(seed % 9) * 3 - 12);
    float most = 0;
    for (const float x : value) most = std::max(most, std::abs(x));
    const Int8Place placed(value);
    const std::uint16_t scale = placed.scale();
    const float wanted = most / 127.0f, step = f16_to_f32(scale);
    CHECK(step >= wanted);
    CHECK(f16_to_f32(static_cast<std::uint16_t>(scale - 1)) < wanted);
    for (int i = 0; i < 64; ++i) {
      const double exact = static_cast<double>(value[usize(i)]) / static_cast<double>(step);
      CHECK(std::abs(placed.code(i) - exact) <= 0.5 + 1e-4);
    }
  }
  // Larger than any scale reaches: the largest scale and codes. Nothing but zeros: zeros.
  std::vector<float> value(64, 0.0f);
  const Int8Place zeros(value);
  CHECK(zeros.scale() == 0);
  for (int i = 0; i < 64; ++i) CHECK(zeros.code(i) == 0);
  value[3] = 1e8f;
  value[4] = -3e7f;
  const Int8Place large(value);
  CHECK(large.scale() == 0x7BFF);
  CHECK(large.code(3) == 127);
  CHECK(large.code(4) == -127);
  CHECK(large.code(5) == 0);
}
