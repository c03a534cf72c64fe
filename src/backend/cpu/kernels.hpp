// The CPU kernels as a table: one for each instruction set, all with the same results, bit for bit.
#pragma once

#include "backend/backend.hpp"

namespace decant::detail {

/// Columns that share an activation scale.
inline constexpr int kActBlock = 32;

/// 32 activations as int8: x is about d * q. One cache line. Activations as int16 are two of these:
/// x is about d * (254 q + q of the second), the sums are of the whole, and the second has only q.
/// AVX2 keeps the int16 themselves there, see matmul_avx2.inl.hpp.
struct alignas(64) ActBlock {
  std::int8_t q[kActBlock];
  float d;             // max |x| / 127, or / 32385
  float dsum;          // d * sum of q
  float dsum_half[2];  // the same of each half of 16
  std::int32_t nsum;   // - sum of q
  std::int32_t nsum_half[2];
  std::int32_t unused;
};

/// out[row][16 g + r] = sum over columns of W[16 (first_group + g) + r] times the row's
/// activations.
struct MatmulArgs {
  const Weight* weight;  // packed
  int first_group, n_groups;
  const ActBlock* acts;  // [n_rows] rows of act_stride ActBlocks; integer weights
  const float* floats;   // [n_rows] rows of float_stride; float weights, padded to 16 columns
  std::size_t act_stride, float_stride;
  int n_rows;
  bool wide;   // activations as int16: two blocks for each 32 columns
  float* out;  // [n_rows] rows of out_stride, at least 16 n_groups wide
  std::size_t out_stride;
};

/// sum = residual + post-norm(output); y = norm(sum). Any of output, post_weight may be null.
struct NormArgs {
  const float* residual;     // [n]
  const float* output;       // [n] what the last operation left, or null
  const float* post_weight;  // [n] or null
  const float* weight;       // [n]
  int n;
  float eps;
  float* sum;  // [n]
  float* y;    // [n]
};

struct AttendArgs {
  const KvView* kv;
  const std::int32_t* block_table;
  int slot, kv_head;
  int key_dim, value_dim, group;
  float scale, softcap;  // softcap 0: none
  int window;
  int first_position, n_rows;  // at most kCpuMaxQueries
  const float* q;              // [n_rows] rows of q_stride: [group][key_dim]
  std::size_t q_stride;
  int first_split, n_splits;  // of kCpuSplit positions
  float* scratch;             // attend_scratch(key_dim, value_dim)
  // For each query [n_rows][group]: merged over the given splits in ascending order.
  float* max;     // [n_rows * group]
  float* sum;     // 0: saw nothing
  float* output;  // [n_rows * group][value_dim], not yet divided by sum
};
inline constexpr int kCpuSplit = 256;      // positions of an attention split
inline constexpr int kCpuMaxQueries = 12;  // that attention takes at a time, on any instruction set
inline constexpr int kCpuMaxPages = 4;     // that it takes at a time
inline constexpr std::size_t attend_scratch(int key_dim, int value_dim) {
  const auto keys = static_cast<std::size_t>(key_dim), values = static_cast<std::size_t>(value_dim);
  return kCpuMaxQueries * (kCpuSplit + kPageTokens + keys + values) +
         kCpuMaxPages * kPageTokens * values;
}

struct CpuKernels {
  const char* name;
  void (*matmul)(const MatmulArgs&);
  void (*norm)(const NormArgs&);
  /// n a multiple of 32. To int8, or to int16 in twice as many blocks.
  void (*quantise)(const float* x, int n, ActBlock* to);
  void (*quantise_wide)(const float* x, int n, ActBlock* to);
  void (*attend)(const AttendArgs&);
  /// (max, sum, output) of a later split into that of the splits before it.
  void (*merge)(float* max, float* sum, float* output, float other_max, float other_sum,
                const float* other_output, int value_dim);
  /// to[i] = x[i] / by
  void (*divide)(const float* x, float by, int n, float* to);
  /// x[i] becomes cap tanh(x[i] / cap); n a multiple of 16.
  void (*soft_cap)(float* x, int n, float cap);
  /// to[i] = activation(gate[i]) * up[i]
  void (*activate)(Activation activation, const float* gate, const float* up, int n, float* to);
  /// x / rms(x) * weight in place.
  void (*head_norm)(float* x, const float* weight, int n, float eps);
  /// RoPE in place; table [2][dims]: cosines, then sines, those of a pair's first coordinate
  /// negated.
  void (*rotate)(float* x, const float* table, int dims, RopePairs pairs);
  /// x[i] to element i * step of a page.
  void (*store_kv)(KvType type, const float* x, int n, int step, std::byte* to);
};

/// The best table that this processor runs, or the one of that name ("portable", "avx2", "avx512",
/// "neon"). Errors: unsupported.
Result<const CpuKernels*> cpu_kernels(std::string_view isa);

}  // namespace decant::detail
