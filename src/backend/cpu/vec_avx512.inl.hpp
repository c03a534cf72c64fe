// The vector layer for AVX-512 with VNNI. See kernels.inl.hpp for what each function means.
inline constexpr const char* kIsaName = "avx512";
inline constexpr bool kManyTokens = true;  // kernels for several tokens at a time
inline constexpr int kAccumulators = 24;   // that stay in registers
inline constexpr int kQueries = 12;        // that attention takes at a time
struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};

DECANT_VEC F f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
DECANT_VEC void f_store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
DECANT_VEC F f_set(float a) { return {_mm512_set1_ps(a)}; }
DECANT_VEC const float* reloaded(const float* p) { return p; }
DECANT_VEC F f_add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
DECANT_VEC F f_sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
DECANT_VEC F f_mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
DECANT_VEC F f_div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
DECANT_VEC F f_fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DECANT_VEC F f_min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
DECANT_VEC F f_max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
DECANT_VEC F f_select_less(F a, F b, F yes, F no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
DECANT_VEC F f_from_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
DECANT_VEC F f_from_bf16(const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16))};
}
DECANT_VEC void f_store_f16(void* p, F a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
DECANT_VEC F f_swap_pairs(F a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
DECANT_VEC float f_sum(F a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
DECANT_VEC F f_from_i(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
DECANT_VEC I i_round(F a) { return {_mm512_cvtps_epi32(a.v)}; }
DECANT_VEC I i_set(std::int32_t a) { return {_mm512_set1_epi32(a)}; }
DECANT_VEC I i_add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
DECANT_VEC I i_sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
DECANT_VEC I i_magnitude(F a) {
  return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7FFFFFFF))};
}
DECANT_VEC I i_max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
DECANT_VEC std::int32_t i_highest(I a) { return _mm512_reduce_max_epi32(a.v); }
DECANT_VEC std::int32_t i_sum(I a) { return _mm512_reduce_add_epi32(a.v); }
template <int N>
DECANT_VEC I i_shl(I a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
DECANT_VEC I i_byte(I a) {
  return {_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * N), 24)};
}
DECANT_VEC I i_load(const void* p) { return {_mm512_loadu_si512(p)}; }
DECANT_VEC void i_store(void* p, I a) { _mm512_storeu_si512(p, a.v); }
DECANT_VEC F f_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
DECANT_VEC I i_from_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
DECANT_VEC I i_from_i8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
DECANT_VEC void i_store_i8(std::int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
DECANT_VEC B b_load(const void* p) { return {_mm512_loadu_si512(p)}; }
DECANT_VEC B b_and(B a, std::uint8_t mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
DECANT_VEC B b_or(B a, B b) { return {_mm512_or_si512(a.v, b.v)}; }
/// Bits of each byte moved left (N > 0) or right; what crosses a byte's border must be masked off.
template <int N>
DECANT_VEC B b_shift(B a) {
  if constexpr (N > 0)
    return {_mm512_slli_epi16(a.v, N)};
  else if constexpr (N < 0)
    return {_mm512_srli_epi16(a.v, -N)};
  else
    return a;
}
/// acc + codes x the four bytes at q, which every lane sees.
DECANT_VEC I dot(I acc, B codes, const std::int8_t* q) {
#if defined(__GNUC__) && !defined(__clang__)
  // GCC does not put the broadcast into the instruction by itself.
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(acc.v)
      : "v"(codes.v), "m"(*reinterpret_cast<const std::int32_t*>(q)));
  return acc;
#else
  std::int32_t four;
  __builtin_memcpy(&four, q, 4);
  return {_mm512_dpbusd_epi32(acc.v, codes.v, _mm512_set1_epi32(four))};
#endif
}
DECANT_VEC I dot8_start(std::int32_t nsum) { return i_shl<7>(i_set(nsum)); }
DECANT_VEC I dot8(I acc, B codes, const std::int8_t* q) { return dot(acc, codes, q); }
