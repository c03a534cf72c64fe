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
/// Kept in registers, numbers would drive sums out of them. Volatile: else the compiler sees that
/// both pointers are the same.
DECANT_VEC const float* reloaded(const float* p) {
#if defined(__GNUC__) || defined(__clang__)
  asm volatile("" : "+r"(p));
#endif
  return p;
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
DECANT_VEC void i_store(void* p, I a) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
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
// Half of a block at a time: the codes of 16 columns stay in registers, those of 32 do not fit.
inline constexpr int kPasses = 2;
DECANT_VEC I dot8_start(std::int32_t) { return i_set(0); }
/// Codes of 8 bits as signed numbers, u - 128.
template <int Bits>
DECANT_VEC B dot_codes(B a) {
  const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
  return Bits == 8 ? B{_mm256_xor_si256(a.lo, top), _mm256_xor_si256(a.hi, top)} : a;
}
template <int Bits>
DECANT_VEC B avx2_products(B codes, __m256i b) {
  if constexpr (Bits < 8)
    return {_mm256_maddubs_epi16(codes.lo, b), _mm256_maddubs_epi16(codes.hi, b)};
  else
    return {_mm256_maddubs_epi16(_mm256_abs_epi8(codes.lo), _mm256_sign_epi8(b, codes.lo)),
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes.hi), _mm256_sign_epi8(b, codes.hi))};
}
/// acc + 4 N columns of codes x the bytes at q, which every lane sees. maddubs adds two products in
/// 16 bits; as many of these sums are added as cannot overflow. Of 8 bits: |w| times q with w's
/// sign.
template <int Bits, int N>
DECANT_VEC I dot_columns(I acc, const B* codes, const std::int8_t* q) {
  constexpr int kLargest = Bits == 8 ? 128 : (1 << Bits) - 1, kRun = 32767 / (2 * 127 * kLargest);
  const __m256i one = _mm256_set1_epi16(1);
  B words{};
  DECANT_UNROLL(4)
  for (int j = 0; j < N; ++j) {
    std::int32_t four;
    __builtin_memcpy(&four, q + 4 * j, 4);
    const __m256i b = _mm256_set1_epi32(four);
    const B products = avx2_products<Bits>(codes[j], b);
    words = j % kRun == 0 ? products
                          : B{_mm256_add_epi16(words.lo, products.lo),
                              _mm256_add_epi16(words.hi, products.hi)};
    if (j % kRun == kRun - 1 || j == N - 1)
      acc = {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(words.lo, one)),
             _mm256_add_epi32(acc.hi, _mm256_madd_epi16(words.hi, one))};
  }
  return acc;
}

inline constexpr bool kWords = true;  // see matmul_avx2.inl.hpp
template <class Format, int T>
DECANT_VEC void add_words(const Format& f, const ActBlock* acts, std::size_t act_stride, F* acc);
DECANT_VEC void store_words(ActBlock* to, I y0, I y1);
