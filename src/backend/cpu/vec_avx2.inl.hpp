// The vector layer for AVX2 with FMA and F16C: pairs of 256-bit vectors, lanes 0-7 and 8-15.
inline constexpr const char* kIsaName = "avx2";
inline constexpr bool kManyTokens = true;  // kernels for several tokens at a time
inline constexpr int kAccumulators = 5;    // that stay in registers
inline constexpr int kQueries = 6;         // that attention takes at a time
struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct B {
  __m256i lo, hi;
};

DECANT_VEC F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DECANT_VEC void f_store(float* p, F a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
DECANT_VEC F f_set(float a) {
  const __m256 v = _mm256_set1_ps(a);
  return {v, v};
}
DECANT_VEC F f_add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
DECANT_VEC F f_sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
DECANT_VEC F f_mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
DECANT_VEC F f_div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
DECANT_VEC F f_fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DECANT_VEC F f_min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
DECANT_VEC F f_max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
DECANT_VEC F f_abs(F a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
DECANT_VEC F f_select_less(F a, F b, F yes, F no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
DECANT_VEC F f_from_f16(const void* p) {
  const auto* h = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
DECANT_VEC F f_from_bf16(const void* p) {
  const auto* h = static_cast<const __m128i*>(p);
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(h)),
                hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
DECANT_VEC void f_store_f16(void* p, F a) {
  auto* h = static_cast<__m128i*>(p);
  _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
DECANT_VEC F f_swap_pairs(F a) {
  return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
}
DECANT_VEC float f_sum(F a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
DECANT_VEC F f_from_i(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
DECANT_VEC I i_round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
DECANT_VEC I i_set(std::int32_t a) {
  const __m256i v = _mm256_set1_epi32(a);
  return {v, v};
}
DECANT_VEC I i_add(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
DECANT_VEC I i_sub(I a, I b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
DECANT_VEC I i_magnitude(F a) {
  const F positive = f_abs(a);
  return {_mm256_castps_si256(positive.lo), _mm256_castps_si256(positive.hi)};
}
DECANT_VEC I i_max(I a, I b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
DECANT_VEC std::int32_t i_highest(I a) {
  const __m256i eight = _mm256_max_epi32(a.lo, a.hi);
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}
DECANT_VEC std::int32_t i_sum(I a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}
template <int N>
DECANT_VEC I i_shl(I a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
DECANT_VEC I i_byte(I a) {
  return {_mm256_srai_epi32(_mm256_slli_epi32(a.lo, 24 - 8 * N), 24),
          _mm256_srai_epi32(_mm256_slli_epi32(a.hi, 24 - 8 * N), 24)};
}
DECANT_VEC I i_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
DECANT_VEC F f_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
DECANT_VEC I i_from_u8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v))};
}
DECANT_VEC I i_from_i8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v))};
}
DECANT_VEC void i_store_i8(std::int8_t* p, I a) {
  // Packs keep 128-bit lanes apart; the permutation puts the sixteen values in order.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
DECANT_VEC B b_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
DECANT_VEC B b_and(B a, std::uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
DECANT_VEC B b_or(B a, B b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int N>
DECANT_VEC B b_shift(B a) {
  if constexpr (N > 0)
    return {_mm256_slli_epi16(a.lo, N), _mm256_slli_epi16(a.hi, N)};
  else if constexpr (N < 0)
    return {_mm256_srli_epi16(a.lo, -N), _mm256_srli_epi16(a.hi, -N)};
  else
    return a;
}
// Parts of eight lanes: with all sixteen, codes of a block and sums would not fit the registers.
inline constexpr int kParts = 2;
using FPart = __m256;
using IPart = __m256i;
using BPart = __m256i;
DECANT_VEC FPart part(const F& a, int i) { return i == 0 ? a.lo : a.hi; }
DECANT_VEC void set_part(F& a, int i, FPart to) { (i == 0 ? a.lo : a.hi) = to; }
/// Codes of 8 bits as signed numbers, u - 128.
template <int Bits>
DECANT_VEC BPart codes_part(const B& a, int i) {
  const __m256i codes = i == 0 ? a.lo : a.hi;
  return Bits == 8 ? _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80))) : codes;
}
DECANT_VEC FPart f_part(float a) { return _mm256_set1_ps(a); }
DECANT_VEC IPart i_part(std::int32_t a) { return _mm256_set1_epi32(a); }
DECANT_VEC FPart f_mul(FPart a, FPart b) { return _mm256_mul_ps(a, b); }
DECANT_VEC FPart f_fma(FPart a, FPart b, FPart c) { return _mm256_fmadd_ps(a, b, c); }
DECANT_VEC FPart f_from_i(IPart a) { return _mm256_cvtepi32_ps(a); }
DECANT_VEC IPart i_add(IPart a, IPart b) { return _mm256_add_epi32(a, b); }
DECANT_VEC IPart times_254(IPart a) {
  return _mm256_sub_epi32(_mm256_slli_epi32(a, 8), _mm256_slli_epi32(a, 1));
}
DECANT_VEC IPart dot8_start(std::int32_t) { return i_part(0); }
/// acc + N codes x the 4 N bytes at q, which every lane sees. maddubs adds two products in 16 bits;
/// as many of these sums are added as cannot overflow. Codes of 8 bits: |w| times q with w's sign.
template <int Bits, int N>
DECANT_VEC IPart dot_columns(IPart acc, const BPart* codes, const std::int8_t* q) {
  constexpr int kLargest = Bits == 8 ? 128 : (1 << Bits) - 1, kRun = 32767 / (2 * 127 * kLargest);
  __m256i words = _mm256_setzero_si256();
  DECANT_UNROLL(8)
  for (int j = 0; j < N; ++j) {
    std::int32_t four;
    __builtin_memcpy(&four, q + 4 * j, 4);
    const __m256i b = _mm256_set1_epi32(four);
    const __m256i products =
        Bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes[j]), _mm256_sign_epi8(b, codes[j]))
                  : _mm256_maddubs_epi16(codes[j], b);
    words = j % kRun == 0 ? products : _mm256_add_epi16(words, products);
    if (j % kRun == kRun - 1 || j == N - 1)
      acc = _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  return acc;
}

inline constexpr bool kAddsWords = true;  // has add_words
/// 32 activations as int16; of each four the first and third, then the second and fourth.
DECANT_VEC void avx2_words(const ActBlock* a, __m256i* to) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  DECANT_UNROLL(2)
  for (int i = 0; i < 2; ++i) {
    const __m256i high = _mm256_cvtepi8_epi16(
                      _mm_load_si128(reinterpret_cast<const __m128i*>(a[0].q) + i)),
                  low = _mm256_cvtepi8_epi16(
                      _mm_load_si128(reinterpret_cast<const __m128i*>(a[1].q) + i));
    const __m256i x = _mm256_add_epi16(_mm256_mullo_epi16(high, _mm256_set1_epi16(254)), low);
    _mm256_store_si256(to + i, _mm256_shuffle_epi8(x, order));
  }
}
/// acc[t] += scale x a block of codes of 8 bits times the int16 activations of token t: a product
/// of 16 bits instead of two of 8.
template <int T>
DECANT_VEC void add_words(const B* codes, F scale, const ActBlock* acts, std::size_t act_stride,
                          F* acc) {
  __m256i x[T][2];
  for (int t = 0; t < T; ++t) avx2_words(acts + static_cast<std::size_t>(t) * act_stride, x[t]);
  DECANT_UNROLL(2)
  for (int i = 0; i < kParts; ++i) {
    __m256i sums[T];
    DECANT_UNROLL(2)
    for (int half = 0; half < 2; ++half) {
      __m256i words[8];  // of 16 columns, in the order of the activations
      DECANT_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        const __m256i w = codes_part<8>(codes[4 * half + j], i);
        words[2 * j] = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
        words[2 * j + 1] = _mm256_srai_epi16(w, 8);
      }
      for (int t = 0; t < T; ++t) {
        const char* const at = reinterpret_cast<const char*>(&x[t][half]);
        __m256i sum = half == 0 ? _mm256_setzero_si256() : sums[t];
        DECANT_UNROLL(8)
        for (int j = 0; j < 8; ++j) {
          std::int32_t two;
          __builtin_memcpy(&two, at + 4 * j, 4);
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words[j], _mm256_set1_epi32(two)));
        }
        sums[t] = sum;
        if (half == 1) {
          const FPart d = f_part(acts[static_cast<std::size_t>(t) * act_stride].d);
          set_part(acc[t], i, f_fma(f_mul(part(scale, i), d), f_from_i(sum), part(acc[t], i)));
        }
      }
    }
  }
}
