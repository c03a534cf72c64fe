// See reference.hpp.
#include "base/fp_contract.hpp"

#include "backend/reference/reference.hpp"

#ifdef DECANT_EIGEN

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/kv_int8.hpp"
#include "backend/reference/attention.hpp"
#include "backend/reference/eigen.hpp"
#include "backend/rope.hpp"
#include "base/float16.hpp"
#include "base/math.hpp"

namespace decant::detail {

namespace {

constexpr int kWeightRows = 64;  // dequantised at a time

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstVector = Eigen::Map<const Eigen::VectorXf>;

/// Working memory of one worker.
struct ReferenceScratch {
  RowMajor weights;             // [64][max cols]
  Eigen::VectorXd x, y;         // [max cols], [64]: y = weights * x
  Eigen::VectorXf dequantised;  // [max cols]
  AttentionScratch attention;
};

int reference_blocks(int n, int block) { return (n + block - 1) / block; }

/// x / rms(x) * weight (Zhang & Sennrich 2019).
void reference_norm(const float* x, const Vector& weight, double eps, double* to) {
  const auto n = static_cast<Eigen::Index>(weight.size());
  const auto values = ConstVector(x, n).cast<double>();
  const double scale = 1.0 / std::sqrt(values.squaredNorm() / static_cast<double>(n) + eps);
  Eigen::Map<Eigen::VectorXd>(to, n) =
      (values * scale).cwiseProduct(ConstVector(weight.data(), n).cast<double>());
}

double reference_bias(const Vector& bias, int i) {
  return bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(i)]);
}

void reference_add_bias(const double* y, const Vector& bias, int first, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = static_cast<float>(y[i] + reference_bias(bias, first + i));
}

double reference_activate(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1.0 + exp_d(-x));
  constexpr double kSqrt2OverPi = 0.79788456080286535588;  // Hendrycks & Gimpel 2016
  return 0.5 * x * (1.0 + tanh_d(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
}

void reference_store(KvType type, double value, std::byte* to, std::size_t index) {
  const auto single = static_cast<float>(value);
  if (type != KvType::f32) {
    const std::uint16_t half = type == KvType::f16 ? f32_to_f16(single) : f32_to_bf16(single);
    std::memcpy(to + 2 * index, &half, sizeof half);
  } else {
    std::memcpy(to + 4 * index, &single, sizeof single);
  }
}

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(const ModelSpec& spec, const ModelWeights& weights, const BackendLimits& limits);
  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  void begin(const Batch& batch) override;
  std::size_t count(Operation op, int layer) const override;
  void run(Operation op, int layer, std::size_t item, int worker) noexcept override;

 private:
  // Rows of one sequence that attention handles together.
  struct RowBlock {
    int first_row, n_rows;
  };

  void embed(int row);
  void qkv(int layer, int head, ReferenceScratch& s);
  void attend(int layer, int item, ReferenceScratch& s);
  void attention_output(int layer, int block, ReferenceScratch& s);
  void gate_up(int layer, int block, ReferenceScratch& s);
  void down(int layer, int block, ReferenceScratch& s);
  void logits(int block, ReferenceScratch& s);

  void project_rows(const Weight& weight, const Vector& bias, std::vector<float>& input, int width,
                    int block, ReferenceScratch& s);
  void load_rows(const Weight& weight, int first, int n, int at, ReferenceScratch& s) const;
  void multiply(int n, int cols, ReferenceScratch& s) const {
    s.y.head(n).noalias() = s.weights.topLeftCorner(n, cols) * s.x.head(cols);
  }
  void residual_and_norm(const float* residual, const Vector* pending_norm, const Vector& norm,
                         int row, float* new_residual, ReferenceScratch& s) const;
  void rotate(const RopeSpec& rope, int rope_index, int row, float* head) const;
  float* row_of(std::vector<float>& rows, int width, int row) const {
    return &rows[static_cast<std::size_t>(row) * static_cast<std::size_t>(width)];
  }
  int n_rows() const { return static_cast<int>(batch_.rows.size()); }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  Batch batch_;
  std::vector<RowBlock> row_blocks_;
  std::vector<int> logits_rows_;
  std::vector<ReferenceScratch> scratch_;  // [n_workers]
  int q_width_ = 0, attended_width_ = 0, kv_width_ = 0, ff_width_ = 0;
  std::size_t max_rows_ = 0;
  std::uint64_t memory_bytes_ = 0;

  // Plain rows that operations hand on: [max_rows][width].
  std::vector<float> residual_[2];  // qkv reads 0 and writes 1, gate_up the other way round
  std::vector<float> q_, kv_, attended_, ff_;
  std::vector<float> output_;  // of attention_output and of down, before post-norm and residual
  std::vector<std::vector<double>> inverse_frequency_;  // [rope][dims / 2]
  std::vector<std::vector<double>> rope_table_;         // [rope][max_rows][dims / 2]{cos, sin}
};

ReferenceBackend::ReferenceBackend(const ModelSpec& spec, const ModelWeights& weights,
                                   const BackendLimits& limits)
    : spec_(spec), weights_(weights), max_rows_(static_cast<std::size_t>(limits.max_rows)) {
  int max_group = 1, max_key = 1, max_value = 1;
  for (const LayerSpec& layer : spec.layers) {
    q_width_ = std::max(q_width_, layer.n_heads * layer.key_dim);
    attended_width_ = std::max(attended_width_, layer.n_heads * layer.value_dim);
    kv_width_ =
        std::max({kv_width_, layer.n_kv_heads * layer.key_dim, layer.n_kv_heads * layer.value_dim});
    ff_width_ = std::max(ff_width_, layer.n_ff);
    max_group = std::max(max_group, layer.group());
    max_key = std::max(max_key, layer.key_dim);
    max_value = std::max(max_value, layer.value_dim);
  }
  const int max_cols = std::max({spec.n_embd, q_width_, attended_width_, ff_width_});
  const auto cols = static_cast<std::uint64_t>(max_cols);
  memory_bytes_ = static_cast<std::uint64_t>(limits.n_workers) *
                  (sizeof(double) * (kWeightRows * (cols + 1) + cols) + sizeof(float) * cols +
                   AttentionScratch::bytes(max_group, max_key, max_value));
  if (!limits.measure)
    for (int i = 0; i < limits.n_workers; ++i)
      scratch_.push_back({RowMajor::Zero(kWeightRows, max_cols), Eigen::VectorXd::Zero(max_cols),
                          Eigen::VectorXd::Zero(kWeightRows), Eigen::VectorXf::Zero(max_cols),
                          AttentionScratch(max_group, max_key, max_value)});

  const auto take = [&](auto& to, int width) {
    const std::size_t n = max_rows_ * static_cast<std::size_t>(width);
    memory_bytes_ += n * sizeof(to[0]);
    if (!limits.measure) to.resize(n);
  };
  for (auto& residual : residual_) take(residual, spec.n_embd);
  take(q_, q_width_);
  take(kv_, 2 * kv_width_);
  take(attended_, attended_width_);
  take(ff_, ff_width_);
  take(output_, spec.n_embd);
  row_blocks_.reserve(max_rows_);
  logits_rows_.reserve(max_rows_);
  for (const RopeSpec& rope : spec.ropes) {
    inverse_frequency_.push_back(rope_frequencies(rope));
    take(rope_table_.emplace_back(), rope.dims / 2 * 2);
  }
}

void ReferenceBackend::begin(const Batch& batch) {
  DECANT_ASSERT(batch.rows.size() <= max_rows_);
  batch_ = batch;
  row_blocks_.clear();
  logits_rows_.clear();
  for (int row = 0; row < n_rows(); ++row) {
    const Row& r = batch.rows[static_cast<std::size_t>(row)];
    if (r.logits != nullptr) logits_rows_.push_back(row);
    const bool continues = !row_blocks_.empty() && row_blocks_.back().n_rows < kAttentionRows &&
                           batch.rows[static_cast<std::size_t>(row - 1)].sequence == r.sequence;
    if (continues)
      ++row_blocks_.back().n_rows;
    else
      row_blocks_.push_back({row, 1});
  }
}

std::size_t ReferenceBackend::count(Operation op, int layer) const {
  const auto blocks = [](int n) {
    return static_cast<std::size_t>(reference_blocks(n, kWeightRows));
  };
  if (op == Operation::embed) return batch_.rows.size();
  if (op == Operation::logits) return logits_rows_.empty() ? 0 : blocks(spec_.n_vocab);
  const LayerSpec& l = spec_.layers[static_cast<std::size_t>(layer)];
  switch (op) {
    case Operation::qkv: return static_cast<std::size_t>(l.n_heads + 2 * l.n_kv_heads);
    case Operation::attend: return row_blocks_.size() * static_cast<std::size_t>(l.n_kv_heads);
    case Operation::gate_up:
      return static_cast<std::size_t>(reference_blocks(l.n_ff, kWeightRows / 2));
    default: return blocks(spec_.n_embd);
  }
}

void ReferenceBackend::run(Operation op, int layer, std::size_t item, int worker) noexcept {
  ReferenceScratch& s = scratch_[static_cast<std::size_t>(worker)];
  const int i = static_cast<int>(item);
  switch (op) {
    case Operation::embed: return embed(i);
    case Operation::qkv: return qkv(layer, i, s);
    case Operation::attend: return attend(layer, i, s);
    case Operation::attention_output: return attention_output(layer, i, s);
    case Operation::gate_up: return gate_up(layer, i, s);
    case Operation::down: return down(layer, i, s);
    case Operation::logits: return logits(i, s);
  }
}

/// Rows [first, first + n) of a weight to rows [at, at + n) of the scratch matrix.
void ReferenceBackend::load_rows(const Weight& weight, int first, int n, int at,
                                 ReferenceScratch& s) const {
  for (int r = 0; r < n; ++r) {
    dequantise(weight.type, weight.data + static_cast<std::uint64_t>(first + r) * weight.row_bytes,
               static_cast<std::size_t>(weight.cols), s.dequantised.data());
    s.weights.row(at + r).head(weight.cols) = s.dequantised.head(weight.cols).cast<double>();
  }
}

/// The prologue of qkv, gate_up and logits: the residual stream with what the last operation left
/// added to it (through its post-norm, if the model has one), and into s.x the norm of that.
/// `pending_norm` null: nothing was left. One item of each operation stores the new residual.
void ReferenceBackend::residual_and_norm(const float* residual, const Vector* pending_norm,
                                         const Vector& norm, int row, float* new_residual,
                                         ReferenceScratch& s) const {
  const auto n = static_cast<Eigen::Index>(spec_.n_embd);
  float* sum = s.dequantised.data();
  std::copy_n(residual, n, sum);
  if (pending_norm != nullptr) {
    const float* output = &output_[static_cast<std::size_t>(row) * static_cast<std::size_t>(n)];
    if (pending_norm->empty()) {
      s.dequantised.head(n) += ConstVector(output, n);
    } else {
      reference_norm(output, *pending_norm, spec_.norm_eps, s.x.data());
      s.dequantised.head(n) = (s.dequantised.head(n).cast<double>() + s.x.head(n)).cast<float>();
    }
  }
  if (new_residual != nullptr) std::copy_n(sum, n, new_residual);
  reference_norm(sum, norm, spec_.norm_eps, s.x.data());
}

void ReferenceBackend::embed(int row) {
  const Row& r = batch_.rows[static_cast<std::size_t>(row)];
  const Weight& table = weights_.embedding;
  float* x = row_of(residual_[0], spec_.n_embd, row);
  dequantise(table.type, table.data + static_cast<std::uint64_t>(r.token) * table.row_bytes,
             static_cast<std::size_t>(table.cols), x);
  for (int i = 0; i < spec_.n_embd; ++i)
    x[i] = static_cast<float>(static_cast<double>(x[i]) * spec_.embedding_scale);
  for (std::size_t k = 0; k < rope_table_.size(); ++k) {
    const auto& inverse = inverse_frequency_[k];
    double* table_row = &rope_table_[k][static_cast<std::size_t>(row) * 2 * inverse.size()];
    for (std::size_t i = 0; i < inverse.size(); ++i) {
      const SinCos turn = sincos_d(static_cast<double>(r.position) * inverse[i]);
      table_row[2 * i] = turn.cos;
      table_row[2 * i + 1] = turn.sin;
    }
  }
}

void ReferenceBackend::rotate(const RopeSpec& rope, int rope_index, int row, float* head) const {
  const int half = rope.dims / 2;
  const double* table =
      &rope_table_[static_cast<std::size_t>(rope_index)]
                  [static_cast<std::size_t>(row) * static_cast<std::size_t>(rope.dims)];
  for (int i = 0; i < half; ++i) {
    const bool neighbours = rope.pairs == RopePairs::neighbours;
    float& a = head[neighbours ? 2 * i : i];
    float& b = head[neighbours ? 2 * i + 1 : i + half];
    const double cos = table[2 * i], sin = table[2 * i + 1];
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    a = static_cast<float>(x * cos - y * sin);
    b = static_cast<float>(x * sin + y * cos);
  }
}

/// One head of q, k or v for all rows: projection, bias, q/k norm, RoPE; k and v go into pages.
void ReferenceBackend::qkv(int layer, int head, ReferenceScratch& s) {
  const LayerSpec& l = spec_.layers[static_cast<std::size_t>(layer)];
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const bool is_q = head < l.n_heads;
  const bool is_k = !is_q && head < l.n_heads + l.n_kv_heads;
  const bool stores_residual = head == 0;
  if (!is_q) head -= is_k ? l.n_heads : l.n_heads + l.n_kv_heads;
  const Weight& weight = is_q ? w.q : is_k ? w.k : w.v;
  const Vector& bias = is_q ? w.q_bias : is_k ? w.k_bias : w.v_bias;
  const Vector& head_norm = is_q ? w.q_norm : w.k_norm;
  const int dim = is_q || is_k ? l.key_dim : l.value_dim;
  const Vector* pending =
      layer == 0 ? nullptr : &weights_.layers[static_cast<std::size_t>(layer - 1)].post_ffn_norm;

  const auto head_of = [&](int row) {
    if (is_q) return row_of(q_, q_width_, row) + head * dim;
    return row_of(kv_, 2 * kv_width_, row) + (is_k ? 0 : kv_width_) + head * dim;
  };
  for (int first = 0; first < dim; first += kWeightRows) {
    const int n = std::min(kWeightRows, dim - first);
    load_rows(weight, head * dim + first, n, 0, s);
    for (int row = 0; row < n_rows(); ++row) {
      float* new_residual =
          stores_residual && first == 0 ? row_of(residual_[1], spec_.n_embd, row) : nullptr;
      residual_and_norm(row_of(residual_[0], spec_.n_embd, row), pending, w.attention_norm, row,
                        new_residual, s);
      multiply(n, weight.cols, s);
      reference_add_bias(s.y.data(), bias, head * dim + first, n, head_of(row) + first);
    }
  }

  const KvView& kv = batch_.kv[static_cast<std::size_t>(l.kv_group)];
  for (int row = 0; row < n_rows(); ++row) {
    float* x = head_of(row);
    if (is_q || is_k) {
      if (!head_norm.empty()) {
        reference_norm(x, head_norm, spec_.norm_eps, s.x.data());
        for (int i = 0; i < dim; ++i) x[i] = static_cast<float>(s.x[i]);
      }
      rotate(spec_.ropes[static_cast<std::size_t>(l.rope)], l.rope, row, x);
      if (kv.key_type == KvType::int8) hadamard(x, dim);
      if (is_q) continue;
    }
    const Row& r = batch_.rows[static_cast<std::size_t>(row)];
    const std::int32_t page =
        batch_
            .sequences[static_cast<std::size_t>(r.sequence)][l.kv_group][r.position / kPageTokens];
    const int slot = r.position % kPageTokens;
    std::byte* to = is_k ? kv.keys(page, l.kv_slot, head) : kv.values(page, l.kv_slot, head);
    if ((is_k ? kv.key_type : kv.value_type) == KvType::int8) {
      store_int8(x, dim, slot, is_k, to,
                 is_k ? kv.key_scales(page, l.kv_slot, head)
                      : kv.value_scales(page, l.kv_slot, head));
      continue;
    }
    for (int i = 0; i < dim; ++i) {
      const int index = is_k ? i * kPageTokens + slot : slot * dim + i;
      reference_store(is_k ? kv.key_type : kv.value_type, static_cast<double>(x[i]), to,
                      static_cast<std::size_t>(index));
    }
  }
}

void ReferenceBackend::attend(int layer, int item, ReferenceScratch& s) {
  const LayerSpec& l = spec_.layers[static_cast<std::size_t>(layer)];
  const RowBlock& block = row_blocks_[static_cast<std::size_t>(item / l.n_kv_heads)];
  const Row& first = batch_.rows[static_cast<std::size_t>(block.first_row)];
  AttentionQuery query;
  query.layer = &l;
  query.kv = &batch_.kv[static_cast<std::size_t>(l.kv_group)];
  query.block_table = batch_.sequences[static_cast<std::size_t>(first.sequence)][l.kv_group];
  query.kv_head = item % l.n_kv_heads;
  query.n_rows = block.n_rows;
  query.first_position = first.position;
  query.q = row_of(q_, q_width_, block.first_row);
  query.q_stride = static_cast<std::size_t>(q_width_);
  query.out = row_of(attended_, attended_width_, block.first_row);
  query.out_stride = static_cast<std::size_t>(attended_width_);
  attend_reference(query, s.attention);
}

/// 64 rows of output_ = weight * input + bias.
void ReferenceBackend::project_rows(const Weight& weight, const Vector& bias,
                                    std::vector<float>& input, int width, int block,
                                    ReferenceScratch& s) {
  const int first = block * kWeightRows;
  const int n = std::min(kWeightRows, weight.rows - first);
  load_rows(weight, first, n, 0, s);
  for (int row = 0; row < n_rows(); ++row) {
    s.x.head(weight.cols) = ConstVector(row_of(input, width, row), weight.cols).cast<double>();
    multiply(n, weight.cols, s);
    reference_add_bias(s.y.data(), bias, first, n, row_of(output_, spec_.n_embd, row) + first);
  }
}

void ReferenceBackend::attention_output(int layer, int block, ReferenceScratch& s) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  project_rows(w.attention_output, w.attention_output_bias, attended_, attended_width_, block, s);
}

void ReferenceBackend::down(int layer, int block, ReferenceScratch& s) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  project_rows(w.down, w.down_bias, ff_, ff_width_, block, s);
}

void ReferenceBackend::gate_up(int layer, int block, ReferenceScratch& s) {
  const LayerSpec& l = spec_.layers[static_cast<std::size_t>(layer)];
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const int first = block * (kWeightRows / 2);
  const int n = std::min(kWeightRows / 2, l.n_ff - first);
  load_rows(w.gate, first, n, 0, s);
  load_rows(w.up, first, n, n, s);
  for (int row = 0; row < n_rows(); ++row) {
    residual_and_norm(row_of(residual_[1], spec_.n_embd, row), &w.post_attention_norm, w.ffn_norm,
                      row, block == 0 ? row_of(residual_[0], spec_.n_embd, row) : nullptr, s);
    multiply(2 * n, w.gate.cols, s);
    float* to = row_of(ff_, ff_width_, row) + first;
    for (int i = 0; i < n; ++i) {
      const double gate = s.y[i] + reference_bias(w.gate_bias, first + i);
      const double up = s.y[n + i] + reference_bias(w.up_bias, first + i);
      to[i] = static_cast<float>(reference_activate(l.activation, gate) * up);
    }
  }
}

void ReferenceBackend::logits(int block, ReferenceScratch& s) {
  const int first = block * kWeightRows;
  const int n = std::min(kWeightRows, spec_.n_vocab - first);
  load_rows(weights_.head, first, n, 0, s);
  for (const int row : logits_rows_) {
    residual_and_norm(row_of(residual_[0], spec_.n_embd, row),
                      &weights_.layers.back().post_ffn_norm, weights_.final_norm, row, nullptr, s);
    multiply(n, spec_.n_embd, s);
    float* to = batch_.rows[static_cast<std::size_t>(row)].logits + first;
    for (int i = 0; i < n; ++i) to[i] = static_cast<float>(soft_cap_d(s.y[i], spec_.logit_softcap));
  }
}

}  // namespace

std::unique_ptr<Backend> make_reference_backend(const ModelSpec& spec, const ModelWeights& weights,
                                                const BackendLimits& limits) {
  return std::make_unique<ReferenceBackend>(spec, weights, limits);
}

}  // namespace decant::detail

#else

namespace decant::detail {

std::unique_ptr<Backend> make_reference_backend(const ModelSpec&, const ModelWeights&,
                                                const BackendLimits&) {
  return nullptr;
}

}  // namespace decant::detail

#endif
