#include "base/fp_contract.hpp"

#include "backend/cpu/pack.hpp"

#include <cstring>

#include "base/float16.hpp"

namespace decant::detail {

namespace {

constexpr PackLayout kPackLayouts[] = {{TensorType::Q4_0, 4, 1, 0}, {TensorType::Q4_1, 4, 2, 0},
                                       {TensorType::Q5_0, 5, 1, 0}, {TensorType::Q5_1, 5, 2, 0},
                                       {TensorType::Q8_0, 8, 1, 0}, {TensorType::Q2_K, 2, 2, 4},
                                       {TensorType::Q3_K, 3, 1, 2}, {TensorType::Q4_K, 4, 2, 2},
                                       {TensorType::Q5_K, 5, 2, 2}, {TensorType::Q6_K, 6, 1, 2}};

int pack_float_bytes(TensorType type) {
  return type == TensorType::F32 ? 4 : type == TensorType::F16 || type == TensorType::BF16 ? 2 : 0;
}

std::uint8_t pack_u8(const std::byte* p, int i) { return static_cast<std::uint8_t>(p[i]); }
std::uint16_t pack_u16(const std::byte* p) {
  std::uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
std::uint8_t pack_byte(int v) { return static_cast<std::uint8_t>(v); }

void pack_nibbles(const std::byte* nibbles, const std::byte* fifth, std::uint8_t* codes) {
  std::uint32_t top = 0;
  if (fifth != nullptr) std::memcpy(&top, fifth, 4);
  for (int i = 0; i < 16; ++i) {
    const int byte = pack_u8(nibbles, i);
    codes[i] = pack_byte((byte & 15) | static_cast<int>(top >> i & 1) << 4);
    codes[16 + i] = pack_byte(byte >> 4 | static_cast<int>(top >> (16 + i) & 1) << 4);
  }
}

/// Sub-scale and sub-minimum `i` of Q4_K and Q5_K.
void pack_k4_scales(const std::byte* p, int i, std::uint8_t* to) {
  if (i < 4) {
    to[0] = pack_byte(pack_u8(p, i) & 63);
    to[1] = pack_byte(pack_u8(p, i + 4) & 63);
  } else {
    to[0] = pack_byte((pack_u8(p, i + 4) & 15) | (pack_u8(p, i - 4) >> 6) << 4);
    to[1] = pack_byte(pack_u8(p, i + 4) >> 4 | (pack_u8(p, i) >> 6) << 4);
  }
}

}  // namespace

const PackLayout* pack_layout(TensorType type) {
  for (const PackLayout& layout : kPackLayouts)
    if (layout.type == type) return &layout;
  return nullptr;
}

// docs/formats.md says where the bits lie.
void pack_read(TensorType type, const std::byte* row, int b, PackBlock& to) {
  const TensorTypeInfo& info = *tensor_type_info(type);
  const bool super = info.block_elements == 256;
  const std::byte* p = row + static_cast<std::size_t>(super ? b / 8 : b) * info.block_bytes;
  const int s = b % 8;                // block of 32 in a super-block
  const int half = s / 4, k = s % 4;  // Q2_K, Q3_K, Q6_K: halves of 128
  switch (type) {
    case TensorType::Q4_0: to.f16[0] = pack_u16(p); return pack_nibbles(p + 2, nullptr, to.codes);
    case TensorType::Q4_1:
      to.f16[0] = pack_u16(p);
      to.f16[1] = pack_u16(p + 2);
      return pack_nibbles(p + 4, nullptr, to.codes);
    case TensorType::Q5_0: to.f16[0] = pack_u16(p); return pack_nibbles(p + 6, p + 2, to.codes);
    case TensorType::Q5_1:
      to.f16[0] = pack_u16(p);
      to.f16[1] = pack_u16(p + 2);
      return pack_nibbles(p + 8, p + 4, to.codes);
    case TensorType::Q8_0:
      to.f16[0] = pack_u16(p);
      for (int i = 0; i < kActBlock; ++i) to.codes[i] = pack_byte(pack_u8(p, 2 + i) ^ 0x80);
      return;
    case TensorType::Q4_K:
    case TensorType::Q5_K: {
      to.f16[0] = pack_u16(p);
      to.f16[1] = static_cast<std::uint16_t>(pack_u16(p + 2) ^ 0x8000);
      pack_k4_scales(p + 4, s, to.bytes);
      const bool five = type == TensorType::Q5_K;
      const std::byte* nibbles = p + (five ? 48 : 16) + 32 * (s / 2);
      for (int i = 0; i < kActBlock; ++i) {
        const int low = s % 2 == 0 ? pack_u8(nibbles, i) & 15 : pack_u8(nibbles, i) >> 4;
        to.codes[i] = pack_byte(low | (five ? (pack_u8(p, 16 + i) >> s & 1) << 4 : 0));
      }
      return;
    }
    case TensorType::Q6_K: {
      to.f16[0] = pack_u16(p + 208);
      to.bytes[0] = pack_u8(p, 192 + 2 * s);
      to.bytes[1] = pack_u8(p, 192 + 2 * s + 1);
      const std::byte* low = p + 64 * half + 32 * (k % 2);
      const std::byte* top = p + 128 + 32 * half;
      for (int i = 0; i < kActBlock; ++i) {
        const int nibble = k < 2 ? pack_u8(low, i) & 15 : pack_u8(low, i) >> 4;
        to.codes[i] = pack_byte(nibble | (pack_u8(top, i) >> (2 * k) & 3) << 4);
      }
      return;
    }
    case TensorType::Q3_K: {
      to.f16[0] = pack_u16(p + 108);
      for (int h = 0; h < 2; ++h) {
        const int i = 2 * s + h;
        const int low = i < 8 ? pack_u8(p, 96 + i) & 15 : pack_u8(p, 96 + i - 8) >> 4;
        const int top = pack_u8(p, 104 + i % 4) >> (2 * (i / 4)) & 3;
        to.bytes[h] = pack_byte((low | top << 4) - 32);
      }
      for (int i = 0; i < kActBlock; ++i)
        to.codes[i] = pack_byte((pack_u8(p, 32 + 32 * half + i) >> (2 * k) & 3) |
                                (pack_u8(p, i) >> s & 1) << 2);
      return;
    }
    default: {  // Q2_K
      to.f16[0] = pack_u16(p + 80);
      to.f16[1] = static_cast<std::uint16_t>(pack_u16(p + 82) ^ 0x8000);
      for (int h = 0; h < 2; ++h) {
        to.bytes[h] = pack_byte(pack_u8(p, 2 * s + h) & 15);
        to.bytes[2 + h] = pack_byte(pack_u8(p, 2 * s + h) >> 4);
      }
      for (int i = 0; i < kActBlock; ++i)
        to.codes[i] = pack_byte(pack_u8(p, 16 + 32 * half + i) >> (2 * k) & 3);
      return;
    }
  }
}

/// The codes of 16 rows x 32 columns.
static void pack_codes(int bits, const PackBlock* rows, std::byte*& to) {
  const auto code = [&](int r, int column) { return static_cast<int>(rows[r].codes[column]); };
  const auto put = [&](int value) { *to++ = static_cast<std::byte>(value); };
  if (bits == 8) {
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 64; ++i) put(code(i / 4, 4 * j + i % 4));
    return;
  }
  if (bits >= 4)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 64; ++i)
        put((code(i / 4, 4 * j + i % 4) & 15) | (code(i / 4, 16 + 4 * j + i % 4) & 15) << 4);
  if (bits == 6 || bits < 4) {
    const int at = bits == 6 ? 4 : 0;
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 64; ++i) {
        int byte = 0;
        for (int j = 0; j < 4; ++j)
          byte |= (code(i / 4, 16 * h + 4 * j + i % 4) >> at & 3) << (2 * j);
        put(byte);
      }
  }
  if (bits == 5 || bits == 3) {
    const int at = bits - 1;
    for (int i = 0; i < 64; ++i) {
      int byte = 0;
      for (int j = 0; j < 8; ++j) byte |= (code(i / 4, 4 * j + i % 4) >> at & 1) << j;
      put(byte);
    }
  }
}

bool packed_is_integer(TensorType type) { return pack_layout(type) != nullptr; }

std::uint64_t packed_group_bytes(TensorType type, int cols) {
  const auto n = static_cast<std::uint64_t>(cols);
  if (const int bytes = pack_float_bytes(type))
    return n * static_cast<std::uint64_t>(kRowGroup * bytes);
  const PackLayout* l = pack_layout(type);
  if (l == nullptr) return 0;
  const std::uint64_t f16_bytes = static_cast<std::uint64_t>(l->f16_scales) * 2 * kRowGroup;
  const std::uint64_t block =
      static_cast<std::uint64_t>(l->byte_scales * kRowGroup + l->bits * kActBlock * kRowGroup / 8);
  return l->byte_scales == 0 ? n / 32 * (f16_bytes + block) : n / 256 * f16_bytes + n / 32 * block;
}

void pack_group(TensorType type, const std::byte* rows, std::uint64_t row_bytes, int n_rows,
                int cols, std::byte* to) {
  if (const int bytes = pack_float_bytes(type)) {
    std::memset(to, 0, packed_group_bytes(type, cols));
    for (int r = 0; r < n_rows; ++r)
      for (int c = 0; c < cols; ++c)
        std::memcpy(
            to + static_cast<std::size_t>(c * kRowGroup + r) * static_cast<std::size_t>(bytes),
            rows + static_cast<std::uint64_t>(r) * row_bytes + static_cast<std::size_t>(c * bytes),
            static_cast<std::size_t>(bytes));
    return;
  }
  const PackLayout& l = *pack_layout(type);
  PackBlock block[kRowGroup] = {};
  const auto put_f16 = [&](int i) {
    for (const PackBlock& row : block) {
      std::memcpy(to, &row.f16[i], 2);
      to += 2;
    }
  };
  for (int b = 0; b < cols / kActBlock; ++b) {
    for (int r = 0; r < n_rows; ++r)
      pack_read(type, rows + static_cast<std::uint64_t>(r) * row_bytes, b, block[r]);
    if (l.byte_scales == 0 || b % 8 == 0)
      for (int i = 0; i < l.f16_scales; ++i) put_f16(i);
    for (int i = 0; i < l.byte_scales; ++i)
      for (const PackBlock& row : block) *to++ = static_cast<std::byte>(row.bytes[i]);
    pack_codes(l.bits, block, to);
  }
}

/// The code of row r, column c of a block of 32.
static int unpack_code(int bits, const std::byte* p, int r, int c) {
  const int j = c % 16 / 4, high = c / 16, at = 4 * r + c % 4;
  if (bits == 8) return pack_u8(p, 64 * (4 * high + j) + at);
  int code = 0;
  if (bits >= 4) {
    code = pack_u8(p, 64 * j + at) >> (4 * high) & 15;
    p += 256;
  }
  if (bits == 6 || bits < 4) {
    code |= (pack_u8(p, 64 * high + at) >> (2 * j) & 3) << (bits == 6 ? 4 : 0);
    p += 128;
  }
  if (bits == 5 || bits == 3) code |= (pack_u8(p, at) >> (4 * high + j) & 1) << (bits - 1);
  return code;
}

void unpack_row(const Weight& weight, int row, float* to) {
  const int in_segment = row % weight.segment_rows, r = in_segment % kRowGroup;
  const int group = row / weight.segment_rows * weight.segment_groups() + in_segment / kRowGroup;
  const std::byte* p = weight.data + static_cast<std::uint64_t>(group) * weight.group_bytes;
  if (const int bytes = pack_float_bytes(weight.type)) {
    for (int c = 0; c < weight.cols; ++c)
      dequantise(weight.type, p + static_cast<std::size_t>((c * kRowGroup + r) * bytes), 1, to + c);
    return;
  }
  const PackLayout& l = *pack_layout(weight.type);
  const bool k_quant = l.byte_scales != 0, has_min = l.has_min(), halves = l.halves();
  const int zero = l.zero();
  float d = 0.0f, m = 0.0f;
  for (int b = 0; b < weight.cols / kActBlock; ++b) {
    if (!k_quant || b % 8 == 0) {
      d = f16_to_f32(pack_u16(p + 2 * r));
      if (has_min) m = f16_to_f32(pack_u16(p + 32 + 2 * r));
      p += 32 * l.f16_scales;
    }
    const std::byte* const scales = p;
    p += kRowGroup * l.byte_scales;
    for (int c = 0; c < kActBlock; ++c) {
      const int half = halves ? c / 16 : 0;
      float s = d, low = m;
      if (k_quant) {
        const std::uint8_t byte = pack_u8(scales, kRowGroup * half + r);
        s = d * static_cast<float>(has_min ? static_cast<int>(byte)
                                           : static_cast<int>(static_cast<std::int8_t>(byte)));
        low = m * static_cast<float>(pack_u8(scales, kRowGroup * (halves ? 2 + half : 1) + r));
      }
      const float value = s * static_cast<float>(unpack_code(l.bits, p, r, c) - zero);
      to[b * kActBlock + c] = has_min ? value + low : value;
    }
    p += l.bits * kActBlock * kRowGroup / 8;
  }
}

}  // namespace decant::detail
