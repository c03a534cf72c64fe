// What matmul.inl.hpp takes at a time, for layers whose registers hold all columns of a block.
inline constexpr int kPasses = 1;
template <int Bits>
DECANT_VEC B dot_codes(B a) {
  return a;
}
/// acc + 4 N columns of codes x the bytes at q. Eight in two chains: integer sums are exact in any
/// order.
template <int Bits, int N>
DECANT_VEC I dot_columns(I acc, const B* codes, const std::int8_t* q) {
  if constexpr (N == 8) {
    const I first = dot_columns<Bits, 4>(acc, codes, q);
    return i_add(first, dot_columns<Bits, 4>(i_set(0), codes + 4, q + 16));
  }
  DECANT_UNROLL(4)
  for (int j = 0; j < N; ++j)
    acc = Bits == 8 ? dot8(acc, codes[j], q + 4 * j) : dot(acc, codes[j], q + 4 * j);
  return acc;
}

// No store_words and add_words: names of what is discarded.
inline constexpr bool kWords = false;
DECANT_VEC void store_words(ActBlock*, I, I) {}
template <class Format, int T>
DECANT_VEC void add_words(const Format&, const ActBlock*, std::size_t, F*);
