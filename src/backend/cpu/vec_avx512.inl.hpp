// The vector layer for AVX-512 with VNNI. See kernels.inl.hpp for what each function means.
inline constexpr bool kManyTokens = true;  // kernels for several tokens at a time
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
DECANT_VEC F f_add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
DECANT_VEC F f_sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
DECANT_VEC F f_mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
DECANT_VEC F f_div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
DECANT_VEC F f_fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DECANT_VEC F f_max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
DECANT_VEC F f_abs(F a) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7FFFFFFF)))};
}
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
DECANT_VEC F f_from_i(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
DECANT_VEC I i_round(F a) { return {_mm512_cvtps_epi32(a.v)}; }
DECANT_VEC I i_set(std::int32_t a) { return {_mm512_set1_epi32(a)}; }
DECANT_VEC I i_add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int N>
DECANT_VEC I i_shl(I a) {
  return {_mm512_slli_epi32(a.v, N)};
}
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
DECANT_VEC I dot(I acc, B codes, std::int32_t q) {
  return {_mm512_dpbusd_epi32(acc.v, codes.v, _mm512_set1_epi32(q))};
}
DECANT_VEC I dot8_start(std::int32_t nsum) { return i_shl<7>(i_set(nsum)); }
DECANT_VEC I dot8(I acc, B codes, std::int32_t q) { return dot(acc, codes, q); }
