// The vector layer in plain C++: the meaning of each function, lane by lane.
inline constexpr const char* kIsaName = "portable";
inline constexpr bool kManyTokens = false;  // kernels for several tokens at a time
inline constexpr int kAccumulators = 4;     // that stay in registers
inline constexpr int kQueries = 4;          // that attention takes at a time
struct F {
  float v[16];
};
struct I {
  std::int32_t v[16];
};
struct B {
  std::uint8_t v[64];
};  // lane r: bytes 4 r .. 4 r + 3

#define DECANT_LANES(Type, expression)                \
  Type r;                                             \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression); \
  return r
#define DECANT_BYTES(expression)                                               \
  B r;                                                                         \
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<std::uint8_t>(expression); \
  return r

DECANT_VEC F f_load(const float* p) { DECANT_LANES(F, p[i]); }
DECANT_VEC void f_store(float* p, F a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
DECANT_VEC F f_set(float a) { DECANT_LANES(F, a); }
/// p. Where registers are few, numbers behind it are loaded anew.
DECANT_VEC const float* reloaded(const float* p) { return p; }
DECANT_VEC F f_add(F a, F b) { DECANT_LANES(F, a.v[i] + b.v[i]); }
DECANT_VEC F f_sub(F a, F b) { DECANT_LANES(F, a.v[i] - b.v[i]); }
DECANT_VEC F f_mul(F a, F b) { DECANT_LANES(F, a.v[i] * b.v[i]); }
DECANT_VEC F f_div(F a, F b) { DECANT_LANES(F, a.v[i] / b.v[i]); }
DECANT_VEC F f_fma(F a, F b, F c) { DECANT_LANES(F, fma_f32(a.v[i], b.v[i], c.v[i])); }
DECANT_VEC F f_min(F a, F b) { DECANT_LANES(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
DECANT_VEC F f_max(F a, F b) { DECANT_LANES(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
DECANT_VEC F f_select_less(F a, F b, F yes, F no) {
  DECANT_LANES(F, a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
DECANT_VEC std::uint16_t portable_half(const void* p, int i) {
  std::uint16_t half;
  __builtin_memcpy(&half, static_cast<const std::uint8_t*>(p) + 2 * i, 2);
  return half;
}
DECANT_VEC F f_from_f16(const void* p) { DECANT_LANES(F, f16_to_f32(portable_half(p, i))); }
DECANT_VEC F f_from_bf16(const void* p) { DECANT_LANES(F, bf16_to_f32(portable_half(p, i))); }
DECANT_VEC void f_store_f16(void* p, F a) {
  std::uint16_t half[16];
  for (int i = 0; i < 16; ++i) half[i] = f32_to_f16(a.v[i]);
  __builtin_memcpy(p, half, sizeof half);
}
DECANT_VEC F f_swap_pairs(F a) { DECANT_LANES(F, a.v[i ^ 1]); }
/// All lanes in one, by a fixed tree: lane i + lane i + 8, then + 4, + 2, + 1.
DECANT_VEC float f_sum(F a) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  return a.v[0];
}
DECANT_VEC F f_from_i(I a) { DECANT_LANES(F, static_cast<float>(a.v[i])); }
/// To nearest even; |a| < 2^22.
DECANT_VEC I i_round(F a) {
  DECANT_LANES(I, static_cast<std::int32_t>((a.v[i] + 12582912.0f) - 12582912.0f));
}
DECANT_VEC I i_set(std::int32_t a) { DECANT_LANES(I, a); }
DECANT_VEC I i_add(I a, I b) { DECANT_LANES(I, a.v[i] + b.v[i]); }
DECANT_VEC I i_sub(I a, I b) { DECANT_LANES(I, a.v[i] - b.v[i]); }
/// The bits of |a|, ordered as the values are, NaN above all.
DECANT_VEC I i_magnitude(F a) {
  DECANT_LANES(I, static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(a.v[i]) & 0x7FFFFFFFu));
}
DECANT_VEC I i_max(I a, I b) { DECANT_LANES(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
DECANT_VEC std::int32_t i_highest(I a) {
  std::int32_t highest = a.v[0];
  for (int i = 1; i < 16; ++i) highest = a.v[i] > highest ? a.v[i] : highest;
  return highest;
}
DECANT_VEC std::int32_t i_sum(I a) {
  std::int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += a.v[i];
  return sum;
}
template <int N>
DECANT_VEC I i_shl(I a) {
  DECANT_LANES(I, static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) << N));
}
/// Byte N of each lane, the lowest first, as a signed number.
template <int N>
DECANT_VEC I i_byte(I a) {
  DECANT_LANES(I, static_cast<std::int8_t>(static_cast<std::uint32_t>(a.v[i]) >> (8 * N)));
}
DECANT_VEC I i_load(const void* p) {
  I r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
DECANT_VEC void i_store(void* p, I a) { __builtin_memcpy(p, a.v, 64); }
DECANT_VEC F f_bits(I a) { DECANT_LANES(F, std::bit_cast<float>(a.v[i])); }
DECANT_VEC I i_from_u8(const void* p) { DECANT_LANES(I, static_cast<const std::uint8_t*>(p)[i]); }
DECANT_VEC I i_from_i8(const void* p) { DECANT_LANES(I, static_cast<const std::int8_t*>(p)[i]); }
DECANT_VEC void i_store_i8(std::int8_t* p, I a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}
DECANT_VEC B b_load(const void* p) {
  B r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
DECANT_VEC B b_and(B a, std::uint8_t mask) { DECANT_BYTES(a.v[i] & mask); }
DECANT_VEC B b_or(B a, B b) { DECANT_BYTES(a.v[i] | b.v[i]); }
template <int N>
DECANT_VEC B b_shift(B a) {
  if constexpr (N > 0) {
    DECANT_BYTES(a.v[i] << N);
  } else {
    DECANT_BYTES(a.v[i] >> -N);
  }
}
/// acc + codes x the four bytes at q, which every lane sees.
DECANT_VEC I dot(I acc, B codes, const std::int8_t* q) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 4; ++k) acc.v[i] += codes.v[4 * i + k] * q[k];
  return acc;
}
DECANT_VEC I dot8_start(std::int32_t nsum) { return i_set(nsum * 128); }
DECANT_VEC I dot8(I acc, B codes, const std::int8_t* q) { return dot(acc, codes, q); }
#undef DECANT_LANES
#undef DECANT_BYTES
