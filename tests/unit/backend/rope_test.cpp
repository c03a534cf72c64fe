// RoPE of the reference backend against libm in long double: keys of a model whose key projection
// is the identity, read from their pages.
#include "backend/reference/reference.hpp"

#ifdef DECANT_EIGEN

#include <cmath>
#include <cstring>

#include "kv/kv_cache.hpp"
#include "support/catch.hpp"
#include "support/tiny_model.hpp"

using namespace decant::detail;
using decant::KvType;
using decant_test::TinyRandom;

namespace {

struct RopeModel {
  ModelSpec spec;
  ModelWeights weights;
  std::vector<float> embedding, identity, zeros;
  std::vector<std::int32_t> table;

  RopeModel(int dim, RopeSpec rope) {
    const auto n = static_cast<std::size_t>(dim);
    TinyRandom random(static_cast<std::uint64_t>(dim));
    embedding = random.floats(n, 1.0f);
    identity.assign(n * n, 0.0f);
    for (std::size_t i = 0; i < n; ++i) identity[i * n + i] = 1.0f;
    spec.n_embd = dim;
    spec.n_vocab = 1;
    spec.norm_eps = 1e-6;
    spec.ropes = {std::move(rope)};
    LayerSpec layer;
    layer.n_heads = layer.n_kv_heads = 1;
    layer.key_dim = layer.value_dim = dim;
    layer.n_ff = 1;
    spec.layers = {layer};
    spec.kv_groups = {{{0}, 0, 1, dim, dim}};
    const auto weight = [&](const std::vector<float>& data, int rows) {
      return Weight{reinterpret_cast<const std::byte*>(data.data()), TensorType::F32, rows, dim,
                    4u * n};
    };
    weights.embedding = weights.head = weight(embedding, 1);
    weights.final_norm.assign(n, 1.0f);
    weights.layers.resize(1);
    LayerWeights& w = weights.layers[0];
    w.attention_norm = w.ffn_norm = weights.final_norm;
    w.q = w.k = w.v = w.attention_output = weight(identity, dim);
  }

  /// The key of the token at this position.
  std::vector<float> key(std::int32_t position) {
    const auto cache = KvCache::create(spec.kv_groups, KvType::f32, KvType::f32, 16).value();
    // Every page of the sequence is page 0.
    table.assign(static_cast<std::size_t>(position / kPageTokens) + 1, 0);
    const std::int32_t* tables[] = {table.data()};
    const std::int32_t* const* sequences[] = {tables};
    const Row row{0, position, 0, nullptr};
    const auto backend = make_reference_backend(spec, weights, {1, 1});
    backend->begin({std::span(&row, 1), sequences, cache->views()});
    for (const Operation op : {Operation::embed, Operation::qkv})
      for (std::size_t i = 0; i < backend->count(op, 0); ++i) backend->run(op, 0, i, 0);
    std::vector<float> key(static_cast<std::size_t>(spec.n_embd));
    for (std::size_t d = 0; d < key.size(); ++d)
      std::memcpy(&key[d],
                  cache->views()[0].keys(0, 0, 0) +
                      4 * (d * kPageTokens + static_cast<std::size_t>(position % kPageTokens)),
                  4);
    return key;
  }

  /// The largest difference from the definition, in units of the largest coordinate.
  double difference(std::int32_t position) {
    const RopeSpec& rope = spec.ropes[0];
    const std::size_t n = embedding.size();
    long double squares = 0;
    for (const float x : embedding)
      squares += static_cast<long double>(x) * static_cast<long double>(x);
    const long double scale = 1 / std::sqrt(squares / static_cast<long double>(n) + 1e-6L);
    std::vector<long double> x(n);
    long double largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      // Between projection and rotation the row is float.
      x[i] = static_cast<long double>(
          static_cast<float>(static_cast<long double>(embedding[i]) * scale));
      largest = std::max(largest, std::abs(x[i]));
    }
    std::vector<long double> expected = x;
    const auto half = static_cast<std::size_t>(rope.dims / 2);
    for (std::size_t i = 0; i < half; ++i) {
      long double angle = static_cast<long double>(position) *
                          static_cast<long double>(rope.position_scale) *
                          std::pow(static_cast<long double>(rope.base),
                                   -2.0L * static_cast<long double>(i) / rope.dims);
      if (!rope.factors.empty()) angle /= static_cast<long double>(rope.factors[i]);
      const bool neighbours = rope.pairs == RopePairs::neighbours;
      const std::size_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + half;
      expected[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      expected[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
    const std::vector<float> found = key(position);
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i)
      worst = std::max(
          worst, static_cast<double>(std::abs(static_cast<long double>(found[i]) - expected[i]) /
                                     largest));
    return worst;
  }
};

RopeSpec rope_of(RopePairs pairs, int dims, double base) {
  RopeSpec rope;
  rope.pairs = pairs;
  rope.dims = dims;
  rope.base = base;
  return rope;
}

// Rounding a key to float: 2^-24 of sqrt(2) times the largest coordinate; the norm's own rounding
// as much again.
constexpr double kRopeTolerance = 3e-7;
constexpr std::int32_t kPositions[] = {0,    1,    2,    15,   16,    255,   256,    257,    258,
                                       2047, 2048, 2049, 2050, 32767, 65536, 131071, 1048575};

}  // namespace

TEST_CASE("RoPE up to position 1,048,575") {
  for (const RopePairs pairs : {RopePairs::neighbours, RopePairs::halves})
    for (const double base : {1e4, 5e5, 1e6})
      for (const int dim : {2, 64, 128}) {
        RopeModel model(dim, rope_of(pairs, dim, base));
        for (const std::int32_t position : kPositions) {
          CAPTURE(static_cast<int>(pairs), base, dim, position);
          CHECK(model.difference(position) < kRopeTolerance);
        }
      }
}

TEST_CASE("RoPE of the first coordinates only, with linear scaling, with factors") {
  for (const RopePairs pairs : {RopePairs::neighbours, RopePairs::halves}) {
    RopeModel partial(80, rope_of(pairs, 32, 1e4));
    RopeSpec spec = rope_of(pairs, 64, 1e6);
    spec.position_scale = 1.0 / 8.0;
    RopeModel linear(64, spec);
    // llama3 scaling of factor 8, as converters store it: 1 for high frequencies, 8 for low ones.
    spec = rope_of(pairs, 128, 5e5);
    for (int i = 0; i < 64; ++i) {
      const double wavelength = 2 * 3.14159265358979 * std::pow(5e5, 2.0 * i / 128);
      double factor = 8.0;
      if (wavelength < 8192.0 / 4)
        factor = 1.0;
      else if (wavelength <= 8192.0)
        factor = 1 / ((1 - (8192 / wavelength - 1) / 3) / 8 + (8192 / wavelength - 1) / 3);
      spec.factors.push_back(static_cast<float>(factor));
    }
    RopeModel llama3(128, spec);
    CHECK(llama3.spec.ropes[0].factors.front() == 1.0f);
    CHECK(llama3.spec.ropes[0].factors.back() == 8.0f);
    for (const std::int32_t position : kPositions) {
      CAPTURE(static_cast<int>(pairs), position);
      CHECK(partial.difference(position) < kRopeTolerance);
      CHECK(linear.difference(position) < kRopeTolerance);
      CHECK(llama3.difference(position) < kRopeTolerance);
    }
  }
}

TEST_CASE("position 0 turns nothing and neighbours differ") {
  RopeModel model(64, rope_of(RopePairs::neighbours, 64, 1e4));
  const auto zero = model.key(0);
  for (std::size_t i = 0; i + 1 < zero.size(); ++i)
    CHECK(zero[i] / model.embedding[i] == Approx(zero[0] / model.embedding[0]));
  // In half precision 2048 and 2049 were the same position.
  CHECK(model.key(2048) != model.key(2049));
  CHECK(model.key(1048574) != model.key(1048575));
}

#endif
