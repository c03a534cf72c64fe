// The vector layer for NEON with the dot product instructions: four 128-bit vectors, four lanes
// each.
inline constexpr const char* kIsaName = "neon";
inline constexpr bool kManyTokens = true;  // kernels for several tokens at a time
inline constexpr int kAccumulators = 6;    // that stay in registers
inline constexpr int kQueries = 6;         // that attention takes at a time
struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct B {
  uint8x16_t v[4];
};

#define DECANT_QUARTERS(Type, expression)            \
  Type r;                                            \
  for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
  return r

DECANT_VEC F f_load(const float* p) { DECANT_QUARTERS(F, vld1q_f32(p + 4 * i)); }
DECANT_VEC void f_store(float* p, F a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
DECANT_VEC F f_set(float a) { DECANT_QUARTERS(F, vdupq_n_f32(a)); }
DECANT_VEC const float* reloaded(const float* p) { return p; }
DECANT_VEC F f_add(F a, F b) { DECANT_QUARTERS(F, vaddq_f32(a.v[i], b.v[i])); }
DECANT_VEC F f_sub(F a, F b) { DECANT_QUARTERS(F, vsubq_f32(a.v[i], b.v[i])); }
DECANT_VEC F f_mul(F a, F b) { DECANT_QUARTERS(F, vmulq_f32(a.v[i], b.v[i])); }
DECANT_VEC F f_div(F a, F b) { DECANT_QUARTERS(F, vdivq_f32(a.v[i], b.v[i])); }
DECANT_VEC F f_fma(F a, F b, F c) { DECANT_QUARTERS(F, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Not vminq and vmaxq, which differ for NaN and for zeros of both signs.
DECANT_VEC F f_min(F a, F b) {
  DECANT_QUARTERS(F, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
DECANT_VEC F f_max(F a, F b) {
  DECANT_QUARTERS(F, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
}
DECANT_VEC F f_select_less(F a, F b, F yes, F no) {
  DECANT_QUARTERS(F, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
DECANT_VEC F f_from_f16(const void* p) {
  const auto* h = static_cast<const std::uint8_t*>(p);
  DECANT_QUARTERS(F, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(h + 8 * i))));
}
DECANT_VEC F f_from_bf16(const void* p) {
  const auto* h = static_cast<const std::uint8_t*>(p);
  DECANT_QUARTERS(F,
                  vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(h + 8 * i)), 16)));
}
DECANT_VEC void f_store_f16(void* p, F a) {
  auto* h = static_cast<std::uint8_t*>(p);
  for (int i = 0; i < 4; ++i) vst1_u8(h + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(a.v[i])));
}
DECANT_VEC F f_swap_pairs(F a) { DECANT_QUARTERS(F, vrev64q_f32(a.v[i])); }
DECANT_VEC float f_sum(F a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
DECANT_VEC F f_from_i(I a) { DECANT_QUARTERS(F, vcvtq_f32_s32(a.v[i])); }
DECANT_VEC I i_round(F a) { DECANT_QUARTERS(I, vcvtnq_s32_f32(a.v[i])); }
DECANT_VEC I i_set(std::int32_t a) { DECANT_QUARTERS(I, vdupq_n_s32(a)); }
DECANT_VEC I i_add(I a, I b) { DECANT_QUARTERS(I, vaddq_s32(a.v[i], b.v[i])); }
DECANT_VEC I i_sub(I a, I b) { DECANT_QUARTERS(I, vsubq_s32(a.v[i], b.v[i])); }
DECANT_VEC I i_magnitude(F a) { DECANT_QUARTERS(I, vreinterpretq_s32_f32(vabsq_f32(a.v[i]))); }
DECANT_VEC I i_max(I a, I b) { DECANT_QUARTERS(I, vmaxq_s32(a.v[i], b.v[i])); }
DECANT_VEC std::int32_t i_highest(I a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[2]), vmaxq_s32(a.v[1], a.v[3])));
}
DECANT_VEC std::int32_t i_sum(I a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[2]), vaddq_s32(a.v[1], a.v[3])));
}
template <int N>
DECANT_VEC I i_shl(I a) {
  DECANT_QUARTERS(I, vshlq_n_s32(a.v[i], N));
}
template <int N>
DECANT_VEC I i_byte(I a) {
  DECANT_QUARTERS(I, vshrq_n_s32(vshlq_n_s32(a.v[i], 24 - 8 * N), 24));
}
DECANT_VEC I i_load(const void* p) {
  DECANT_QUARTERS(I, vreinterpretq_s32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * i)));
}
DECANT_VEC void i_store(void* p, I a) {
  for (int i = 0; i < 4; ++i)
    vst1q_u8(static_cast<std::uint8_t*>(p) + 16 * i, vreinterpretq_u8_s32(a.v[i]));
}
DECANT_VEC F f_bits(I a) { DECANT_QUARTERS(F, vreinterpretq_f32_s32(a.v[i])); }
DECANT_VEC I i_from_u8(const void* p) {
  const uint8x16_t bytes = vld1q_u8(static_cast<const std::uint8_t*>(p));
  const uint16x8_t words[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))};
  DECANT_QUARTERS(I, vreinterpretq_s32_u32(vmovl_u16(i % 2 == 0 ? vget_low_u16(words[i / 2])
                                                                : vget_high_u16(words[i / 2]))));
}
DECANT_VEC I i_from_i8(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const std::int8_t*>(p));
  const int16x8_t words[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))};
  DECANT_QUARTERS(I,
                  vmovl_s16(i % 2 == 0 ? vget_low_s16(words[i / 2]) : vget_high_s16(words[i / 2])));
}
DECANT_VEC void i_store_i8(std::int8_t* p, I a) {
  for (int i = 0; i < 4; i += 2) {
    const int16x8_t words = vcombine_s16(vmovn_s32(a.v[i]), vmovn_s32(a.v[i + 1]));
    vst1_s8(p + 4 * i, vmovn_s16(words));
  }
}
DECANT_VEC B b_load(const void* p) {
  DECANT_QUARTERS(B, vld1q_u8(static_cast<const std::uint8_t*>(p) + 16 * i));
}
DECANT_VEC B b_and(B a, std::uint8_t mask) {
  DECANT_QUARTERS(B, vandq_u8(a.v[i], vdupq_n_u8(mask)));
}
DECANT_VEC B b_or(B a, B b) { DECANT_QUARTERS(B, vorrq_u8(a.v[i], b.v[i])); }
template <int N>
DECANT_VEC B b_shift(B a) {
  if constexpr (N > 0) {
    DECANT_QUARTERS(B, vshlq_n_u8(a.v[i], N));
  } else if constexpr (N < 0) {
    DECANT_QUARTERS(B, vshrq_n_u8(a.v[i], -N));
  } else {
    return a;
  }
}
// Codes of up to 7 bits are the same numbers when read as signed.
DECANT_VEC int8x16_t neon_four_bytes(const std::int8_t* q) {
  std::int32_t four;
  __builtin_memcpy(&four, q, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
/// acc + codes x the four bytes at q, which every lane sees.
DECANT_VEC I dot(I acc, B codes, const std::int8_t* q) {
  const int8x16_t b = neon_four_bytes(q);
  DECANT_QUARTERS(I, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(codes.v[i]), b));
}
DECANT_VEC I dot8_start(std::int32_t) { return i_set(0); }
DECANT_VEC I dot8(I acc, B codes, const std::int8_t* q) {
  const int8x16_t b = neon_four_bytes(q);
  DECANT_QUARTERS(
      I, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(veorq_u8(codes.v[i], vdupq_n_u8(0x80))), b));
}
#undef DECANT_QUARTERS
