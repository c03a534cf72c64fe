#include "base/fp_contract.hpp"

#include "backend/cpu/cpu.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cpu/pack.hpp"
#include "backend/rope.hpp"
#include "base/float16.hpp"
#include "base/math.hpp"

namespace decant::detail {

namespace {

constexpr int kItemGroups = 4;       // row groups in an item of most operations
constexpr int kHeadItemGroups = 16;  // of the output head
constexpr int kSplit = 256;          // positions of an attention split

std::size_t cpu_size(int n) { return static_cast<std::size_t>(n); }
int cpu_blocks(int n, int block) { return (n + block - 1) / block; }
int cpu_padded(int n) { return cpu_blocks(n, kActBlock) * kActBlock; }

template <class T>
struct Rows {
  int width = 0;
  std::vector<T> data;
  void resize(int n_rows, int new_width) {
    width = new_width;
    data.resize(cpu_size(n_rows) * cpu_size(width));
  }
  T* operator[](int row) { return data.data() + cpu_size(row) * cpu_size(width); }
  const T* operator[](int row) const { return data.data() + cpu_size(row) * cpu_size(width); }
};

/// What one worker keeps: the input rows of the operation it is in, and scratch.
struct CpuWorker {
  std::uint64_t prepared = 0;                // the operation whose input rows these are
  Rows<ActBlock> acts;                       // [max_rows][widest / 32]
  Rows<float> floats;                        // [max_rows][widest]
  std::vector<float> sum, normed;            // [n_embd]
  Rows<float> out, out2;                     // [max_rows][widest item]
  std::vector<float> attention;              // attend_scratch
  std::vector<float> max, state_sum, state;  // attention: [rows][group], the last x value_dim
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelSpec& spec, const ModelWeights& weights, const BackendLimits& limits,
             const CpuKernels& kernels);
  void begin(const Batch& batch) override;
  std::size_t count(Operation op, int layer) const override;
  void run(Operation op, int layer, std::size_t item, int worker) noexcept override;

 private:
  struct RowBlock {
    int first_row, n_rows, first_split, n_splits;
  };

  void embed(int row);
  void qkv(int layer, int head, CpuWorker& w);
  void attend(int layer, int item, CpuWorker& w);
  void project(const Weight& weight, const Vector& bias, int item, CpuWorker& w);
  void gate_up(int layer, int item, CpuWorker& w);
  void logits(int item, CpuWorker& w);

  void prepare(Operation op, int layer, CpuWorker& w);
  void set_input(CpuWorker& w, int at, const float* x, int n, bool integer, bool floats);
  void prepare_normed(const float* residual, bool pending, const Vector& post_norm,
                      const Vector& norm, int row, int at, bool integer, bool floats, CpuWorker& w);
  void store_residual(const Rows<float>& from, bool pending, const Vector& post_norm,
                      const Vector& norm, Rows<float>& to, CpuWorker& w);
  void multiply(const Weight& weight, int first_group, int n_groups, int n_rows, CpuWorker& w,
                float* out, int out_stride) const;
  void attended_row(int layer, int row, float* to) const;
  void rotate(const LayerSpec& l, int row, float* head) const;
  int n_rows() const { return static_cast<int>(batch_.rows.size()); }
  /// Layer 0 has no layer before it, and nothing pending: any norm does.
  const Vector& post_ffn_norm_before(int layer) const {
    return layer_weights(std::max(0, layer - 1)).post_ffn_norm;
  }
  const LayerSpec& layer_spec(int layer) const { return spec_.layers[cpu_size(layer)]; }
  const LayerWeights& layer_weights(int layer) const { return weights_.layers[cpu_size(layer)]; }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const CpuKernels& kernels_;
  Batch batch_;
  std::uint64_t pass_ = 0;  // so that a worker knows whose rows it holds
  std::vector<RowBlock> row_blocks_;
  std::vector<int> logits_rows_;
  std::vector<CpuWorker> workers_;

  Rows<float> residual_[2];  // qkv reads 0 and writes 1, gate_up the other way round
  Rows<float> q_, attended_, ff_, output_;
  std::vector<std::vector<double>> inverse_frequency_;  // [rope][dims / 2]
  std::vector<Rows<float>> rope_;                       // [rope][max_rows][dims / 2]{cos, sin}
  // A few rows with long contexts are attended split by split: [split][row][head].
  bool by_split_ = false;
  Rows<float> part_max_, part_sum_, part_output_;
};

CpuBackend::CpuBackend(const ModelSpec& spec, const ModelWeights& weights,
                       const BackendLimits& limits, const CpuKernels& kernels)
    : spec_(spec), weights_(weights), kernels_(kernels) {
  int q_width = 0, attended_width = 0, ff_width = 0, head_width = 0, group = 1, value_dim = 1,
      n_heads = 1;
  for (const LayerSpec& l : spec.layers) {
    q_width = std::max(q_width, l.n_heads * l.key_dim);
    attended_width = std::max(attended_width, l.n_heads * l.value_dim);
    ff_width = std::max(ff_width, l.n_ff);
    head_width = std::max({head_width, l.key_dim, l.value_dim});
    group = std::max(group, l.group());
    value_dim = std::max(value_dim, l.value_dim);
    n_heads = std::max(n_heads, l.n_heads);
  }
  const int rows = limits.max_rows;
  const int widest = cpu_padded(std::max({spec.n_embd, attended_width, ff_width}));
  const int item_width =
      std::max(cpu_padded(head_width), std::max(kItemGroups, kHeadItemGroups) * kRowGroup);
  for (int i = 0; i < limits.n_workers; ++i) {
    CpuWorker w;
    w.acts.resize(rows, widest / kActBlock);
    w.floats.resize(rows, widest);
    w.sum.resize(cpu_size(widest));
    w.normed.resize(cpu_size(widest));
    w.out.resize(rows, item_width);
    w.out2.resize(rows, item_width);
    w.attention.resize(attend_scratch(value_dim));
    w.max.resize(cpu_size(kCpuAttentionRows * group));
    w.state_sum.resize(cpu_size(kCpuAttentionRows * group));
    w.state.resize(cpu_size(kCpuAttentionRows * group * value_dim));
    workers_.push_back(std::move(w));
  }
  for (auto& residual : residual_) residual.resize(rows, cpu_padded(spec.n_embd));
  output_.resize(rows, cpu_padded(spec.n_embd));
  q_.resize(rows, q_width);
  attended_.resize(rows, attended_width);
  ff_.resize(rows, cpu_padded(ff_width));
  const int parts = cpu_blocks(limits.max_positions, kSplit) * kCpuAttentionRows;
  part_max_.resize(parts, n_heads);
  part_sum_.resize(parts, n_heads);
  part_output_.resize(parts, attended_width);
  row_blocks_.reserve(std::max(cpu_size(rows), cpu_size(parts)));
  logits_rows_.reserve(cpu_size(rows));
  for (const RopeSpec& rope : spec.ropes) {
    inverse_frequency_.push_back(rope_frequencies(rope));
    rope_.emplace_back().resize(rows, rope.dims);
  }
}

void CpuBackend::begin(const Batch& batch) {
  batch_ = batch;
  ++pass_;
  row_blocks_.clear();
  logits_rows_.clear();
  int most_splits = 1;
  for (int row = 0; row < n_rows(); ++row) {
    const Row& r = batch.rows[cpu_size(row)];
    if (r.logits != nullptr) logits_rows_.push_back(row);
    const bool continues = !row_blocks_.empty() && row_blocks_.back().n_rows < kCpuAttentionRows &&
                           batch.rows[cpu_size(row - 1)].sequence == r.sequence;
    if (!continues) row_blocks_.push_back({row, 0, 0, 0});
    RowBlock& block = row_blocks_.back();
    ++block.n_rows;
    block.n_splits = r.position / kSplit + 1;
    most_splits = std::max(most_splits, block.n_splits);
  }
  // Few rows: one item for each split, so that all workers have some.
  by_split_ = n_rows() <= kCpuAttentionRows && most_splits > 1;
  if (!by_split_) return;
  for (std::size_t i = row_blocks_.size(); i-- > 0;) {
    const int n = std::exchange(row_blocks_[i].n_splits, 1);
    for (int split = 1; split < n; ++split)
      row_blocks_.push_back({row_blocks_[i].first_row, row_blocks_[i].n_rows, split, 1});
  }
}

std::size_t CpuBackend::count(Operation op, int layer) const {
  const auto items = [](const Weight& weight, int groups) {
    return cpu_size(cpu_blocks(weight.n_groups(), groups));
  };
  if (op == Operation::embed) return batch_.rows.size();
  if (op == Operation::logits)
    return logits_rows_.empty() ? 0 : items(weights_.head, kHeadItemGroups);
  const LayerSpec& l = layer_spec(layer);
  const LayerWeights& w = layer_weights(layer);
  switch (op) {
    case Operation::qkv: return cpu_size(l.n_heads + 2 * l.n_kv_heads);
    case Operation::attend: return row_blocks_.size() * cpu_size(l.n_kv_heads);
    case Operation::attention_output: return items(w.attention_output, kItemGroups);
    case Operation::gate_up: return items(w.gate, kItemGroups);
    default: return items(w.down, kItemGroups);
  }
}

void CpuBackend::run(Operation op, int layer, std::size_t item, int worker) noexcept {
  CpuWorker& w = workers_[cpu_size(worker)];
  const int i = static_cast<int>(item);
  const LayerWeights& l = layer_weights(layer);  // of layer 0 for embed and logits
  switch (op) {
    case Operation::embed: return embed(i);
    case Operation::qkv: return qkv(layer, i, w);
    case Operation::attend: return attend(layer, i, w);
    case Operation::attention_output:
      prepare(op, layer, w);
      return project(l.attention_output, l.attention_output_bias, i, w);
    case Operation::gate_up: return gate_up(layer, i, w);
    case Operation::down: prepare(op, layer, w); return project(l.down, l.down_bias, i, w);
    case Operation::logits: return logits(i, w);
  }
}

void CpuBackend::embed(int row) {
  const Row& r = batch_.rows[cpu_size(row)];
  float* x = residual_[0][row];
  unpack_row(weights_.embedding, r.token, x);
  const float scale = static_cast<float>(spec_.embedding_scale);
  for (int i = 0; i < spec_.n_embd; ++i) x[i] *= scale;
  for (std::size_t k = 0; k < rope_.size(); ++k) {
    float* table = rope_[k][row];
    for (std::size_t i = 0; i < inverse_frequency_[k].size(); ++i) {
      const SinCos turn = sincos_d(static_cast<double>(r.position) * inverse_frequency_[k][i]);
      table[2 * i] = static_cast<float>(turn.cos);
      table[2 * i + 1] = static_cast<float>(turn.sin);
    }
  }
}

/// Row `at` of the worker's input: as int8 blocks, as floats, or both, as the weights need it.
void CpuBackend::set_input(CpuWorker& w, int at, const float* x, int n, bool integer, bool floats) {
  if (integer) kernels_.quantise(x, n, w.acts[at]);
  if (floats) std::memcpy(w.floats[at], x, cpu_size(n) * sizeof(float));
}

/// The prologue of qkv, gate_up and logits: the norm of residual + post-norm(output).
void CpuBackend::prepare_normed(const float* residual, bool pending, const Vector& post_norm,
                                const Vector& norm, int row, int at, bool integer, bool floats,
                                CpuWorker& w) {
  kernels_.norm({residual, pending ? output_[row] : nullptr,
                 post_norm.empty() ? nullptr : post_norm.data(), norm.data(), spec_.n_embd,
                 static_cast<float>(spec_.norm_eps), w.sum.data(), w.normed.data()});
  set_input(w, at, w.normed.data(), spec_.n_embd, integer, floats);
}

/// The input rows of an operation, made once by each worker that takes an item of it.
void CpuBackend::prepare(Operation op, int layer, CpuWorker& w) {
  const std::uint64_t id = (pass_ * (spec_.layers.size() + 1) + cpu_size(layer)) * 8 +
                           static_cast<std::uint64_t>(op) + 1;
  if (w.prepared == id) return;
  w.prepared = id;
  const auto integer = [](const Weight& weight) { return packed_is_integer(weight.type); };
  if (op == Operation::logits) {
    const bool as_integer = integer(weights_.head);
    int at = 0;
    for (const int row : logits_rows_)
      prepare_normed(residual_[0][row], true, weights_.layers.back().post_ffn_norm,
                     weights_.final_norm, row, at++, as_integer, !as_integer, w);
    return;
  }
  const LayerWeights& l = layer_weights(layer);
  for (int row = 0; row < n_rows(); ++row) {
    switch (op) {
      case Operation::qkv: {
        const bool any = integer(l.q) || integer(l.k) || integer(l.v);
        const bool all = integer(l.q) && integer(l.k) && integer(l.v);
        prepare_normed(residual_[0][row], layer > 0, post_ffn_norm_before(layer), l.attention_norm,
                       row, row, any, !all, w);
        break;
      }
      case Operation::gate_up: {
        const bool any = integer(l.gate) || integer(l.up), all = integer(l.gate) && integer(l.up);
        prepare_normed(residual_[1][row], true, l.post_attention_norm, l.ffn_norm, row, row, any,
                       !all, w);
        break;
      }
      case Operation::attention_output: {
        const bool as_integer = integer(l.attention_output);
        const float* x = attended_[row];
        if (by_split_) {
          attended_row(layer, row, w.normed.data());
          x = w.normed.data();
        }
        set_input(w, row, x, l.attention_output.cols, as_integer, !as_integer);
        break;
      }
      default: {
        const bool as_integer = integer(l.down);
        set_input(w, row, ff_[row], l.down.cols, as_integer, !as_integer);
      }
    }
  }
}

/// The new residual stream, by one item of the operation that sums it.
void CpuBackend::store_residual(const Rows<float>& from, bool pending, const Vector& post_norm,
                                const Vector& norm, Rows<float>& to, CpuWorker& w) {
  for (int row = 0; row < n_rows(); ++row)
    kernels_.norm({from[row], pending ? output_[row] : nullptr,
                   post_norm.empty() ? nullptr : post_norm.data(), norm.data(), spec_.n_embd,
                   static_cast<float>(spec_.norm_eps), to[row], w.normed.data()});
}

/// Row groups [first_group, + n_groups) of a weight times the worker's rows.
void CpuBackend::multiply(const Weight& weight, int first_group, int n_groups, int n_rows,
                          CpuWorker& w, float* out, int out_stride) const {
  kernels_.matmul({&weight, first_group, n_groups, w.acts[0], w.floats[0], cpu_size(w.acts.width),
                   cpu_size(w.floats.width), n_rows, out, cpu_size(out_stride)});
}

void CpuBackend::rotate(const LayerSpec& l, int row, float* head) const {
  const RopeSpec& rope = spec_.ropes[cpu_size(l.rope)];
  const float* table = rope_[cpu_size(l.rope)][row];
  const int half = rope.dims / 2;
  if (rope.pairs == RopePairs::neighbours) {
    for (int i = 0; i < half; ++i) {
      const float x = head[2 * i], y = head[2 * i + 1];
      head[2 * i] = x * table[2 * i] - y * table[2 * i + 1];
      head[2 * i + 1] = x * table[2 * i + 1] + y * table[2 * i];
    }
  } else {
    for (int i = 0; i < half; ++i) {
      const float x = head[i], y = head[i + half];
      head[i] = x * table[2 * i] - y * table[2 * i + 1];
      head[i + half] = x * table[2 * i + 1] + y * table[2 * i];
    }
  }
}

/// One head of q, k or v for all rows: projection, bias, q/k norm, RoPE; k and v go into pages.
void CpuBackend::qkv(int layer, int head, CpuWorker& w) {
  const LayerSpec& l = layer_spec(layer);
  const LayerWeights& lw = layer_weights(layer);
  prepare(Operation::qkv, layer, w);
  if (head == 0) {
    store_residual(residual_[0], layer > 0, post_ffn_norm_before(layer), lw.attention_norm,
                   residual_[1], w);
  }
  const bool is_q = head < l.n_heads, is_k = !is_q && head < l.n_heads + l.n_kv_heads;
  if (!is_q) head -= is_k ? l.n_heads : l.n_heads + l.n_kv_heads;
  const Weight& weight = is_q ? lw.q : is_k ? lw.k : lw.v;
  const Vector& bias = is_q ? lw.q_bias : is_k ? lw.k_bias : lw.v_bias;
  const Vector& head_norm = is_q ? lw.q_norm : lw.k_norm;
  const int dim = is_q || is_k ? l.key_dim : l.value_dim;
  const int groups = weight.segment_groups();
  multiply(weight, head * groups, groups, n_rows(), w, w.out[0], w.out.width);

  const KvView& kv = batch_.kv[cpu_size(l.kv_group)];
  for (int row = 0; row < n_rows(); ++row) {
    float* x = w.out[row];
    if (!bias.empty())
      for (int i = 0; i < dim; ++i) x[i] += bias[cpu_size(head * dim + i)];
    if (is_q || is_k) {
      if (!head_norm.empty())
        kernels_.head_norm(x, head_norm.data(), dim, static_cast<float>(spec_.norm_eps));
      rotate(l, row, x);
    }
    if (is_q) {
      std::memcpy(q_[row] + head * dim, x, cpu_size(dim) * sizeof(float));
      continue;
    }
    const Row& r = batch_.rows[cpu_size(row)];
    const std::int32_t page =
        batch_.sequences[cpu_size(r.sequence)][l.kv_group][r.position / kPageTokens];
    const int slot = r.position % kPageTokens;
    std::byte* to = is_k ? kv.keys(page, l.kv_slot, head) : kv.values(page, l.kv_slot, head);
    const KvType type = is_k ? kv.key_type : kv.value_type;
    const int first = is_k ? slot : slot * dim, step = is_k ? kPageTokens : 1;
    if (type == KvType::f16) {
      auto* half = reinterpret_cast<std::uint16_t*>(to) + first;
      for (int i = 0; i < dim; ++i) half[i * step] = f32_to_f16(x[i]);
    } else {
      auto* single = reinterpret_cast<float*>(to) + first;
      for (int i = 0; i < dim; ++i) single[i * step] = x[i];
    }
  }
}

void CpuBackend::attend(int layer, int item, CpuWorker& w) {
  const LayerSpec& l = layer_spec(layer);
  const RowBlock& block = row_blocks_[cpu_size(item / l.n_kv_heads)];
  const Row& first = batch_.rows[cpu_size(block.first_row)];
  const int group = l.group(), head = item % l.n_kv_heads;
  AttendArgs a{};
  a.kv = &batch_.kv[cpu_size(l.kv_group)];
  a.block_table = batch_.sequences[cpu_size(first.sequence)][l.kv_group];
  a.slot = l.kv_slot;
  a.kv_head = head;
  a.key_dim = l.key_dim;
  a.value_dim = l.value_dim;
  a.group = group;
  a.scale = static_cast<float>(l.attention_scale);
  a.window = l.window;
  a.first_position = first.position;
  a.n_rows = block.n_rows;
  a.q = q_[block.first_row] + head * group * l.key_dim;
  a.q_stride = cpu_size(q_.width);
  a.first_split = block.first_split;
  a.n_splits = block.n_splits;
  a.scratch = w.attention.data();
  a.max = w.max.data();
  a.sum = w.state_sum.data();
  a.output = w.state.data();
  kernels_.attend(a);
  for (int row = 0; row < block.n_rows; ++row) {
    const int at = block.first_row + row;
    for (int i = 0; i < group; ++i) {
      const std::size_t query = cpu_size(row * group + i);
      const float* state = a.output + query * cpu_size(l.value_dim);
      const int h = head * group + i;
      if (by_split_) {
        const int part = block.first_split * kCpuAttentionRows + at;
        part_max_[part][h] = a.max[query];
        part_sum_[part][h] = a.sum[query];
        std::memcpy(part_output_[part] + h * l.value_dim, state,
                    cpu_size(l.value_dim) * sizeof(float));
      } else {
        float* to = attended_[at] + h * l.value_dim;
        for (int d = 0; d < l.value_dim; ++d) to[d] = state[d] / a.sum[query];
      }
    }
  }
}

/// A row whose splits were attended apart: merged in ascending order.
void CpuBackend::attended_row(int layer, int row, float* to) const {
  const LayerSpec& l = layer_spec(layer);
  const int n_splits = batch_.rows[cpu_size(row)].position / kSplit + 1;
  for (int h = 0; h < l.n_heads; ++h) {
    float max = 0.0f, sum = 0.0f;
    float* output = to + h * l.value_dim;
    for (int split = 0; split < n_splits; ++split) {
      const int part = split * kCpuAttentionRows + row;
      kernels_.merge(&max, &sum, output, part_max_[part][h], part_sum_[part][h],
                     part_output_[part] + h * l.value_dim, l.value_dim);
    }
    for (int d = 0; d < l.value_dim; ++d) output[d] /= sum;
  }
}

/// Output rows of attention_output and down.
void CpuBackend::project(const Weight& weight, const Vector& bias, int item, CpuWorker& w) {
  const int first = item * kItemGroups, n = std::min(kItemGroups, weight.n_groups() - first);
  multiply(weight, first, n, n_rows(), w, output_[0] + first * kRowGroup, output_.width);
  if (bias.empty()) return;
  const int end = std::min((first + n) * kRowGroup, weight.rows);
  for (int row = 0; row < n_rows(); ++row)
    for (int i = first * kRowGroup; i < end; ++i) output_[row][i] += bias[cpu_size(i)];
}

void CpuBackend::gate_up(int layer, int item, CpuWorker& w) {
  const LayerWeights& l = layer_weights(layer);
  prepare(Operation::gate_up, layer, w);
  if (item == 0)
    store_residual(residual_[1], true, l.post_attention_norm, l.ffn_norm, residual_[0], w);
  const int first = item * kItemGroups, n = std::min(kItemGroups, l.gate.n_groups() - first);
  multiply(l.gate, first, n, n_rows(), w, w.out[0], w.out.width);
  multiply(l.up, first, n, n_rows(), w, w.out2[0], w.out2.width);
  const int begin = first * kRowGroup, width = std::min(n * kRowGroup, l.gate.rows - begin);
  for (int row = 0; row < n_rows(); ++row) {
    float* gate = w.out[row];
    float* up = w.out2[row];
    for (int i = 0; i < width; ++i) {
      if (!l.gate_bias.empty()) gate[i] += l.gate_bias[cpu_size(begin + i)];
      if (!l.up_bias.empty()) up[i] += l.up_bias[cpu_size(begin + i)];
    }
    kernels_.activate(layer_spec(layer).activation, gate, up, width, ff_[row] + begin);
  }
}

void CpuBackend::logits(int item, CpuWorker& w) {
  prepare(Operation::logits, static_cast<int>(spec_.layers.size()), w);
  const int first = item * kHeadItemGroups,
            n = std::min(kHeadItemGroups, weights_.head.n_groups() - first);
  const int n_wanted = static_cast<int>(logits_rows_.size());
  multiply(weights_.head, first, n, n_wanted, w, w.out[0], w.out.width);
  const int begin = first * kRowGroup, width = std::min(n * kRowGroup, spec_.n_vocab - begin);
  for (int i = 0; i < n_wanted; ++i)
    std::memcpy(batch_.rows[cpu_size(logits_rows_[cpu_size(i)])].logits + begin, w.out[i],
                cpu_size(width) * sizeof(float));
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ModelSpec& spec, const ModelWeights& weights,
                                          const BackendLimits& limits, const CpuKernels& kernels) {
  return std::make_unique<CpuBackend>(spec, weights, limits, kernels);
}

}  // namespace decant::detail
