// The CPU kernels: packing loses nothing, products are right within the rounding of their terms,
// and all instruction sets of this machine give the same bits. Oracles: `dequantise` (itself tested
// against gguf-py) and sums in double precision; attention against the reference backend.
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/pack.hpp"
#include "backend/reference/attention.hpp"
#include "base/float16.hpp"
#include "base/fma.hpp"
#include "kv/kv_cache.hpp"
#include "support/catch.hpp"
#include "support/file_rows.hpp"

using namespace decant::detail;
using namespace decant_test;
using decant::KvType;

namespace {

std::vector<const CpuKernels*> machine_kernels() {
  std::vector<const CpuKernels*> all;
  for (const char* isa : {"portable", "avx2", "avx512", "neon"})
    if (const auto kernels = cpu_kernels(isa)) all.push_back(*kernels);
  return all;
}

struct Packed {
  std::vector<std::byte> bytes;
  Weight weight;
  Packed(const FileRows& from, int segment_rows) {
    weight.type = from.type;
    weight.rows = from.rows;
    weight.cols = from.cols;
    weight.row_bytes = from.row_bytes;
    weight.group_bytes = packed_group_bytes(from.type, from.cols);
    weight.segment_rows = segment_rows;
    bytes.resize(static_cast<std::size_t>(weight.n_groups()) * weight.group_bytes);
    for (int g = 0; g < weight.n_groups(); ++g) {
      const int in_segment = g % weight.segment_groups() * kRowGroup;
      const int row = g / weight.segment_groups() * segment_rows + in_segment;
      pack_group(from.type, from.bytes.data() + static_cast<std::uint64_t>(row) * from.row_bytes,
                 from.row_bytes, std::min(kRowGroup, segment_rows - in_segment), from.cols,
                 bytes.data() + static_cast<std::uint64_t>(g) * weight.group_bytes);
    }
    weight.data = bytes.data();
  }
};

std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 dice(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(dice);
  return out;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("portable fused multiply-add equals the exact result rounded once") {
  std::mt19937_64 dice(5);
  const auto random_float = [&] {
    return std::bit_cast<float>(static_cast<std::uint32_t>(dice()));
  };
  std::size_t checked = 0;
  for (int i = 0; i < 2000000; ++i) {
    float a = random_float(), b = random_float(), c = random_float();
    if (i % 2) {  // near cancellation, where double rounding would show
      a = 1.0f + static_cast<float>(dice() % 1024) * 0x1p-23f;
      b = 1.0f + static_cast<float>(dice() % 1024) * 0x1p-23f;
      c = std::ldexp(static_cast<float>(static_cast<int>(dice() % 5) - 2),
                     static_cast<int>(dice() % 60) - 50);
    }
    const float wanted = std::fma(a, b, c), got = fma_f32(a, b, c);  // glibc's is exact
    if (std::isnan(wanted)) continue;
    ++checked;
    if (std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(wanted)) continue;
    CAPTURE(a, b, c, got, wanted);
    FAIL("fma_f32 differs");
  }
  CHECK(checked > 1000000);
}

TEST_CASE("packed weights hold the values of the file, bit for bit") {
  for (const TensorType type : kTypes) {
    CAPTURE(tensor_type_info(type)->name);
    for (const int segment : {40, 20, 8}) {
      const FileRows rows(type, 40, 512, 11);
      const Packed packed(rows, segment);
      const std::vector<float> wanted = rows.values();
      std::vector<float> got(wanted.size());
      for (int r = 0; r < rows.rows; ++r)
        unpack_row(packed.weight, r, &got[static_cast<std::size_t>(r * rows.cols)]);
      CHECK(equal_bits(got, wanted));
    }
  }
}

/// Column i of a block of activations as int16, as src/backend/cpu says that it lies there.
static int wide_code(const CpuKernels& kernels, const ActBlock* a, int i) {
  if (kernels.name != std::string_view("avx2")) return 254 * a->q[i] + a[1].q[i];
  constexpr int kOrder[] = {0, 2, 1, 3};
  std::int16_t words[16];
  std::memcpy(words, a[i / 16].q, sizeof words);
  return words[i % 16 / 4 * 4 + kOrder[i % 4]];
}

/// Products equal sums in double within their rounding on every instruction set, whose bits are the
/// same, and a token's are the same alone and with others. x: [tokens][columns]
static void check_products(const FileRows& rows, const std::vector<float>& x) {
  const auto all = machine_kernels();
  REQUIRE(!all.empty());
  CAPTURE(tensor_type_info(rows.type)->name);
  const int cols = rows.cols, n_rows = rows.rows, n_tokens = static_cast<int>(x.size()) / cols;
  const Packed packed(rows, n_rows);
  const std::vector<float> w = rows.values();
  const bool integer = packed_is_integer(rows.type);
  const std::size_t blocks = cols / kActBlock,
                    width = static_cast<std::size_t>(packed.weight.n_groups() * kRowGroup);

  for (const bool wide : {false, true}) {
    if (wide && !integer) continue;
    const std::size_t n_acts = wide ? 2 * blocks : blocks;
    std::vector<float> first;
    for (const CpuKernels* kernels : all) {
      CAPTURE(kernels->name, wide);
      std::vector<ActBlock> acts(static_cast<std::size_t>(n_tokens) * n_acts);
      for (int t = 0; t < n_tokens; ++t)
        (wide ? kernels->quantise_wide : kernels->quantise)(
            &x[static_cast<std::size_t>(t * cols)], cols,
            &acts[static_cast<std::size_t>(t) * n_acts]);
      const auto run = [&](int from, int n) {
        std::vector<float> out(static_cast<std::size_t>(n) * width);
        kernels->matmul(MatmulArgs{&packed.weight, 0, packed.weight.n_groups(),
                                   &acts[static_cast<std::size_t>(from) * n_acts],
                                   &x[static_cast<std::size_t>(from * cols)], n_acts,
                                   static_cast<std::size_t>(cols), n, wide, out.data(), width});
        return out;
      };
      const std::vector<float> together = run(0, n_tokens);
      for (int t = 0; t < n_tokens; ++t) {
        const std::vector<float> alone = run(t, 1);
        CHECK(std::memcmp(alone.data(), &together[static_cast<std::size_t>(t) * width],
                          width * sizeof(float)) == 0);
        for (int r = 0; r < n_rows; ++r) {
          double sum = 0, size = 0;
          for (int c = 0; c < cols; ++c) {
            const ActBlock* const a =
                &acts[static_cast<std::size_t>(t) * n_acts +
                      static_cast<std::size_t>(c / kActBlock) * (wide ? 2 : 1)];
            const int code = wide ? wide_code(*kernels, a, c % kActBlock) : a->q[c % kActBlock];
            const double act = integer
                                   ? static_cast<double>(a->d) * code
                                   : static_cast<double>(x[static_cast<std::size_t>(t * cols + c)]);
            const double term =
                static_cast<double>(w[static_cast<std::size_t>(r * cols + c)]) * act;
            sum += term;
            size += std::abs(term);
          }
          // Each of the few hundred float operations of a sum rounds by at most 2^-24 of what is
          // there.
          const double error = std::abs(
              static_cast<double>(
                  together[static_cast<std::size_t>(t) * width + static_cast<std::size_t>(r)]) -
              sum);
          if (error <= size * 1e-5) continue;
          CAPTURE(t, r, sum, size, error);
          FAIL("too far from the sum in double");
        }
      }
      if (first.empty()) first = together;
      CHECK(equal_bits(first, together));
    }
  }
}

TEST_CASE(
    "CPU products equal sums in double within their rounding, on every instruction set, for any "
    "number of rows") {
  const int cols = 768, n_tokens = 29;
  for (const TensorType type : kTypes)
    check_products(FileRows(type, 40, cols, 21),
                   random_floats(static_cast<std::size_t>(n_tokens * cols), 31));
}

TEST_CASE("CPU products of the largest codes and activations do not overflow") {
  const int cols = 256, n_tokens = 17;
  std::vector<float> x(static_cast<std::size_t>(n_tokens * cols));
  for (std::size_t i = 0; i < x.size(); ++i)  // rows of one sign, and of both
    x[i] = (i / cols % 3 == 0 || (i / cols % 3 == 1 && i % 2 == 0)) ? 1.0f : -1.0f;
  for (const TensorType type : kTypes)
    for (const int codes : {0xFF, 0x80, 0x00})
      if (packed_is_integer(type)) check_products(FileRows(type, 16, cols, 22, codes), x);
}

TEST_CASE("int8 activations: nearest codes, sums, and rows that are not finite") {
  const std::vector<float> x = random_floats(320, 41);
  for (const CpuKernels* kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<ActBlock> acts(10);
    kernels->quantise(x.data(), 320, acts.data());
    for (std::size_t b = 0; b < acts.size(); ++b) {
      float max = 0;
      for (std::size_t i = 0; i < 32; ++i) max = std::max(max, std::abs(x[b * 32 + i]));
      CHECK(acts[b].d == max / 127.0f);
      int sum = 0, low = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        CHECK(std::abs(static_cast<double>(x[b * 32 + i]) / static_cast<double>(acts[b].d) -
                       acts[b].q[i]) <= 0.50001);
        sum += acts[b].q[i];
        if (i < 16) low += acts[b].q[i];
      }
      CHECK(acts[b].nsum == -sum);
      CHECK(acts[b].nsum_half[0] == -low);
      CHECK(acts[b].nsum_half[1] == low - sum);
    }
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> y = x;
      y[40] = bad;
      kernels->quantise(y.data(), 320, acts.data());
      CHECK(std::isnan(acts[1].d));
      CHECK(!std::isnan(acts[0].d));
    }
    const std::vector<float> zeros(32);
    kernels->quantise(zeros.data(), 32, acts.data());
    CHECK((acts[0].d == 0.0f && acts[0].q[5] == 0));
  }
}

TEST_CASE("int16 activations are the nearest codes") {
  const std::vector<float> x = random_floats(320, 43);
  for (const CpuKernels* kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<ActBlock> acts(20);
    kernels->quantise_wide(x.data(), 320, acts.data());
    for (std::size_t b = 0; b < 10; ++b) {
      const ActBlock& a = acts[2 * b];
      int sum = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        const int code = wide_code(*kernels, &a, static_cast<int>(i));
        CHECK(std::abs(static_cast<double>(x[b * 32 + i]) / static_cast<double>(a.d) - code) <=
              0.51);  // x times the rounded 1 / d: up to 32385 x 2^-23 besides the half
        if (kernels->name != std::string_view("avx2"))
          CHECK(std::abs(int{acts[2 * b + 1].q[i]}) <= 127);
        sum += code;
      }
      CHECK(a.nsum == -sum);
    }
  }
}

TEST_CASE("soft caps on every instruction set: the function in double; infinity and NaN stay") {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x = random_floats(1600, 65);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
  const std::vector<float> special = {0.0f, -0.0f, 1e-38f, 3e38f, -3e38f, inf, -inf, NAN};
  std::copy(special.begin(), special.end(), x.begin());
  for (const float cap : {0.75f, 30.0f, 50.0f}) {
    std::vector<float> first;
    for (const CpuKernels* kernels : machine_kernels()) {
      CAPTURE(cap, kernels->name);
      std::vector<float> got = x;
      kernels->soft_cap(got.data(), static_cast<int>(got.size()), cap);
      CHECK((got[5] == inf && got[6] == -inf && std::isnan(got[7])));
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!std::isfinite(x[i])) continue;
        const double c = static_cast<double>(cap),
                     wanted = c * std::tanh(static_cast<double>(x[i]) / c);
        CAPTURE(x[i], got[i], wanted);
        // A few roundings to 24 bits; the smallest numbers lose some.
        CHECK(std::abs(static_cast<double>(got[i]) - wanted) <= 0x1p-21 * std::abs(wanted) + 1e-38);
      }
      if (first.empty()) first = got;
      CHECK(equal_bits(first, got));
    }
  }
}

TEST_CASE("RoPE on every instruction set: each pair turned, the rest left alone") {
  for (const int dims : {2, 6, 16, 40, 64, 128}) {
    const int n = dims + 5, half = dims / 2;
    const std::vector<float> x = random_floats(static_cast<std::size_t>(n), 71);
    for (const RopePairs pairs : {RopePairs::neighbours, RopePairs::halves}) {
      std::vector<float> table(static_cast<std::size_t>(2 * dims)), wanted = x, first;
      for (int i = 0; i < half; ++i) {
        const bool neighbours = pairs == RopePairs::neighbours;
        const auto a = static_cast<std::size_t>(neighbours ? 2 * i : i);
        const std::size_t b = a + static_cast<std::size_t>(neighbours ? 1 : half);
        const auto d = static_cast<std::size_t>(dims);
        const double angle = 0.7 * i + 0.1;
        table[a] = table[b] = static_cast<float>(std::cos(angle));
        table[d + b] = static_cast<float>(std::sin(angle));
        table[d + a] = -table[d + b];
        wanted[a] = static_cast<float>(x[a] * std::cos(angle) - x[b] * std::sin(angle));
        wanted[b] = static_cast<float>(x[a] * std::sin(angle) + x[b] * std::cos(angle));
      }
      for (const CpuKernels* kernels : machine_kernels()) {
        CAPTURE(dims, static_cast<int>(pairs), kernels->name);
        std::vector<float> got = x;
        kernels->rotate(got.data(), table.data(), dims, pairs);
        for (std::size_t i = 0; i < got.size(); ++i)
          CHECK(std::abs(got[i] - wanted[i]) <= 1e-6f * (1.0f + std::abs(wanted[i])));
        if (first.empty()) first = got;
        CHECK(equal_bits(first, got));
      }
    }
  }
}

TEST_CASE("cache elements are the scalar conversions of the values, in their places") {
  std::vector<float> x = random_floats(37, 81);
  x[3] = 0.0f;
  x[4] = 70000.0f;  // beyond f16
  x[5] = 1e-6f;     // an f16 subnormal
  x[6] = -1e-9f;
  x[36] = -INFINITY;
  for (const CpuKernels* kernels : machine_kernels())
    for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16})
      for (const int step : {1, 16}) {
        CAPTURE(kernels->name, static_cast<int>(type), step);
        const std::size_t bytes = kv_element_bytes(type);
        std::vector<std::byte> wanted(x.size() * 16 * bytes + 8, std::byte{0xEE}), got = wanted;
        for (std::size_t i = 0; i < x.size(); ++i) {
          std::byte* to = &wanted[i * static_cast<std::size_t>(step) * bytes];
          const std::uint16_t half = type == KvType::f16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
          std::memcpy(to, type == KvType::f32 ? static_cast<const void*>(&x[i]) : &half, bytes);
        }
        kernels->store_kv(type, x.data(), static_cast<int>(x.size()), step, got.data());
        CHECK(wanted == got);
      }
}

TEST_CASE(
    "CPU attention equals the reference, is the same on every instruction set and split by split") {
  struct Shape {
    int n_heads, n_kv_heads, dim, window;
  };
  std::mt19937 dice(51);
  for (const Shape s : {Shape{1, 1, 16, 0},
                        {3, 1, 40, 0},
                        {6, 2, 64, 0},
                        {7, 1, 72, 19},
                        {4, 1, 100, 300},
                        {9, 3, 64, 0},
                        {4, 1, 256, 33},
                        {5, 1, 96, 0},
                        {12, 4, 80, 0},
                        {14, 2, 112, 17},
                        {16, 1, 192, 19},
                        {28, 4, 128, 19},
                        {2, 2, 512, 19}}) {
    for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::int8}) {
      if (type == KvType::int8 && s.dim % 8 != 0) continue;
      CAPTURE(s.n_heads, s.n_kv_heads, s.dim, s.window, static_cast<int>(type));
      const int length = 600;
      KvGroupSpec group{{0}, s.window, s.n_kv_heads, s.dim, s.dim};
      const auto cache = KvCache::create({&group, 1}, type, type, length).value();
      KvSequence sequence(cache, length);
      sequence.reserve(length).value();
      const KvView& kv = cache->views()[0];
      std::memset(kv.pages, 0xFF, cache->pool_bytes());  // NaN where nothing is written
      const std::int32_t* table = sequence.block_tables()[0];
      const auto put = [&](std::byte* to, int i) {
        const float x = std::normal_distribution<float>()(dice);
        if (type == KvType::int8) {
          to[i] = static_cast<std::byte>(static_cast<int>(dice() % 255) - 127);
        } else if (type != KvType::f32) {
          const std::uint16_t half = type == KvType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
          std::memcpy(to + 2 * i, &half, 2);
        } else {
          std::memcpy(to + 4 * i, &x, 4);
        }
      };
      for (int page = 0; page < (length + 15) / 16; ++page)
        for (int h = 0; h < s.n_kv_heads; ++h)
          for (int i = 0; i < 16 * s.dim; ++i) {
            put(kv.keys(table[page], 0, h), i);
            put(kv.values(table[page], 0, h), i);
          }
      if (type == KvType::int8)
        for (int page = 0; page < (length + 15) / 16; ++page)
          for (int h = 0; h < s.n_kv_heads; ++h)
            for (int i = 0; i < 16 * ((s.dim + 63) / 64); ++i)
              for (std::byte* scales :
                   {kv.key_scales(table[page], 0, h), kv.value_scales(table[page], 0, h)}) {
                const std::uint16_t half =
                    f32_to_f16(0.002f + 0.01f * static_cast<float>(dice() % 1000) / 1000.0f);
                std::memcpy(scales + 2 * i, &half, 2);
              }
      LayerSpec layer;
      layer.n_heads = s.n_heads;
      layer.n_kv_heads = s.n_kv_heads;
      layer.key_dim = layer.value_dim = s.dim;
      layer.window = s.window;
      layer.attention_scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
      // Tiles of queries of every size that the kernels know: 12, 6, 4, 3, 2, 1.
      const int n_rows = s.window == 19 || s.dim == 256 ? 2 : 5;
      const int width = s.n_heads * s.dim, queries = n_rows * layer.group();
      const std::vector<float> q = random_floats(static_cast<std::size_t>(n_rows * width), 61);
      for (const int position : {0, 14, 250, 255, 509, 590}) {
        layer.attention_softcap = position % 2 == 0 ? 0.0 : 1.5;
        CAPTURE(position, layer.attention_softcap);
        std::vector<float> wanted(q.size());
        AttentionScratch scratch(layer.group(), s.dim, s.dim);
        for (int h = 0; h < s.n_kv_heads; ++h)
          attend_reference(
              {&layer, &kv, table, h, n_rows, position, q.data(), static_cast<std::size_t>(width),
               wanted.data(), static_cast<std::size_t>(width)},
              scratch);
        std::vector<float> first;
        for (const CpuKernels* kernels : machine_kernels()) {
          CAPTURE(kernels->name);
          const auto run = [&](bool by_split) {
            std::vector<float> out(q.size()), work(attend_scratch(s.dim, s.dim));
            const int n_splits = (position + n_rows - 1) / 256 + 1;
            for (int h = 0; h < s.n_kv_heads; ++h) {
              std::vector<float> max(static_cast<std::size_t>(queries)), sum(max.size()),
                  state(max.size() * static_cast<std::size_t>(s.dim));
              std::vector<float> part_max(max), part_sum(sum), part_state(state);
              AttendArgs a{&kv,
                           table,
                           0,
                           h,
                           s.dim,
                           s.dim,
                           layer.group(),
                           static_cast<float>(layer.attention_scale),
                           static_cast<float>(layer.attention_softcap),
                           s.window,
                           position,
                           n_rows,
                           q.data() + h * layer.group() * s.dim,
                           static_cast<std::size_t>(width),
                           0,
                           n_splits,
                           work.data(),
                           max.data(),
                           sum.data(),
                           state.data()};
              if (!by_split) {
                kernels->attend(a);
              } else {
                a.max = part_max.data();
                a.sum = part_sum.data();
                a.output = part_state.data();
                a.n_splits = 1;
                for (a.first_split = 0; a.first_split < n_splits; ++a.first_split) {
                  kernels->attend(a);
                  for (std::size_t i = 0; i < max.size(); ++i)
                    kernels->merge(&max[i], &sum[i], &state[i * static_cast<std::size_t>(s.dim)],
                                   part_max[i], part_sum[i],
                                   &part_state[i * static_cast<std::size_t>(s.dim)], s.dim);
                }
              }
              for (int i = 0; i < queries; ++i)
                for (int d = 0; d < s.dim; ++d)
                  out[static_cast<std::size_t>(
                      i / layer.group() * width + (h * layer.group() + i % layer.group()) * s.dim +
                      d)] = state[static_cast<std::size_t>(i * s.dim + d)] /
                            sum[static_cast<std::size_t>(i)];
            }
            return out;
          };
          const std::vector<float> got = run(false);
          CHECK(equal_bits(got, run(true)));
          double worst = 0;
          for (std::size_t i = 0; i < got.size(); ++i)
            worst = std::max(
                worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i])));
          CHECK(worst <= 2e-5);  // values are about 1; some hundred float operations
          if (first.empty()) first = got;
          CHECK(equal_bits(first, got));
        }
      }
    }
  }
}
