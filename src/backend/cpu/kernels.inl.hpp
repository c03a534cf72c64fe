// All CPU kernels, written once over the vector layer and included once for each instruction set,
// inside a namespace and a target region of its own. Nothing here may include, use a template of
// the standard library or write a lambda.
//
// Vector layer: F sixteen floats, I sixteen int32, B sixteen lanes of four unsigned bytes.
// Every result is an IEEE operation on lanes in a stated order, so all instruction sets agree.

struct Codes {
  B lo[4], hi[4];  // columns 4 j .. 4 j + 3, and 16 + the same
};

// ------------------------------------------------------------------ block formats (see pack.hpp)

DECANT_VEC void unpack4(const std::byte*& p, Codes& c) {
  DECANT_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const B both = b_load(p + 64 * j);
    c.lo[j] = b_and(both, 0x0F);
    c.hi[j] = b_and(b_shift<-4>(both), 0x0F);
  }
  p += 256;
}
/// The fifth bits, or the third ones: bit j of a byte for lo[j], bit 4 + j for hi[j].
template <int Bit>
DECANT_VEC void unpack_top1(const std::byte*& p, Codes& c) {
  const B top = b_load(p);
  p += 64;
  constexpr std::uint8_t mask = 1 << Bit;
  c.lo[0] = b_or(c.lo[0], b_and(b_shift<Bit - 0>(top), mask));
  c.lo[1] = b_or(c.lo[1], b_and(b_shift<Bit - 1>(top), mask));
  c.lo[2] = b_or(c.lo[2], b_and(b_shift<Bit - 2>(top), mask));
  c.lo[3] = b_or(c.lo[3], b_and(b_shift<Bit - 3>(top), mask));
  c.hi[0] = b_or(c.hi[0], b_and(b_shift<Bit - 4>(top), mask));
  c.hi[1] = b_or(c.hi[1], b_and(b_shift<Bit - 5>(top), mask));
  c.hi[2] = b_or(c.hi[2], b_and(b_shift<Bit - 6>(top), mask));
  c.hi[3] = b_or(c.hi[3], b_and(b_shift<Bit - 7>(top), mask));
}
/// Two bits each: bits 2 j, 2 j + 1 of the first 64 bytes for lo[j], of the next 64 for hi[j];
/// moved to bit `At`.
template <int At>
DECANT_VEC void unpack2(const std::byte*& p, Codes& c) {
  const B lo = b_load(p), hi = b_load(p + 64);
  p += 128;
  constexpr std::uint8_t mask = 3 << At;
  const B l[4] = {b_and(b_shift<At>(lo), mask), b_and(b_shift<At - 2>(lo), mask),
                  b_and(b_shift<At - 4>(lo), mask), b_and(b_shift<At - 6>(lo), mask)};
  const B h[4] = {b_and(b_shift<At>(hi), mask), b_and(b_shift<At - 2>(hi), mask),
                  b_and(b_shift<At - 4>(hi), mask), b_and(b_shift<At - 6>(hi), mask)};
  DECANT_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    c.lo[j] = At == 0 ? l[j] : b_or(c.lo[j], l[j]);
    c.hi[j] = At == 0 ? h[j] : b_or(c.hi[j], h[j]);
  }
}
DECANT_VEC void unpack8(const std::byte*& p, Codes& c) {
  DECANT_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    c.lo[j] = b_load(p + 64 * j);
    c.hi[j] = b_load(p + 256 + 64 * j);
  }
  p += 512;
}

/// What a format's reader hands on for a block of 16 rows x 32 columns.
/// kBits: of a code; kZero: log2 of the zero point, -1: none; kHalves: a scale for each 16 columns.
struct FormatQ4_0 {
  static constexpr int kBits = 4, kZero = 3;
  static constexpr bool kHalves = false, kMin = false;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    p += 32;
    unpack4(p, c);
  }
};
struct FormatQ4_1 {
  static constexpr int kBits = 4, kZero = -1;
  static constexpr bool kHalves = false, kMin = true;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    m[0] = f_from_f16(p + 32);
    p += 64;
    unpack4(p, c);
  }
};
struct FormatQ5_0 {
  static constexpr int kBits = 5, kZero = 4;
  static constexpr bool kHalves = false, kMin = false;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    p += 32;
    unpack4(p, c);
    unpack_top1<4>(p, c);
  }
};
struct FormatQ5_1 {
  static constexpr int kBits = 5, kZero = -1;
  static constexpr bool kHalves = false, kMin = true;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    m[0] = f_from_f16(p + 32);
    p += 64;
    unpack4(p, c);
    unpack_top1<4>(p, c);
  }
};
struct FormatQ8_0 {
  static constexpr int kBits = 8, kZero = 7;
  static constexpr bool kHalves = false, kMin = false;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    p += 32;
    unpack8(p, c);
  }
};
/// Super-blocks of 256 columns: f16 scales, then a byte for each sub-scale. d x sc is exact.
struct FormatQ4_K {
  static constexpr int kBits = 4, kZero = -1;
  static constexpr bool kHalves = false, kMin = true;
  Codes c;
  F s[1], m[1], d, dmin;
  DECANT_VEC_MEMBER void head(const std::byte*& p, int b) {
    if (b % 8 == 0) {
      d = f_from_f16(p);
      dmin = f_from_f16(p + 32);
      p += 64;
    }
    s[0] = f_mul(d, f_from_i(i_from_u8(p)));
    m[0] = f_mul(dmin, f_from_i(i_from_u8(p + 16)));  // dmin is stored negated
    p += 32;
  }
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    head(p, b);
    unpack4(p, c);
  }
};
struct FormatQ5_K : FormatQ4_K {
  static constexpr int kBits = 5;
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    head(p, b);
    unpack4(p, c);
    unpack_top1<4>(p, c);
  }
};
struct FormatQ6_K {
  static constexpr int kBits = 6, kZero = 5;
  static constexpr bool kHalves = true, kMin = false;
  Codes c;
  F s[2], m[2], d;
  DECANT_VEC_MEMBER void head(const std::byte*& p, int b) {
    if (b % 8 == 0) {
      d = f_from_f16(p);
      p += 32;
    }
    s[0] = f_mul(d, f_from_i(i_from_i8(p)));
    s[1] = f_mul(d, f_from_i(i_from_i8(p + 16)));
    p += 32;
  }
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    head(p, b);
    unpack4(p, c);
    unpack2<4>(p, c);
  }
};
struct FormatQ3_K : FormatQ6_K {
  static constexpr int kBits = 3, kZero = 2;
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    head(p, b);
    unpack2<0>(p, c);
    unpack_top1<2>(p, c);
  }
};
struct FormatQ2_K {
  static constexpr int kBits = 2, kZero = -1;
  static constexpr bool kHalves = true, kMin = true;
  Codes c;
  F s[2], m[2], d, dmin;
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    if (b % 8 == 0) {
      d = f_from_f16(p);
      dmin = f_from_f16(p + 32);
      p += 64;
    }
    s[0] = f_mul(d, f_from_i(i_from_u8(p)));
    s[1] = f_mul(d, f_from_i(i_from_u8(p + 16)));
    m[0] = f_mul(dmin, f_from_i(i_from_u8(p + 32)));
    m[1] = f_mul(dmin, f_from_i(i_from_u8(p + 48)));
    p += 64;
    unpack2<0>(p, c);
  }
};

// ----------------------------------------------------------------------- integer multiplication

DECANT_VEC std::int32_t four_bytes(const std::int8_t* q) {
  std::int32_t v;
  __builtin_memcpy(&v, q, 4);
  return v;
}
template <class Format>
DECANT_VEC I dot_start(std::int32_t nsum) {
  if constexpr (Format::kBits == 8)
    return dot8_start(nsum);
  else if constexpr (Format::kZero >= 0)
    return i_shl<Format::kZero>(i_set(nsum));
  else
    return i_set(0);
}
template <class Format>
DECANT_VEC I dot_half(I acc, const B* codes, const std::int8_t* q) {
  DECANT_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    if constexpr (Format::kBits == 8)
      acc = dot8(acc, codes[j], four_bytes(q + 4 * j));
    else
      acc = dot(acc, codes[j], four_bytes(q + 4 * j));
  }
  return acc;
}

/// One group of 16 rows times T tokens. Each output is one chain over blocks in ascending order:
/// the same bits for any T.
template <class Format, int T>
DECANT_KERNEL void matmul_tile(const std::byte* p, int n_blocks, const ActBlock* acts,
                               std::size_t act_stride, float* out, std::size_t out_stride) {
  F acc[T];
  DECANT_UNROLL(16)
  for (int t = 0; t < T; ++t) acc[t] = f_set(0.0f);
  Format f{};
  for (int b = 0; b < n_blocks; ++b) {
    f.next(p, b);
    DECANT_UNROLL(16)
    for (int t = 0; t < T; ++t) {
      const ActBlock& a =
          acts[static_cast<std::size_t>(t) * act_stride + static_cast<std::size_t>(b)];
      if constexpr (Format::kHalves) {
        const I d0 = dot_half<Format>(dot_start<Format>(a.nsum_half[0]), f.c.lo, a.q);
        const I d1 = dot_half<Format>(dot_start<Format>(a.nsum_half[1]), f.c.hi, a.q + 16);
        acc[t] = f_fma(f_mul(f.s[0], f_set(a.d)), f_from_i(d0), acc[t]);
        acc[t] = f_fma(f_mul(f.s[1], f_set(a.d)), f_from_i(d1), acc[t]);
        if constexpr (Format::kMin) {
          acc[t] = f_fma(f.m[0], f_set(a.dsum_half[0]), acc[t]);
          acc[t] = f_fma(f.m[1], f_set(a.dsum_half[1]), acc[t]);
        }
      } else {
        // Two chains: integer sums are exact in any order.
        const I d0 = dot_half<Format>(dot_start<Format>(a.nsum), f.c.lo, a.q);
        const I d1 = dot_half<Format>(i_set(0), f.c.hi, a.q + 16);
        acc[t] = f_fma(f_mul(f.s[0], f_set(a.d)), f_from_i(i_add(d0, d1)), acc[t]);
        if constexpr (Format::kMin) acc[t] = f_fma(f.m[0], f_set(a.dsum), acc[t]);
      }
    }
  }
  DECANT_UNROLL(16)
  for (int t = 0; t < T; ++t) f_store(out + static_cast<std::size_t>(t) * out_stride, acc[t]);
}

template <class Format>
DECANT_KERNEL void matmul_integer(const MatmulArgs& a) {
  const int n_blocks = a.weight->cols / kActBlock;
  for (int row = 0; row < a.n_rows;) {
    const int left = a.n_rows - row;
    const ActBlock* acts = a.acts + static_cast<std::size_t>(row) * a.act_stride;
    const int tile = !kManyTokens ? 1
                     : left >= 12 ? 12
                     : left >= 8  ? 8
                     : left >= 4  ? 4
                     : left >= 2  ? 2
                                  : 1;
    for (int g = 0; g < a.n_groups; ++g) {
      const std::byte* p =
          a.weight->data + static_cast<std::uint64_t>(a.first_group + g) * a.weight->group_bytes;
      float* out = a.out + static_cast<std::size_t>(row) * a.out_stride +
                   static_cast<std::size_t>(g) * kRowGroup;
      if constexpr (kManyTokens) {
        if (tile == 12) matmul_tile<Format, 12>(p, n_blocks, acts, a.act_stride, out, a.out_stride);
        if (tile == 8) matmul_tile<Format, 8>(p, n_blocks, acts, a.act_stride, out, a.out_stride);
        if (tile == 4) matmul_tile<Format, 4>(p, n_blocks, acts, a.act_stride, out, a.out_stride);
        if (tile == 2) matmul_tile<Format, 2>(p, n_blocks, acts, a.act_stride, out, a.out_stride);
      }
      if (tile == 1) matmul_tile<Format, 1>(p, n_blocks, acts, a.act_stride, out, a.out_stride);
    }
    row += tile;
  }
}

// ------------------------------------------------------------------------- float multiplication

struct ElementF32 {
  static constexpr int kBytes = 4;
  static DECANT_VEC F load(const std::byte* p) { return f_load(reinterpret_cast<const float*>(p)); }
};
struct ElementF16 {
  static constexpr int kBytes = 2;
  static DECANT_VEC F load(const std::byte* p) { return f_from_f16(p); }
};
struct ElementBF16 {
  static constexpr int kBytes = 2;
  static DECANT_VEC F load(const std::byte* p) { return f_from_bf16(p); }
};

/// G groups times T tokens: one FMA chain over the columns for each output.
template <class Element, int G, int T>
DECANT_KERNEL void float_tile(const std::byte* p, std::uint64_t group_bytes, int cols,
                              const float* x, std::size_t x_stride, float* out,
                              std::size_t out_stride) {
  F acc[G * T];
  DECANT_UNROLL(32)
  for (int i = 0; i < G * T; ++i) acc[i] = f_set(0.0f);
  for (int k = 0; k < cols; ++k) {
    F w[G];
    DECANT_UNROLL(4)
    for (int g = 0; g < G; ++g)
      w[g] = Element::load(p + static_cast<std::uint64_t>(g) * group_bytes +
                           static_cast<std::size_t>(k) * (kRowGroup * Element::kBytes));
    DECANT_UNROLL(16)
    for (int t = 0; t < T; ++t) {
      const F xt = f_set(x[static_cast<std::size_t>(t) * x_stride + static_cast<std::size_t>(k)]);
      DECANT_UNROLL(4)
      for (int g = 0; g < G; ++g) acc[t * G + g] = f_fma(w[g], xt, acc[t * G + g]);
    }
  }
  DECANT_UNROLL(16)
  for (int t = 0; t < T; ++t)
    for (int g = 0; g < G; ++g)
      f_store(
          out + static_cast<std::size_t>(t) * out_stride + static_cast<std::size_t>(g * kRowGroup),
          acc[t * G + g]);
}

template <class Element, int G>
DECANT_KERNEL void float_groups(const MatmulArgs& a, int g) {
  const std::byte* p =
      a.weight->data + static_cast<std::uint64_t>(a.first_group + g) * a.weight->group_bytes;
  const std::uint64_t bytes = a.weight->group_bytes;
  for (int row = 0; row < a.n_rows;) {
    const int left = a.n_rows - row;
    const float* x = a.floats + static_cast<std::size_t>(row) * a.float_stride;
    float* out = a.out + static_cast<std::size_t>(row) * a.out_stride +
                 static_cast<std::size_t>(g) * kRowGroup;
    if (left >= 6) {
      float_tile<Element, G, 6>(p, bytes, a.weight->cols, x, a.float_stride, out, a.out_stride);
      row += 6;
    } else if (left >= 2) {
      float_tile<Element, G, 2>(p, bytes, a.weight->cols, x, a.float_stride, out, a.out_stride);
      row += 2;
    } else {
      float_tile<Element, G, 1>(p, bytes, a.weight->cols, x, a.float_stride, out, a.out_stride);
      row += 1;
    }
  }
}

template <class Element>
DECANT_KERNEL void matmul_float(const MatmulArgs& a) {
  int g = 0;
  for (; g + 4 <= a.n_groups; g += 4) float_groups<Element, 4>(a, g);
  for (; g < a.n_groups; ++g) float_groups<Element, 1>(a, g);
}

DECANT_KERNEL void matmul(const MatmulArgs& a) {
  switch (a.weight->type) {
    case TensorType::F32: return matmul_float<ElementF32>(a);
    case TensorType::F16: return matmul_float<ElementF16>(a);
    case TensorType::BF16: return matmul_float<ElementBF16>(a);
    case TensorType::Q4_0: return matmul_integer<FormatQ4_0>(a);
    case TensorType::Q4_1: return matmul_integer<FormatQ4_1>(a);
    case TensorType::Q5_0: return matmul_integer<FormatQ5_0>(a);
    case TensorType::Q5_1: return matmul_integer<FormatQ5_1>(a);
    case TensorType::Q8_0: return matmul_integer<FormatQ8_0>(a);
    case TensorType::Q2_K: return matmul_integer<FormatQ2_K>(a);
    case TensorType::Q3_K: return matmul_integer<FormatQ3_K>(a);
    case TensorType::Q4_K: return matmul_integer<FormatQ4_K>(a);
    case TensorType::Q5_K: return matmul_integer<FormatQ5_K>(a);
    case TensorType::Q6_K: return matmul_integer<FormatQ6_K>(a);
    default: return;
  }
}

// ------------------------------------------------------------------------------ norms, int8, exp

/// Sixteen lanes to one value by a fixed tree.
DECANT_VEC float tree_sum(F a) {
  float v[16];
  f_store(v, a);
  for (int i = 0; i < 8; ++i) v[i] += v[i + 8];
  for (int i = 0; i < 4; ++i) v[i] += v[i + 4];
  v[0] += v[2];
  v[1] += v[3];
  return v[0] + v[1];
}
DECANT_VEC float tree_max(F a) {
  float v[16];
  f_store(v, a);
  for (int w = 8; w > 0; w /= 2)
    for (int i = 0; i < w; ++i) v[i] = v[i] > v[i + w] ? v[i] : v[i + w];
  return v[0];
}
/// p[0..n), zero behind; n < 16.
DECANT_VEC F f_load_part(const float* p, int n) {
  float v[16] = {};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return f_load(v);
}
DECANT_VEC void f_store_part(float* p, F a, int n) {
  float v[16];
  f_store(v, a);
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

/// 1 / sqrt(mean of squares + eps), lane sums over index mod 16.
DECANT_KERNEL float rms_scale(const float* x, int n, float eps) {
  F sum = f_set(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F v = f_load(x + i);
    sum = f_fma(v, v, sum);
  }
  if (i < n) {
    const F v = f_load_part(x + i, n - i);
    sum = f_fma(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(tree_sum(sum) / static_cast<float>(n) + eps);
}
DECANT_KERNEL void scale_by(const float* x, const float* weight, float scale, const float* add,
                            int n, float* to) {
  const F s = f_set(scale);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F y = f_mul(f_mul(f_load(x + i), s), f_load(weight + i));
    f_store(to + i, add == nullptr ? y : f_add(f_load(add + i), y));
  }
  if (i < n) {
    const F y = f_mul(f_mul(f_load_part(x + i, n - i), s), f_load_part(weight + i, n - i));
    f_store_part(to + i, add == nullptr ? y : f_add(f_load_part(add + i, n - i), y), n - i);
  }
}
DECANT_KERNEL void norm(const NormArgs& a) {
  if (a.output == nullptr) {
    for (int i = 0; i < a.n; ++i) a.sum[i] = a.residual[i];
  } else if (a.post_weight == nullptr) {
    for (int i = 0; i < a.n; ++i) a.sum[i] = a.residual[i] + a.output[i];
  } else {
    scale_by(a.output, a.post_weight, rms_scale(a.output, a.n, a.eps), a.residual, a.n, a.sum);
  }
  scale_by(a.sum, a.weight, rms_scale(a.sum, a.n, a.eps), nullptr, a.n, a.y);
}
DECANT_KERNEL void head_norm(float* x, const float* weight, int n, float eps) {
  scale_by(x, weight, rms_scale(x, n, eps), nullptr, n, x);
}

/// Blocks with a value that is not finite get d = NaN, so that the row's outputs show it.
DECANT_KERNEL void quantise(const float* x, int n, ActBlock* to) {
  for (int b = 0; b < n / kActBlock; ++b) {
    ActBlock& block = to[b];
    const F v0 = f_load(x + b * kActBlock), v1 = f_load(x + b * kActBlock + 16);
    const float max = tree_max(f_max(f_abs(v0), f_abs(v1)));
    const float poison = tree_sum(f_mul(f_add(v0, v1), f_set(0.0f))) + max * 0.0f;  // 0 or NaN
    const F id = f_set(max > 0.0f ? 127.0f / max : 0.0f);
    const F top = f_set(127.0f), bottom = f_set(-127.0f);
    F y0 = f_mul(v0, id), y1 = f_mul(v1, id);
    y0 = f_select_less(y0, top, y0, top);
    y1 = f_select_less(y1, top, y1, top);
    y0 = f_select_less(bottom, y0, y0, bottom);
    y1 = f_select_less(bottom, y1, y1, bottom);
    i_store_i8(block.q, i_round(y0));
    i_store_i8(block.q + 16, i_round(y1));
    std::int32_t s0 = 0, s1 = 0;
    for (int i = 0; i < 16; ++i) {
      s0 += block.q[i];
      s1 += block.q[16 + i];
    }
    block.d = max / 127.0f + poison;
    block.nsum = -(s0 + s1);
    block.nsum_half[0] = -s0;
    block.nsum_half[1] = -s1;
    block.dsum = block.d * static_cast<float>(s0 + s1);
    block.dsum_half[0] = block.d * static_cast<float>(s0);
    block.dsum_half[1] = block.d * static_cast<float>(s1);
    block.unused = 0;
  }
}

/// e^x within 2 ulp; 0 below -87.3, e^88 above 88 (Cody & Waite reduction, Taylor series).
DECANT_VEC F f_exp(F x) {
  const F low = f_set(-87.3f), high = f_set(88.0f);
  const F clamped = f_select_less(x, high, f_select_less(x, low, low, x), high);
  const F magic = f_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F k = f_sub(f_fma(clamped, f_set(1.44269504f), magic), magic);
  F r = f_fma(k, f_set(-0.693359375f), clamped);
  r = f_fma(k, f_set(2.12194440e-4f), r);
  F p = f_set(1.0f / 5040);
  p = f_fma(p, r, f_set(1.0f / 720));
  p = f_fma(p, r, f_set(1.0f / 120));
  p = f_fma(p, r, f_set(1.0f / 24));
  p = f_fma(p, r, f_set(1.0f / 6));
  p = f_fma(p, r, f_set(0.5f));
  p = f_fma(p, r, f_set(1.0f));
  p = f_fma(p, r, f_set(1.0f));
  const F power = f_bits(i_shl<23>(i_add(i_round(k), i_set(127))));
  return f_select_less(x, low, f_set(0.0f), f_mul(p, power));
}
DECANT_VEC float exp_one(float x) {
  float v[16];
  f_store(v, f_exp(f_set(x)));
  return v[0];
}

DECANT_VEC F activated(Activation activation, F x) {
  const F one = f_set(1.0f);
  if (activation == Activation::silu) return f_div(x, f_add(one, f_exp(f_sub(f_set(0.0f), x))));
  // 0.5 x (1 + tanh(u)) = x - x / (1 + e^2u) = x / (1 + e^-2u)
  const F cube = f_mul(f_mul(x, x), x);
  const F u = f_mul(f_set(0.79788456f), f_fma(f_set(0.044715f), cube, x));
  return f_div(x, f_add(one, f_exp(f_mul(f_set(-2.0f), u))));
}
DECANT_KERNEL void activate(Activation activation, const float* gate, const float* up, int n,
                            float* to) {
  int i = 0;
  for (; i + 16 <= n; i += 16)
    f_store(to + i, f_mul(activated(activation, f_load(gate + i)), f_load(up + i)));
  if (i < n)
    f_store_part(
        to + i,
        f_mul(activated(activation, f_load_part(gate + i, n - i)), f_load_part(up + i, n - i)),
        n - i);
}

// ------------------------------------------------------------------------------------ attention

template <KvType Type>
DECANT_VEC F kv_load(const std::byte* p, std::size_t element) {
  if constexpr (Type == KvType::f16)
    return f_from_f16(p + 2 * element);
  else
    return f_load(reinterpret_cast<const float*>(p) + element);
}
template <KvType Type>
DECANT_VEC F kv_load_part(const std::byte* p, std::size_t element, int n) {
  if constexpr (Type == KvType::f16) {
    std::uint16_t v[16] = {};
    __builtin_memcpy(v, p + 2 * element, static_cast<std::size_t>(2 * n));
    return f_from_f16(v);
  } else {
    return f_load_part(reinterpret_cast<const float*>(p) + element, n);
  }
}

/// Scores of N queries against the sixteen positions of a page.
template <KvType Type, int N>
DECANT_KERNEL void page_scores(const std::byte* keys, int key_dim, const float* const* q,
                               float scale, float* const* to) {
  F acc[N];
  DECANT_UNROLL(8)
  for (int i = 0; i < N; ++i) acc[i] = f_set(0.0f);
  for (int d = 0; d < key_dim; ++d) {
    const F k = kv_load<Type>(keys, static_cast<std::size_t>(d) * kPageTokens);
    DECANT_UNROLL(8)
    for (int i = 0; i < N; ++i) acc[i] = f_fma(f_set(q[i][d]), k, acc[i]);
  }
  DECANT_UNROLL(8)
  for (int i = 0; i < N; ++i) f_store(to[i], f_mul(acc[i], f_set(scale)));
}

/// output[i][d .. d + 16 V) += the weighted values of positions [from, to) of a page, for N
/// queries.
template <KvType Type, int N, int V>
DECANT_KERNEL void page_values(const std::byte* values, int value_dim, int d, const int* from,
                               const int* to, const float* const* weights, float* const* output) {
  F acc[N * V];
  DECANT_UNROLL(16)
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) acc[i * V + v] = f_load(output[i] + d + 16 * v);
  for (int p = 0; p < kPageTokens; ++p) {
    F x[V];
    DECANT_UNROLL(4)
    for (int v = 0; v < V; ++v)
      x[v] = kv_load<Type>(values, static_cast<std::size_t>(p * value_dim + d + 16 * v));
    DECANT_UNROLL(8)
    for (int i = 0; i < N; ++i) {
      if (p < from[i] || p >= to[i]) continue;
      const F w = f_set(weights[i][p]);
      DECANT_UNROLL(4)
      for (int v = 0; v < V; ++v) acc[i * V + v] = f_fma(w, x[v], acc[i * V + v]);
    }
  }
  DECANT_UNROLL(16)
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) f_store(output[i] + d + 16 * v, acc[i * V + v]);
}

template <KvType Type, int N>
DECANT_KERNEL void page_values_all(const std::byte* values, int value_dim, const int* from,
                                   const int* to, const float* const* weights,
                                   float* const* output) {
  int d = 0;
  for (; d + 64 <= value_dim; d += 64)
    page_values<Type, N, 4>(values, value_dim, d, from, to, weights, output);
  for (; d + 16 <= value_dim; d += 16)
    page_values<Type, N, 1>(values, value_dim, d, from, to, weights, output);
  if (d == value_dim) return;
  const int n = value_dim - d;
  for (int i = 0; i < N; ++i) {
    F acc = f_load_part(output[i] + d, n);
    for (int p = from[i]; p < to[i]; ++p)
      acc = f_fma(f_set(weights[i][p]),
                  kv_load_part<Type>(values, static_cast<std::size_t>(p * value_dim + d), n), acc);
    f_store_part(output[i] + d, acc, n);
  }
}

DECANT_KERNEL void merge(float* max, float* sum, float* output, float other_max, float other_sum,
                         const float* other_output, int value_dim) {
  if (other_sum == 0.0f) return;
  const bool first = *sum == 0.0f;
  const float top = first || other_max > *max ? other_max : *max;
  const float before = first ? 0.0f : exp_one(*max - top), now = exp_one(other_max - top);
  *max = top;
  *sum = first ? other_sum : *sum * before + other_sum * now;
  for (int d = 0; d < value_dim; ++d)
    output[d] = first ? other_output[d] : output[d] * before + other_output[d] * now;
}

template <KvType Keys, KvType Values>
DECANT_KERNEL void attend_typed(const AttendArgs& a) {
  constexpr int kSplit = 256, kTile = 4, kStride = kSplit + 16;
  const int n = a.n_rows * a.group;
  for (int i = 0; i < n; ++i) a.sum[i] = 0.0f;
  float* const split_output = a.scratch + kTile * kStride;  // [kTile][value_dim]
  for (int first = 0; first < n; first += kTile) {
    // Fewer queries than a tile: the last one is computed again and dropped.
    const int used = n - first < kTile ? n - first : kTile;
    int see_from[kTile], see_to[kTile];
    const float* q[kTile];
    int lowest = 1 << 30, highest = 0;
    for (int i = 0; i < kTile; ++i) {
      const int query = first + (i < used ? i : used - 1);
      const int position = a.first_position + query / a.group;
      see_from[i] = a.window == 0 || position < a.window ? 0 : position - a.window + 1;
      see_to[i] = position + 1;
      q[i] = a.q + static_cast<std::size_t>(query / a.group) * a.q_stride +
             static_cast<std::size_t>(query % a.group * a.key_dim);
      if (see_from[i] < lowest) lowest = see_from[i];
      if (see_to[i] > highest) highest = see_to[i];
    }
    for (int split = a.first_split; split < a.first_split + a.n_splits; ++split) {
      const int begin = split * kSplit;
      const int from = begin > lowest ? begin : lowest;
      const int to = begin + kSplit < highest ? begin + kSplit : highest;
      if (from >= to) continue;
      const int first_page = from / kPageTokens, last_page = (to - 1) / kPageTokens;
      float* scores[kTile];
      for (int i = 0; i < kTile; ++i)
        scores[i] = a.scratch + i * kStride;  // of positions from begin on
      for (int page = first_page; page <= last_page; ++page) {
        float* at[kTile];
        for (int i = 0; i < kTile; ++i) at[i] = scores[i] + (page * kPageTokens - begin);
        page_scores<Keys, kTile>(a.kv->keys(a.block_table[page], a.slot, a.kv_head), a.key_dim, q,
                                 a.scale, at);
      }
      float split_max[kTile], split_sum[kTile];
      for (int i = 0; i < used; ++i) {
        const int lo = from > see_from[i] ? from : see_from[i],
                  hi = to < see_to[i] ? to : see_to[i];
        split_sum[i] = 0.0f;
        if (lo >= hi) continue;
        // What the query does not see weighs exactly nothing: e^x is 0 there and adds 0.
        constexpr float kUnseen = -3.4e38f;
        for (int p = first_page * kPageTokens; p < lo; ++p) scores[i][p - begin] = kUnseen;
        for (int p = hi; p < (last_page + 1) * kPageTokens; ++p) scores[i][p - begin] = kUnseen;
        F max = f_set(kUnseen);
        for (int page = first_page; page <= last_page; ++page)
          max = f_max(f_load(scores[i] + (page * kPageTokens - begin)), max);
        split_max[i] = tree_max(max);
        F sum = f_set(0.0f);
        for (int page = first_page; page <= last_page; ++page) {
          const F e =
              f_exp(f_sub(f_load(scores[i] + (page * kPageTokens - begin)), f_set(split_max[i])));
          f_store(scores[i] + (page * kPageTokens - begin), e);
          sum = f_add(sum, e);
        }
        split_sum[i] = tree_sum(sum);
      }
      float* output[kTile];
      for (int i = 0; i < kTile; ++i) {
        output[i] = split_output + i * a.value_dim;
        for (int d = 0; d < a.value_dim; ++d) output[i][d] = 0.0f;
      }
      for (int page = first_page; page <= last_page; ++page) {
        int page_from[kTile], page_to[kTile];
        const float* weights[kTile];
        for (int i = 0; i < kTile; ++i) {
          const int lo = from > see_from[i] ? from : see_from[i],
                    hi = to < see_to[i] ? to : see_to[i];
          page_from[i] = lo - page * kPageTokens;
          page_to[i] = i < used ? hi - page * kPageTokens : 0;
          if (page_from[i] < 0) page_from[i] = 0;
          if (page_to[i] > kPageTokens) page_to[i] = kPageTokens;
          weights[i] = scores[i] + (page * kPageTokens - begin);
        }
        page_values_all<Values, kTile>(a.kv->values(a.block_table[page], a.slot, a.kv_head),
                                       a.value_dim, page_from, page_to, weights, output);
      }
      for (int i = 0; i < used; ++i)
        merge(
            a.max + first + i, a.sum + first + i,
            a.output + static_cast<std::size_t>(first + i) * static_cast<std::size_t>(a.value_dim),
            split_max[i], split_sum[i], output[i], a.value_dim);
    }
  }
}

DECANT_KERNEL void attend(const AttendArgs& a) {
  const bool k16 = a.kv->key_type == KvType::f16, v16 = a.kv->value_type == KvType::f16;
  if (k16 && v16) return attend_typed<KvType::f16, KvType::f16>(a);
  if (k16) return attend_typed<KvType::f16, KvType::f32>(a);
  if (v16) return attend_typed<KvType::f32, KvType::f16>(a);
  return attend_typed<KvType::f32, KvType::f32>(a);
}
