// Keys and values as int8: the transform, the scales and the places in a page against their
// definitions in double precision. The kernels that read them are tested in cpu_test.cpp.
#include "backend/kv_int8.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kv/kv_cache.hpp"
#include "support/catch.hpp"

using namespace decant::detail;
using decant::KvType;

TEST_CASE("the Hadamard transform is the matrix of signs, and leaves products as they are") {
  std::mt19937 dice(3);
  std::normal_distribution<float> normal;
  for (const int n : {1, 2, 8, 16, 40, 64, 72, 80, 96, 100, 112, 128, 192, 256}) {
    CAPTURE(n);
    const int piece = n & -n;
    std::vector<float> x(static_cast<std::size_t>(n)), y(x.size());
    for (float& v : x) v = normal(dice);
    for (float& v : y) v = normal(dice);
    auto hx = x, hy = y;
    hadamard(hx.data(), n);
    hadamard(hy.data(), n);
    double before = 0, after = 0;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      before += static_cast<double>(x[at]) * static_cast<double>(y[at]);
      after += static_cast<double>(hx[at]) * static_cast<double>(hy[at]);
      double wanted = 0;  // row i of the matrix: (-1)^(bits that i and k share)
      for (int k = 0; k < piece; ++k) {
        const int sign =
            __builtin_popcount(static_cast<unsigned>((i % piece) & k)) % 2 == 0 ? 1 : -1;
        wanted += sign * static_cast<double>(x[static_cast<std::size_t>(i / piece * piece + k)]);
      }
      CHECK(static_cast<double>(hx[at]) == Approx(wanted / std::sqrt(piece)).margin(1e-5));
    }
    CHECK(after == Approx(before).margin(1e-4));
  }
}

TEST_CASE("scales are rounded up, codes stay in range and miss by at most half a step") {
  std::mt19937 dice(4);
  std::normal_distribution<float> normal;
  for (const int dim : {8, 64, 72, 128, 200})
    for (const float size : {1e-9f, 1e-4f, 1.0f, 1000.0f}) {
      CAPTURE(dim, size);
      std::vector<float> x(static_cast<std::size_t>(dim));
      for (float& v : x) v = size * normal(dice);
      for (const bool is_key : {true, false}) {
        std::vector<std::byte> codes(static_cast<std::size_t>(16 * dim)),
            scales(kv_scale_bytes(KvType::int8, dim));
        for (const int slot : {0, 7, 15}) {
          store_int8(x.data(), dim, slot, is_key, codes.data(), scales.data());
          for (int i = 0; i < dim; ++i) {
            const std::size_t code =
                is_key ? int8_key_index(i, slot) : int8_value_index(i, slot, dim);
            // Where it must lie: [dim / 4][16][4] and [16][dim].
            CHECK(code == static_cast<std::size_t>(is_key ? i / 4 * 64 + slot * 4 + i % 4
                                                          : slot * dim + i));
            std::uint16_t half;
            std::memcpy(&half, scales.data() + 2 * (i / 64 * 16 + slot), 2);
            const double step = static_cast<double>(f16_to_f32(half));
            double most = 0;
            for (int k = i / 64 * 64; k < std::min(dim, i / 64 * 64 + 64); ++k)
              most = std::max(most, std::abs(static_cast<double>(x[static_cast<std::size_t>(k)])));
            CHECK(step >= most / 127 * (1 - 1e-6));
            CHECK(step <= most / 127 * (1 + 0x1p-9) + 0x1p-24);
            const double read = static_cast<double>(
                load_int8(codes.data(), scales.data(), code, int8_scale_index(i, slot)));
            const double miss =
                std::abs(read - static_cast<double>(x[static_cast<std::size_t>(i)]));
            CHECK(miss <= step * 0.5001);
          }
        }
      }
    }
}

TEST_CASE("what is not finite shows, zeros stay zeros, large values are cut") {
  std::vector<float> x(64, 0.0f);
  std::vector<std::byte> codes(16 * 64), scales(32);
  store_int8(x.data(), 64, 0, false, codes.data(), scales.data());
  CHECK(load_int8(codes.data(), scales.data(), 5, 0) == 0.0f);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    x[9] = bad;
    store_int8(x.data(), 64, 0, false, codes.data(), scales.data());
    CHECK(std::isnan(load_int8(codes.data(), scales.data(), 5, 0)));
  }
  x[9] = 3e38f;
  store_int8(x.data(), 64, 0, false, codes.data(), scales.data());
  CHECK(load_int8(codes.data(), scales.data(), 9, 0) == 127.0f * 65504.0f);
}

TEST_CASE("a token in int8 takes at most 52 % of f16 at heads of 64") {
  const KvGroupSpec groups[] = {{{0, 1}, 0, 3, 64, 64}};
  const auto f16 = KvCache::bytes_per_token(groups, KvType::f16, KvType::f16);
  CHECK(f16 == 2 * 2 * 3 * 64 * 2);
  CHECK(KvCache::bytes_per_token(groups, KvType::int8, KvType::int8) == 2 * 2 * 3 * (64 + 2));
  CHECK(KvCache::bytes_per_token(groups, KvType::f16, KvType::int8) == 2 * 3 * (128 + 66));
  CHECK(100 * KvCache::bytes_per_token(groups, KvType::int8, KvType::int8) <= 52 * f16);
}
