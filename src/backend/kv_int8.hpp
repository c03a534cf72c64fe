// Keys and values as int8, the same code for every backend and instruction set. A token's 64
// channels share a scale: their largest magnitude / 127 as f16, rounded up so that no code leaves
// [-127, 127]. Before, keys and queries are rotated by a normalised Hadamard transform, which
// leaves their products as they are and spreads a channel that outweighs the others over all of
// them (Ashkboos et al. 2024, QuaRot).
#pragma once

#include <cmath>
#include <cstring>

#include "base/float16.hpp"
#include "kv/kv_view.hpp"

namespace decant::detail {

/// In place, in pieces of the largest power of two that divides n.
inline void hadamard(float* x, int n) {
  const int piece = n & -n;
  const float norm = 1.0f / std::sqrt(static_cast<float>(piece));
  for (float* begin = x; begin < x + n; begin += piece) {
    for (int half = 1; half < piece; half *= 2)
      for (int i = 0; i < piece; i += 2 * half)
        for (int k = i; k < i + half; ++k) {
          const float a = begin[k], b = begin[k + half];
          begin[k] = a + b;
          begin[k + half] = a - b;
        }
    for (int i = 0; i < piece; ++i) begin[i] *= norm;
  }
}

/// The smallest f16 that is not below a value >= 0; the largest one if there is none.
inline std::uint16_t f16_not_below(float value) {
  std::uint16_t half = f32_to_f16(value);
  if (f16_to_f32(half) < value) ++half;
  return half > 0x7BFF ? 0x7BFF : half;
}

/// Where channel i of a page's token `slot` lies in the codes.
inline std::size_t int8_key_index(int i, int slot) {
  return static_cast<std::size_t>((i / 4 * kPageTokens + slot) * 4 + i % 4);
}
inline std::size_t int8_value_index(int i, int slot, int dim) {
  return static_cast<std::size_t>(slot * dim + i);
}
inline std::size_t int8_scale_index(int i, int slot) {
  return static_cast<std::size_t>(i / kScaleChannels * kPageTokens + slot);
}

/// One token's key (rotated) or value into a page. What is not finite gets a scale of NaN, so that
/// all that sees it shows it.
inline void store_int8(const float* x, int dim, int slot, bool is_key, std::byte* codes,
                       std::byte* scales) {
  for (int begin = 0; begin < dim; begin += kScaleChannels) {
    const int end = begin + kScaleChannels < dim ? begin + kScaleChannels : dim;
    float most = 0.0f;
    bool finite = true;
    for (int i = begin; i < end; ++i) {
      const float magnitude = std::fabs(x[i]);
      if (!(magnitude <= 3.4028234e38f)) finite = false;
      most = magnitude > most ? magnitude : most;
    }
    const std::uint16_t scale = finite ? f16_not_below(most / 127.0f) : std::uint16_t{0x7E00};
    std::memcpy(scales + 2 * int8_scale_index(begin, slot), &scale, sizeof scale);
    const float step = finite ? f16_to_f32(scale) : 0.0f;
    const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    for (int i = begin; i < end; ++i) {
      float y = finite ? x[i] * inverse : 0.0f;
      y = y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y;
      const float rounded = (y + 12582912.0f) - 12582912.0f;  // to nearest even
      const auto code = static_cast<std::int8_t>(rounded);
      std::memcpy(codes + (is_key ? int8_key_index(i, slot) : int8_value_index(i, slot, dim)),
                  &code, 1);
    }
  }
}

/// Exact: a code of 8 bits times a scale of 11.
inline float load_int8(const std::byte* codes, const std::byte* scales, std::size_t code,
                       std::size_t scale) {
  std::int8_t q;
  std::uint16_t half;
  std::memcpy(&q, codes + code, sizeof q);
  std::memcpy(&half, scales + 2 * scale, sizeof half);
  return static_cast<float>(q) * f16_to_f32(half);
}

}  // namespace decant::detail
