// Sizes and float values of GGUF's tensor types. Each block function spells out one layout of
// docs/formats.md; products and sums are rounded one by one, in the order of gguf-py. The loops
// have constant lengths and no branches so that compilers vectorise them.
#include "base/fp_contract.hpp"

#include "format/tensor_type.hpp"

#include <bit>
#include <cstring>

#include "base/float16.hpp"
#include "base/result.hpp"

namespace decant::detail {

static_assert(std::endian::native == std::endian::little, "files are read as little-endian");

const TensorTypeInfo* tensor_type_info(TensorType type) noexcept {
#define DECANT_TENSOR_TYPE(name, elements, bytes, dequantises)                    \
  case TensorType::name: {                                                        \
    static constexpr TensorTypeInfo info = {#name, elements, bytes, dequantises}; \
    return &info;                                                                 \
  }
  switch (type) {
    DECANT_TENSOR_TYPE(F32, 1, 4, true)
    DECANT_TENSOR_TYPE(F16, 1, 2, true)
    DECANT_TENSOR_TYPE(BF16, 1, 2, true)
    DECANT_TENSOR_TYPE(Q4_0, 32, 18, true)
    DECANT_TENSOR_TYPE(Q4_1, 32, 20, true)
    DECANT_TENSOR_TYPE(Q5_0, 32, 22, true)
    DECANT_TENSOR_TYPE(Q5_1, 32, 24, true)
    DECANT_TENSOR_TYPE(Q8_0, 32, 34, true)
    DECANT_TENSOR_TYPE(Q2_K, 256, 84, true)
    DECANT_TENSOR_TYPE(Q3_K, 256, 110, true)
    DECANT_TENSOR_TYPE(Q4_K, 256, 144, true)
    DECANT_TENSOR_TYPE(Q5_K, 256, 176, true)
    DECANT_TENSOR_TYPE(Q6_K, 256, 210, true)
    DECANT_TENSOR_TYPE(Q8_K, 256, 292, false)
    DECANT_TENSOR_TYPE(IQ2_XXS, 256, 66, false)
    DECANT_TENSOR_TYPE(IQ2_XS, 256, 74, false)
    DECANT_TENSOR_TYPE(IQ2_S, 256, 82, false)
    DECANT_TENSOR_TYPE(IQ3_XXS, 256, 98, false)
    DECANT_TENSOR_TYPE(IQ3_S, 256, 110, false)
    DECANT_TENSOR_TYPE(IQ1_S, 256, 50, false)
    DECANT_TENSOR_TYPE(IQ1_M, 256, 56, false)
    DECANT_TENSOR_TYPE(IQ4_NL, 32, 18, false)
    DECANT_TENSOR_TYPE(IQ4_XS, 256, 136, false)
    DECANT_TENSOR_TYPE(TQ1_0, 256, 54, false)
    DECANT_TENSOR_TYPE(TQ2_0, 256, 66, false)
    DECANT_TENSOR_TYPE(MXFP4, 32, 17, false)
    DECANT_TENSOR_TYPE(NVFP4, 64, 36, false)
    DECANT_TENSOR_TYPE(I8, 1, 1, false)
    DECANT_TENSOR_TYPE(I16, 1, 2, false)
    DECANT_TENSOR_TYPE(I32, 1, 4, false)
    DECANT_TENSOR_TYPE(I64, 1, 8, false)
    DECANT_TENSOR_TYPE(F64, 1, 8, false)
  }
#undef DECANT_TENSOR_TYPE
  return nullptr;
}

namespace dequant {

using Byte = std::uint8_t;

static inline std::uint16_t load_u16(const Byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

static inline float load_f16(const Byte* from) { return f16_to_f32(load_u16(from)); }

// The 32 bits at `from` as bytes that hold 0x10 or 0, for the fifth bit of a code.
static inline void spread_bits(const Byte* from, Byte* __restrict to) {
  for (int i = 0; i < 4; ++i) {
    // Byte k keeps bit k; adding 0x7f carries any set bit into bit 7.
    const std::uint64_t bits = (from[i] * 0x0101010101010101u) & 0x8040201008040201u;
    const std::uint64_t spread = ((bits + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
    std::memcpy(to + 8 * i, &spread, sizeof spread);
  }
}

// to[i] = d * (codes[i] - zero), i < 16
static inline void scale_codes(const Byte* __restrict codes, int zero, float d,
                               float* __restrict to) {
  for (int i = 0; i < 16; ++i) to[i] = d * static_cast<float>(codes[i] - zero);
}

// to[i] = d * codes[i] + m, i < 16
static inline void scale_codes_add(const Byte* __restrict codes, float d, float m,
                                   float* __restrict to) {
  for (int i = 0; i < 16; ++i) to[i] = d * static_cast<float>(codes[i]) + m;
}

// Splits 16 bytes into codes: low nibbles are elements 0..15, high nibbles 16..31.
static inline void split_nibbles(const Byte* __restrict from, Byte* __restrict codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[i] & 15;
    codes[16 + i] = static_cast<Byte>(from[i] >> 4);
  }
}

// d (f16), 16 bytes of nibbles: d * (q - 8)
static inline void block_q4_0(const Byte* __restrict b, float* __restrict to) {
  const float d = load_f16(b);
  Byte codes[32];
  split_nibbles(b + 2, codes);
  scale_codes(codes, 8, d, to);
  scale_codes(codes + 16, 8, d, to + 16);
}

// d, m (f16), 16 bytes of nibbles: d * q + m
static inline void block_q4_1(const Byte* __restrict b, float* __restrict to) {
  const float d = load_f16(b);
  const float m = load_f16(b + 2);
  Byte codes[32];
  split_nibbles(b + 4, codes);
  scale_codes_add(codes, d, m, to);
  scale_codes_add(codes + 16, d, m, to + 16);
}

// d (f16), 32 fifth bits, 16 bytes of nibbles: d * (q - 16)
static inline void block_q5_0(const Byte* __restrict b, float* __restrict to) {
  const float d = load_f16(b);
  Byte high[32];
  spread_bits(b + 2, high);
  Byte codes[32];
  split_nibbles(b + 6, codes);
  for (int i = 0; i < 32; ++i) codes[i] |= high[i];
  scale_codes(codes, 16, d, to);
  scale_codes(codes + 16, 16, d, to + 16);
}

// d, m (f16), 32 fifth bits, 16 bytes of nibbles: d * q + m
static inline void block_q5_1(const Byte* __restrict b, float* __restrict to) {
  const float d = load_f16(b);
  const float m = load_f16(b + 2);
  Byte high[32];
  spread_bits(b + 4, high);
  Byte codes[32];
  split_nibbles(b + 8, codes);
  for (int i = 0; i < 32; ++i) codes[i] |= high[i];
  scale_codes_add(codes, d, m, to);
  scale_codes_add(codes + 16, d, m, to + 16);
}

// d (f16), 32 signed bytes: d * q
static inline void block_q8_0(const Byte* __restrict b, float* __restrict to) {
  const float d = load_f16(b);
  for (int i = 0; i < 32; ++i) to[i] = static_cast<float>(static_cast<std::int8_t>(b[2 + i])) * d;
}

// 16 bytes (4-bit scale, 4-bit minimum), 64 bytes of 2-bit codes, d, dmin (f16). Codes of 32
// elements share bytes: bits 2k of byte l of a half are element 32 k + l of that half.
static inline void block_q2_k(const Byte* __restrict b, float* __restrict to) {
  const Byte* scales = b;
  const Byte* qs = b + 16;
  const float d = load_f16(b + 80);
  const float dmin = load_f16(b + 82);
  for (int g = 0; g < 16; ++g) {
    const Byte* from = qs + 32 * (g / 8) + 16 * (g % 2);
    const int shift = 2 * (g % 8 / 2);
    Byte codes[16];
    for (int i = 0; i < 16; ++i) codes[i] = (from[i] >> shift) & 3;
    scale_codes_add(codes, d * static_cast<float>(scales[g] & 15),
                    -(dmin * static_cast<float>(scales[g] >> 4)), to + 16 * g);
  }
}

// 32 bytes of third bits, 64 bytes of 2-bit codes placed as in Q2_K, 16 6-bit scales in 12 bytes,
// d (f16): d * (scale - 32) * (q - 4), q with its third bit
static inline void block_q3_k(const Byte* __restrict b, float* __restrict to) {
  const Byte* high = b;
  const Byte* qs = b + 32;
  const Byte* scales = b + 96;
  const float d = load_f16(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low_scale = (scales[g % 8] >> (4 * (g / 8))) & 15;
    const int high_scale = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
    const float scale = d * static_cast<float>((low_scale | high_scale << 4) - 32);
    const Byte* from = qs + 32 * (g / 8) + 16 * (g % 2);
    const Byte* third = high + 16 * (g % 2);
    const int shift = 2 * (g % 8 / 2);
    const int bit = g / 2;
    Byte codes[16];
    for (int i = 0; i < 16; ++i)
      codes[i] = static_cast<Byte>(((from[i] >> shift) & 3) | (((third[i] >> bit) & 1) << 2));
    scale_codes(codes, 4, scale, to + 16 * g);
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: 0..3 in the low six bits of bytes 0..3
// (minima: 4..7), 4..7 in nibbles of bytes 8..11 with their top bits above the others.
static inline void unpack_scales_k(const Byte* b, float d, float dmin, float* scale,
                                   float* minimum) {
  for (int i = 0; i < 4; ++i) {
    scale[i] = d * static_cast<float>(b[i] & 63);
    minimum[i] = dmin * static_cast<float>(b[4 + i] & 63);
    scale[4 + i] = d * static_cast<float>((b[8 + i] & 15) | ((b[i] >> 6) << 4));
    minimum[4 + i] = dmin * static_cast<float>((b[8 + i] >> 4) | ((b[4 + i] >> 6) << 4));
  }
}

// d, dmin (f16), 12 bytes of scales, 128 bytes of nibbles: the low ones of 32 bytes are 32
// elements, the high ones the next 32.
static inline void block_q4_k(const Byte* __restrict b, float* __restrict to) {
  float scale[8];
  float minimum[8];
  unpack_scales_k(b + 4, load_f16(b), load_f16(b + 2), scale, minimum);
  for (int g = 0; g < 4; ++g) {
    const Byte* from = b + 16 + 32 * g;
    Byte low[32];
    Byte high[32];
    for (int i = 0; i < 32; ++i) {
      low[i] = from[i] & 15;
      high[i] = static_cast<Byte>(from[i] >> 4);
    }
    float* out = to + 64 * g;
    scale_codes_add(low, scale[2 * g], -minimum[2 * g], out);
    scale_codes_add(low + 16, scale[2 * g], -minimum[2 * g], out + 16);
    scale_codes_add(high, scale[2 * g + 1], -minimum[2 * g + 1], out + 32);
    scale_codes_add(high + 16, scale[2 * g + 1], -minimum[2 * g + 1], out + 48);
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit k of byte l is for element 32 k + l.
static inline void block_q5_k(const Byte* __restrict b, float* __restrict to) {
  float scale[8];
  float minimum[8];
  unpack_scales_k(b + 4, load_f16(b), load_f16(b + 2), scale, minimum);
  const Byte* fifth = b + 16;
  for (int g = 0; g < 8; ++g) {
    const Byte* from = b + 48 + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    Byte codes[32];
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<Byte>(((from[i] >> shift) & 15) | (((fifth[i] >> g) & 1) << 4));
    scale_codes_add(codes, scale[g], -minimum[g], to + 32 * g);
    scale_codes_add(codes + 16, scale[g], -minimum[g], to + 32 * g + 16);
  }
}

// 128 bytes of low nibbles, 64 bytes of 2-bit tops, 16 signed scales, d (f16). In each half of 128
// elements the low nibbles of 64 bytes come first, then the high ones; tops lie as in Q2_K.
static inline void block_q6_k(const Byte* __restrict b, float* __restrict to) {
  const Byte* scales = b + 192;
  const float d = load_f16(b + 208);
  for (int g = 0; g < 8; ++g) {
    const Byte* low = b + 64 * (g / 4) + 32 * (g % 2);
    const Byte* high = b + 128 + 32 * (g / 4);
    const int low_shift = 4 * (g % 4 / 2);
    const int high_shift = 2 * (g % 4);
    Byte codes[32];
    for (int i = 0; i < 32; ++i)
      codes[i] =
          static_cast<Byte>(((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4));
    for (int half = 0; half < 2; ++half) {
      const auto scale = static_cast<std::int8_t>(scales[2 * g + half]);
      scale_codes(codes + 16 * half, 32, d * static_cast<float>(scale), to + 32 * g + 16 * half);
    }
  }
}

template <void (*block)(const Byte*, float*)>
static void each_block(TensorType type, const Byte* blocks, std::size_t n_elements, float* to) {
  const TensorTypeInfo& info = *tensor_type_info(type);
  for (std::size_t i = 0; i < n_elements; i += info.block_elements) {
    block(blocks, to + i);
    blocks += info.block_bytes;
  }
}

}  // namespace dequant

void dequantise(TensorType type, const std::byte* blocks, std::size_t n_elements,
                float* to) noexcept {
  const auto* b = reinterpret_cast<const dequant::Byte*>(blocks);
  switch (type) {
    case TensorType::F32:
      if (n_elements != 0) std::memcpy(to, blocks, n_elements * sizeof(float));
      return;
    case TensorType::F16:
      for (std::size_t i = 0; i < n_elements; ++i) to[i] = dequant::load_f16(b + 2 * i);
      return;
    case TensorType::BF16:
      for (std::size_t i = 0; i < n_elements; ++i)
        to[i] = bf16_to_f32(dequant::load_u16(b + 2 * i));
      return;
    case TensorType::Q4_0: return dequant::each_block<dequant::block_q4_0>(type, b, n_elements, to);
    case TensorType::Q4_1: return dequant::each_block<dequant::block_q4_1>(type, b, n_elements, to);
    case TensorType::Q5_0: return dequant::each_block<dequant::block_q5_0>(type, b, n_elements, to);
    case TensorType::Q5_1: return dequant::each_block<dequant::block_q5_1>(type, b, n_elements, to);
    case TensorType::Q8_0: return dequant::each_block<dequant::block_q8_0>(type, b, n_elements, to);
    case TensorType::Q2_K: return dequant::each_block<dequant::block_q2_k>(type, b, n_elements, to);
    case TensorType::Q3_K: return dequant::each_block<dequant::block_q3_k>(type, b, n_elements, to);
    case TensorType::Q4_K: return dequant::each_block<dequant::block_q4_k>(type, b, n_elements, to);
    case TensorType::Q5_K: return dequant::each_block<dequant::block_q5_k>(type, b, n_elements, to);
    case TensorType::Q6_K: return dequant::each_block<dequant::block_q6_k>(type, b, n_elements, to);
    default: DECANT_ASSERT(false);
  }
}

}  // namespace decant::detail
