// Packed weights times rows of activations (part of kernels.inl.hpp).

/// Asks for memory that is read soon. What hardware fetches by itself ends with each page of memory
/// and with each short stream: about a third of the bandwidth (docs/performance.md).
inline constexpr int kAhead = 4096;  // bytes of weights
DECANT_VEC void prefetch(const std::byte* from, const std::byte* to) {
#if defined(__GNUC__) || defined(__clang__)
  for (; from < to; from += 64) __builtin_prefetch(from, 0, 3);
#else
  (void)from, (void)to;
#endif
}
template <int Lines>
DECANT_VEC void prefetch_lines(const std::byte* from) {
  DECANT_UNROLL(16)
  for (int i = 0; i < Lines; ++i) prefetch(from + 64 * i, from + 64 * i + 1);
}

struct Codes {
  B of[8];  // columns 4 j .. 4 j + 3
};

// ------------------------------------------------------------------ block formats (see pack.hpp)

DECANT_VEC void unpack4(const std::byte*& p, Codes& c) {
  DECANT_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const B both = b_load(p + 64 * j);
    c.of[j] = b_and(both, 0x0F);
    c.of[4 + j] = b_and(b_shift<-4>(both), 0x0F);
  }
  p += 256;
}
/// The fifth bits, or the third ones: bit j of a byte for of[j].
template <int Bit>
DECANT_VEC void unpack_top1(const std::byte*& p, Codes& c) {
  const B top = b_load(p);
  p += 64;
  constexpr std::uint8_t mask = 1 << Bit;
  c.of[0] = b_or(c.of[0], b_and(b_shift<Bit - 0>(top), mask));
  c.of[1] = b_or(c.of[1], b_and(b_shift<Bit - 1>(top), mask));
  c.of[2] = b_or(c.of[2], b_and(b_shift<Bit - 2>(top), mask));
  c.of[3] = b_or(c.of[3], b_and(b_shift<Bit - 3>(top), mask));
  c.of[4] = b_or(c.of[4], b_and(b_shift<Bit - 4>(top), mask));
  c.of[5] = b_or(c.of[5], b_and(b_shift<Bit - 5>(top), mask));
  c.of[6] = b_or(c.of[6], b_and(b_shift<Bit - 6>(top), mask));
  c.of[7] = b_or(c.of[7], b_and(b_shift<Bit - 7>(top), mask));
}
/// Two bits each: bits 2 j, 2 j + 1 of the first 64 bytes for of[j], of the next 64 for of[4 + j];
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
    c.of[j] = At == 0 ? l[j] : b_or(c.of[j], l[j]);
    c.of[4 + j] = At == 0 ? h[j] : b_or(c.of[4 + j], h[j]);
  }
}
DECANT_VEC void unpack8(const std::byte*& p, Codes& c) {
  DECANT_UNROLL(8)
  for (int j = 0; j < 8; ++j) c.of[j] = b_load(p + 64 * j);
  p += 512;
}

template <int Bits>
DECANT_VEC void unpack(const std::byte*& p, Codes& c) {
  if constexpr (Bits == 8) unpack8(p, c);
  if constexpr (Bits == 2 || Bits == 3) unpack2<0>(p, c);
  if constexpr (Bits >= 4 && Bits <= 6) unpack4(p, c);
  if constexpr (Bits == 3) unpack_top1<2>(p, c);
  if constexpr (Bits == 5) unpack_top1<4>(p, c);
  if constexpr (Bits == 6) unpack2<4>(p, c);
}

/// What a format's reader hands on for a block of 16 rows x 32 columns.
/// kBits: of a code; kZero: log2 of the zero point, -1: none; kHalves: a scale for each 16 columns;
/// kScaleBytes: of a block, without what a super-block has once.
template <int Bits, bool Min>
struct FormatBlock32 {
  static constexpr int kBits = Bits, kZero = Min ? -1 : Bits - 1, kScaleBytes = Min ? 64 : 32;
  static constexpr bool kHalves = false, kMin = Min;
  Codes c;
  F s[1], m[1];
  DECANT_VEC_MEMBER void next(const std::byte*& p, int) {
    s[0] = f_from_f16(p);
    if constexpr (Min) m[0] = f_from_f16(p + 32);
    p += kScaleBytes;
    unpack<Bits>(p, c);
  }
};
using FormatQ4_0 = FormatBlock32<4, false>;
using FormatQ4_1 = FormatBlock32<4, true>;
using FormatQ5_0 = FormatBlock32<5, false>;
using FormatQ5_1 = FormatBlock32<5, true>;
using FormatQ8_0 = FormatBlock32<8, false>;
/// Super-blocks of 256 columns: f16 scales, then a byte for each sub-scale (unsigned if there are
/// minimums) and each sub-minimum. d x sc is exact.
template <int Bits, bool Halves, bool Min>
struct FormatBlock256 {
  static constexpr int kScales = Halves ? 2 : 1;
  static constexpr int kBits = Bits, kZero = Min ? -1 : Bits - 1;
  static constexpr int kScaleBytes = 16 * kScales * (Min ? 2 : 1);
  static constexpr bool kHalves = Halves, kMin = Min;
  Codes c;
  F s[kScales], m[kScales], d, dmin;
  DECANT_VEC_MEMBER void next(const std::byte*& p, int b) {
    if (b % 8 == 0) {
      d = f_from_f16(p);
      if constexpr (Min) dmin = f_from_f16(p + 32);  // stored negated
      p += Min ? 64 : 32;
    }
    DECANT_UNROLL(2)
    for (int i = 0; i < kScales; ++i) {
      s[i] = f_mul(d, f_from_i(Min ? i_from_u8(p + 16 * i) : i_from_i8(p + 16 * i)));
      if constexpr (Min) m[i] = f_mul(dmin, f_from_i(i_from_u8(p + 16 * (kScales + i))));
    }
    p += kScaleBytes;
    unpack<Bits>(p, c);
  }
};
using FormatQ2_K = FormatBlock256<2, true, true>;
using FormatQ3_K = FormatBlock256<3, true, false>;
using FormatQ4_K = FormatBlock256<4, false, true>;
using FormatQ5_K = FormatBlock256<5, false, true>;
using FormatQ6_K = FormatBlock256<6, true, false>;

// ----------------------------------------------------------------------- integer multiplication

/// What the codes' zero point takes from their product with a block of activations, or its half k.
template <class Format>
DECANT_VEC I zero_point(const ActBlock* a, int k) {
  const std::int32_t nsum = Format::kHalves ? a->nsum_half[k] : a->nsum;
  if constexpr (Format::kBits == 8) return dot8_start(nsum);
  return i_set(Format::kZero >= 0 ? nsum * (1 << Format::kZero) : 0);
}
/// start + 4 N columns of codes times the activations of a block from `column` on. As int16 those
/// are 254 q + q of the second block.
template <class Format, int N, bool Wide>
DECANT_VEC I integer_sum(I start, const B* codes, const ActBlock* a, int column) {
  const I low = dot_columns<Format::kBits, N>(start, codes, a[Wide].q + column);
  if constexpr (!Wide) return low;
  return i_add(low, times_254(dot_columns<Format::kBits, N>(i_set(0), codes, a->q + column)));
}
/// acc + the minimums of a block times the sums of activations.
template <class Format>
DECANT_VEC F add_minimums(const Format& f, const ActBlock* a, F acc) {
  if constexpr (Format::kMin) {
    DECANT_UNROLL(2)
    for (int k = 0; k < (Format::kHalves ? 2 : 1); ++k)
      acc = f_fma(f.m[k], f_set(Format::kHalves ? a->dsum_half[k] : a->dsum), acc);
  }
  return acc;
}

/// acc[t] += a block of 16 rows x 32 columns times the activations of token t. In two passes all
/// tokens meet one half of the columns, then the other.
template <class Format, int T, bool Wide>
DECANT_VEC void add_block(const Format& f, const ActBlock* acts, std::size_t act_stride, F* acc) {
  constexpr int kScales = Format::kHalves ? 2 : 1, kParts = kScales > kPasses ? kScales : kPasses;
  constexpr bool kShares = kParts > kScales;  // both halves have one scale
  Codes c;
  DECANT_UNROLL(8)
  for (int j = 0; j < 8; ++j) c.of[j] = dot_codes<Format::kBits>(f.c.of[j]);
  std::int32_t sums[T][16];  // of the first half, if so
  DECANT_UNROLL(2)
  for (int pass = 0; pass < kPasses; ++pass) {
    DECANT_UNROLL(kPasses == 1 ? 16 : 2)
    for (int t = 0; t < T; ++t) {
      const ActBlock* const a = acts + static_cast<std::size_t>(t) * act_stride;
      DECANT_UNROLL(2)
      for (int i = pass * (kParts / kPasses); i < (pass + 1) * (kParts / kPasses); ++i) {
        const int k = kShares ? 0 : i;
        const I start = kShares && i == 1 ? i_load(sums[t]) : zero_point<Format>(a, k);
        const I products = integer_sum<Format, 8 / kParts, Wide>(start, c.of + 8 / kParts * i, a,
                                                                 kActBlock / kParts * i);
        if (kShares && i == 0)
          i_store(sums[t], products);
        else
          acc[t] = f_fma(f_mul(f.s[k], f_set(a->d)), f_from_i(products), acc[t]);
      }
      if (pass == kPasses - 1) acc[t] = add_minimums(f, a, acc[t]);
    }
  }
}

/// One group of 16 rows times T tokens. Each output is one chain over blocks in ascending order:
/// the same bits for any T.
template <class Format, int T, bool Wide>
DECANT_KERNEL void matmul_tile(const std::byte* p, int n_blocks, const ActBlock* acts,
                               std::size_t act_stride, float* out, std::size_t out_stride) {
  constexpr std::size_t kStep = Wide ? 2 : 1;
  F acc[T];
  DECANT_UNROLL(16)
  for (int t = 0; t < T; ++t) acc[t] = f_set(0.0f);
  Format f{};
  for (int b = 0; b < n_blocks; ++b) {
    const std::byte* const block = p;
    f.next(p, b);
    // A line for each bit, and one or half a one of scales.
    prefetch_lines<Format::kBits>(block + kAhead);
    if (Format::kScaleBytes == 64 || b % 2 == 1)
      prefetch_lines<1>(block + kAhead + 64 * Format::kBits);
    const ActBlock* const x = acts + kStep * static_cast<std::size_t>(b);
    if constexpr (kWords && Wide)
      add_words<Format, T>(f, x, act_stride, acc);
    else
      add_block<Format, T, Wide>(f, x, act_stride, acc);
  }
  DECANT_UNROLL(16)
  for (int t = 0; t < T; ++t) f_store(out + static_cast<std::size_t>(t) * out_stride, acc[t]);
}

/// All row groups of the call times T tokens from `row` on.
template <class Format, int T, bool Wide>
DECANT_KERNEL void matmul_tokens(const MatmulArgs& a, int row) {
  const int n_blocks = a.weight->cols / kActBlock;
  for (int g = 0; g < a.n_groups; ++g)
    matmul_tile<Format, T, Wide>(
        a.weight->data + static_cast<std::uint64_t>(a.first_group + g) * a.weight->group_bytes,
        n_blocks, a.acts + static_cast<std::size_t>(row) * a.act_stride, a.act_stride,
        a.out + static_cast<std::size_t>(row) * a.out_stride +
            static_cast<std::size_t>(g) * kRowGroup,
        a.out_stride);
}

template <class Format>
DECANT_KERNEL void matmul_integer(const MatmulArgs& a) {
  int row = 0;
  if constexpr (kManyTokens) {
    // In passes the sums lie in memory anyway, and more tokens share the unpacking.
    constexpr bool kSixteen = kPasses > 1 || kAccumulators >= 16;
    if (a.wide) {
      if constexpr (kPasses > 1)
        for (; row + 16 <= a.n_rows; row += 16) matmul_tokens<Format, 16, true>(a, row);
      for (; row + 8 <= a.n_rows; row += 8) matmul_tokens<Format, 8, true>(a, row);
      for (; row + 4 <= a.n_rows; row += 4) matmul_tokens<Format, 4, true>(a, row);
    } else {
      if constexpr (kSixteen)
        for (; row + 16 <= a.n_rows; row += 16) matmul_tokens<Format, 16, false>(a, row);
      for (; row + 12 <= a.n_rows; row += 12) matmul_tokens<Format, 12, false>(a, row);
      for (; row + 8 <= a.n_rows; row += 8) matmul_tokens<Format, 8, false>(a, row);
      for (; row + 4 <= a.n_rows; row += 4) matmul_tokens<Format, 4, false>(a, row);
      for (; row + 2 <= a.n_rows; row += 2) matmul_tokens<Format, 2, false>(a, row);
    }
  }
  for (; row < a.n_rows; ++row)
    a.wide ? matmul_tokens<Format, 1, true>(a, row) : matmul_tokens<Format, 1, false>(a, row);
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
    for (int g = 0; g < G; ++g) {
      const std::byte* const at = p + static_cast<std::uint64_t>(g) * group_bytes +
                                  static_cast<std::size_t>(k) * (kRowGroup * Element::kBytes);
      w[g] = Element::load(at);
      if constexpr (T == 1) prefetch(at + kAhead / G, at + kAhead / G + 1);
    }
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
      constexpr int kAtOnce = G * 6 <= kAccumulators ? G : 1;
      for (int i = 0; i < G; i += kAtOnce)
        float_tile<Element, kAtOnce, 6>(p + static_cast<std::uint64_t>(i) * bytes, bytes,
                                        a.weight->cols, x, a.float_stride, out + i * kRowGroup,
                                        a.out_stride);
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
