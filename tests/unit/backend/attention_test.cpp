// Attention over pages against a definition written here in double precision without pages, splits
// or running sums: softmax(scale q.k) v over the visible positions. Values are multiples of 1/64,
// exact in f16, and whatever a query must not see is NaN in the pages.
#include "backend/reference/attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.hpp"
#include "kv/kv_cache.hpp"
#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant::detail;
using decant::KvType;
using decant_test::TinyRandom;

namespace {

struct AttentionCase {
  int n_heads, n_kv_heads, key_dim, value_dim;
  KvType keys, values;
  int window;
  int first_position, n_rows;
  double softcap = 0.0;
};

/// The largest |difference| from the definition; infinite if an output is not a number.
double attention_difference(const AttentionCase& c, std::uint64_t seed) {
  TinyRandom random(seed);
  const auto exact = [&] {
    return static_cast<float>(static_cast<int>(random.below(255)) - 127) / 64;
  };
  const int n_positions = c.first_position + c.n_rows;
  const int first_seen = c.window == 0 ? 0 : std::max(0, c.first_position - c.window + 1);

  // Slot 1 of two layers; pages in a scattered order.
  const KvGroupSpec group{{0, 1}, c.window, c.n_kv_heads, c.key_dim, c.value_dim};
  const int n_pages = (n_positions + kPageTokens - 1) / kPageTokens;
  const auto cache = KvCache::create(std::span(&group, 1), c.keys, c.values,
                                     static_cast<std::uint64_t>(n_pages + 3) * kPageTokens)
                         .value();
  const KvView& view = cache->views()[0];
  std::memset(view.pages, 0xFF, static_cast<std::size_t>(cache->pool_bytes()));
  std::vector<std::int32_t> table;
  for (int i = 0; i < n_pages; ++i)
    table.push_back(static_cast<std::int32_t>((i * 7 + 2) % (n_pages + 3)));
  if ((n_pages + 3) % 7 == 0)
    for (int i = 0; i < n_pages; ++i) table[static_cast<std::size_t>(i)] = n_pages + 2 - i;

  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  std::vector<double> k(size(n_positions * c.n_kv_heads * c.key_dim));
  std::vector<double> v(size(n_positions * c.n_kv_heads * c.value_dim));
  const auto put = [](std::byte* to, KvType type, int index, float value) {
    if (type == KvType::f32) return void(std::memcpy(to + 4 * index, &value, 4));
    const std::uint16_t half = f32_to_f16(value);
    std::memcpy(to + 2 * index, &half, 2);
  };
  for (int p = 0; p < n_positions; ++p) {
    const std::int32_t page = table[size(p / kPageTokens)];
    const int slot = p % kPageTokens;
    for (int h = 0; h < c.n_kv_heads; ++h) {
      for (int d = 0; d < c.key_dim; ++d) {
        const float x = exact();
        k[size((p * c.n_kv_heads + h) * c.key_dim + d)] = static_cast<double>(x);
        if (p >= first_seen) put(view.keys(page, 1, h), c.keys, d * kPageTokens + slot, x);
      }
      for (int d = 0; d < c.value_dim; ++d) {
        const float x = exact();
        v[size((p * c.n_kv_heads + h) * c.value_dim + d)] = static_cast<double>(x);
        if (p >= first_seen) put(view.values(page, 1, h), c.values, slot * c.value_dim + d, x);
      }
    }
  }
  const std::size_t q_width = size(c.n_heads * c.key_dim),
                    out_width = size(c.n_heads * c.value_dim);
  std::vector<float> q(size(c.n_rows) * q_width), out(size(c.n_rows) * out_width, -1.0f);
  for (float& x : q) x = exact();

  LayerSpec layer;
  layer.n_heads = c.n_heads;
  layer.n_kv_heads = c.n_kv_heads;
  layer.key_dim = c.key_dim;
  layer.value_dim = c.value_dim;
  layer.window = c.window;
  layer.kv_slot = 1;
  layer.attention_scale = 1.0 / std::sqrt(static_cast<double>(c.key_dim));
  layer.attention_softcap = c.softcap;
  AttentionScratch scratch(layer.group(), c.key_dim, c.value_dim);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (auto* memory : {&scratch.page, &scratch.scores, &scratch.max, &scratch.sum, &scratch.output})
    std::fill(memory->begin(), memory->end(), nan);
  for (int h = 0; h < c.n_kv_heads; ++h) {
    const AttentionQuery query{&layer,           &view,    table.data(), h,          c.n_rows,
                               c.first_position, q.data(), q_width,      out.data(), out_width};
    attend_reference(query, scratch);
  }

  double worst = 0;
  for (int row = 0; row < c.n_rows; ++row)
    for (int head = 0; head < c.n_heads; ++head) {
      const int h = head / (c.n_heads / c.n_kv_heads);
      const int last = c.first_position + row;
      const int first = c.window == 0 ? 0 : std::max(0, last - c.window + 1);
      std::vector<double> score;
      for (int p = first; p <= last; ++p) {
        double dot = 0;
        for (int d = 0; d < c.key_dim; ++d)
          dot += static_cast<double>(q[size(row) * q_width + size(head * c.key_dim + d)]) *
                 k[size((p * c.n_kv_heads + h) * c.key_dim + d)];
        dot /= std::sqrt(static_cast<double>(c.key_dim));
        score.push_back(c.softcap == 0.0 ? dot : c.softcap * std::tanh(dot / c.softcap));
      }
      const double max = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      for (int d = 0; d < c.value_dim; ++d) {
        double expected = 0;
        for (int p = first; p <= last; ++p)
          expected +=
              score[size(p - first)] / sum * v[size((p * c.n_kv_heads + h) * c.value_dim + d)];
        const float found = out[size(row) * out_width + size(head * c.value_dim + d)];
        if (!std::isfinite(found)) return std::numeric_limits<double>::infinity();
        worst = std::max(worst, std::abs(static_cast<double>(found) - expected));
      }
    }
  return worst;
}

// Outputs are below 2, so that rounding them to float costs at most 6e-8.
constexpr double kTolerance = 1.3e-7;

}  // namespace

TEST_CASE("attention of every group size and head width") {
  struct Heads {
    int n_heads, n_kv_heads;
  };
  std::uint64_t seed = 1;
  for (const Heads h :
       {Heads{1, 1}, {3, 1}, {5, 1}, {6, 2}, {7, 1}, {12, 4}, {14, 2}, {16, 1}, {28, 4}})
    for (const int dim : {16, 40, 64, 72, 80, 96, 100, 112, 128, 192, 256, 512})
      for (const KvType type : {KvType::f32, KvType::f16}) {
        CAPTURE(h.n_heads, h.n_kv_heads, dim, static_cast<int>(type), seed);
        CHECK(attention_difference({h.n_heads, h.n_kv_heads, dim, dim, type, type, 0, 0, 3}, seed) <
              kTolerance);
        CHECK(attention_difference({h.n_heads, h.n_kv_heads, dim, dim, type, type, 0, 29, 5},
                                   seed) < kTolerance);
        ++seed;
      }
}

TEST_CASE("attention across splits and at the borders of pages and windows") {
  std::uint64_t seed = 1000;
  for (const int window : {0, 1, 2, 15, 16, 17, 100, 255, 256, 257, 300, 600})
    for (const int first : {0, 1, 14, 15, 16, 240, 255, 256, 257, 511, 512, 700})
      for (const int rows : {1, 2, 16}) {
        CAPTURE(window, first, rows, seed);
        CHECK(attention_difference({6, 2, 24, 24, KvType::f16, KvType::f16, window, first, rows},
                                   seed) < kTolerance);
        ++seed;
      }
}

TEST_CASE("keys and values may differ in width and in type") {
  CHECK(attention_difference({4, 2, 48, 20, KvType::f32, KvType::f16, 0, 270, 16}, 1) < kTolerance);
  CHECK(attention_difference({4, 2, 20, 48, KvType::f16, KvType::f32, 33, 270, 16}, 2) <
        kTolerance);
  CHECK(attention_difference({2, 2, 1, 1, KvType::f32, KvType::f32, 0, 300, 1}, 3) < kTolerance);
}

TEST_CASE("soft-capped scores") {
  std::uint64_t seed = 2000;
  for (const double softcap : {0.5, 5.0, 50.0})
    for (const int window : {0, 17}) {
      CAPTURE(softcap, window);
      CHECK(attention_difference({6, 2, 24, 24, KvType::f16, KvType::f16, window, 300, 16, softcap},
                                 ++seed) < kTolerance);
    }
}

TEST_CASE("scores far apart give finite outputs") {
  // One position outweighs all others by e^1000: the output is its value, in every split.
  const KvGroupSpec group{{0}, 0, 1, 2, 1};
  for (const int winner : {0, 255, 256, 599}) {
    const auto cache = KvCache::create(std::span(&group, 1), KvType::f32, KvType::f32, 608).value();
    const KvView& view = cache->views()[0];
    std::vector<std::int32_t> table;
    for (int p = 0; p < 600; ++p) {
      if (p % kPageTokens == 0) table.push_back(p / kPageTokens);
      const float key = p == winner ? 1000.0f : 0.0f, value = p == winner ? 3.0f : -7.0f;
      std::memcpy(view.keys(table.back(), 0, 0) + 4 * (p % kPageTokens), &key, 4);
      std::memcpy(view.values(table.back(), 0, 0) + 4 * (p % kPageTokens), &value, 4);
    }
    LayerSpec layer;
    layer.n_heads = layer.n_kv_heads = 1;
    layer.key_dim = 2;
    layer.value_dim = 1;
    AttentionScratch scratch(1, 2, 1);
    const float q[] = {1.0f, 1.0f};
    float out = 0;
    attend_reference({&layer, &view, table.data(), 0, 1, 599, q, 2, &out, 1}, scratch);
    CAPTURE(winner);
    CHECK(out == 3.0f);
  }
}
