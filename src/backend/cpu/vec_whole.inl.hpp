// What matmul.inl.hpp takes at a time, for layers whose registers hold all sixteen lanes of a
// block.
inline constexpr int kParts = 1;
using FPart = F;
using IPart = I;
using BPart = B;
DECANT_VEC FPart part(const F& a, int) { return a; }
DECANT_VEC void set_part(F& a, int, FPart to) { a = to; }
template <int Bits>
DECANT_VEC BPart codes_part(const B& a, int) {
  return a;
}
DECANT_VEC FPart f_part(float a) { return f_set(a); }
DECANT_VEC IPart i_part(std::int32_t a) { return i_set(a); }
/// acc + N codes x the 4 N bytes at q, which every lane sees. Eight in two chains: integer sums are
/// exact in any order.
template <int Bits, int N>
DECANT_VEC IPart dot_columns(IPart acc, const BPart* codes, const std::int8_t* q) {
  if constexpr (N == 8) {
    const IPart first = dot_columns<Bits, 4>(acc, codes, q);
    return i_add(first, dot_columns<Bits, 4>(i_set(0), codes + 4, q + 16));
  }
  DECANT_UNROLL(4)
  for (int j = 0; j < N; ++j)
    acc = Bits == 8 ? dot8(acc, codes[j], q + 4 * j) : dot(acc, codes[j], q + 4 * j);
  return acc;
}

inline constexpr bool kAddsWords = false;  // has no add_words; a name for what is discarded
template <int T>
DECANT_VEC void add_words(const B*, F, const ActBlock*, std::size_t, F*);
