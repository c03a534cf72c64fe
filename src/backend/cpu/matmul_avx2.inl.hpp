// Activations as int16 with AVX2. They stay words: 16 in the first block's q, 16 in the second's.
// Of each four the first and third come first, then the second and fourth: so they meet the even
// and the odd bytes of codes as words, in one product instead of two of bytes.

DECANT_VEC void store_words(ActBlock* to, I y0, I y1) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  const I both[2] = {y0, y1};
  for (int i = 0; i < 2; ++i) {
    // Packs keep 128-bit lanes apart; the permutation puts the sixteen values in order.
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(both[i].lo, both[i].hi), 0xD8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to[i].q), _mm256_shuffle_epi8(words, order));
  }
}
DECANT_VEC I avx2_add_products(I sum, B words, const std::int8_t* q) {
  std::int32_t two;
  __builtin_memcpy(&two, q, 4);
  const __m256i x = _mm256_set1_epi32(two);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(words.lo, x)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(words.hi, x))};
}
template <int Bits>
DECANT_VEC B avx2_even_words(B a) {
  if constexpr (Bits < 8)
    return {_mm256_and_si256(a.lo, _mm256_set1_epi16(0xFF)),
            _mm256_and_si256(a.hi, _mm256_set1_epi16(0xFF))};
  else
    return {_mm256_srai_epi16(_mm256_slli_epi16(a.lo, 8), 8),
            _mm256_srai_epi16(_mm256_slli_epi16(a.hi, 8), 8)};
}
DECANT_VEC B avx2_odd_words(B a) {
  return {_mm256_srai_epi16(a.lo, 8), _mm256_srai_epi16(a.hi, 8)};
}
/// acc[t] += a block of codes x the words of token t, eight columns at a time.
template <class Format, int T>
DECANT_VEC void add_words(const Format& f, const ActBlock* acts, std::size_t act_stride, F* acc) {
  constexpr int kEights = Format::kHalves ? 2 : 4;  // that share a scale
  Codes c;
  DECANT_UNROLL(8)
  for (int j = 0; j < 8; ++j) c.of[j] = dot_codes<Format::kBits>(f.c.of[j]);
  std::int32_t sums[T][16];
  DECANT_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const B words[4] = {avx2_even_words<Format::kBits>(c.of[2 * i]), avx2_odd_words(c.of[2 * i]),
                        avx2_even_words<Format::kBits>(c.of[2 * i + 1]),
                        avx2_odd_words(c.of[2 * i + 1])};
    const int k = i / kEights;
    for (int t = 0; t < T; ++t) {
      const ActBlock* const a = acts + static_cast<std::size_t>(t) * act_stride;
      I sum = i % kEights == 0 ? zero_point<Format>(a, k) : i_load(sums[t]);
      DECANT_UNROLL(4)
      for (int j = 0; j < 4; ++j)
        sum = avx2_add_products(sum, words[j], a[i / 2].q + 16 * (i % 2) + 4 * j);
      if (i % kEights < kEights - 1) {
        i_store(sums[t], sum);
        continue;
      }
      acc[t] = f_fma(f_mul(f.s[k], f_set(a->d)), f_from_i(sum), acc[t]);
      if (i == 3) acc[t] = add_minimums(f, a, acc[t]);
    }
  }
}
