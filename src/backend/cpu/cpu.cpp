#include "base/fp_contract.hpp"

#include "backend/cpu/cpu.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <numeric>

#include "backend/cpu/pack.hpp"
#include "backend/kv_int8.hpp"
#include "backend/rope.hpp"
#include "base/float16.hpp"
#include "base/math.hpp"

namespace decant::detail {

namespace {

// An item is some row groups of a weight times some rows of tokens. Of a prompt:
constexpr int kItemRows = 48;  // its inputs and outputs stay in a core's own cache
constexpr int kManyItemGroups = 4;
// Of few rows, all of them: at most these, and 2 at least, which is a whole block of the next
// operation's input.
constexpr int kFewItemGroups = 8;
constexpr int kHeadItemGroups = 16;  // of the output head
constexpr int kOwnRows = 8;          // up to here each worker makes the input rows for itself
constexpr int kPrologueRows = 4;     // rows of a prologue's item
// Between input rows, so that a tile's rows are not all in the same few sets of a cache.
constexpr int kSkewLines = 5;
constexpr int kSplitRows = 16;  // so many rows have room to be attended split by split
static_assert(kOwnRows <= kItemRows);

std::size_t cpu_size(int n) { return static_cast<std::size_t>(n); }
int cpu_blocks(int n, int block) { return (n + block - 1) / block; }
int cpu_padded(int n) { return cpu_blocks(n, kActBlock) * kActBlock; }

/// Memory that starts with a cache line: a vector load across two lines costs two.
template <class T>
struct CpuLines {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  CpuLines() = default;
  template <class Other>
  CpuLines(const CpuLines<Other>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
  bool operator==(const CpuLines&) const = default;
};
template <class T>
using Lines = std::vector<T, CpuLines<T>>;

template <class T>
struct Rows {
  int width = 0;
  Lines<T> data;
  T* operator[](int row) { return data.data() + cpu_size(row) * cpu_size(width); }
  const T* operator[](int row) const { return data.data() + cpu_size(row) * cpu_size(width); }
};

/// Rows that weights are multiplied with: as int8 blocks, as floats, or both.
struct Inputs {
  Rows<ActBlock> acts;  // [rows][2 x widest / 32 + skew]: room for int16
  Rows<float> floats;   // [rows][widest + skew]
};

/// How an operation's weights want their input.
struct InputKind {
  bool integer = false, floats = false;
  bool wide = false;  // integers are int16
  void add(const Weight& weight) { (packed_is_integer(weight.type) ? integer : floats) = true; }
};

/// Row groups that are packed when an item uses them.
struct PackedGroups {
  Weight weight;
  Lines<std::byte> data;
};

/// Rows of tokens, [first, end).
struct RowRange {
  int first, end;
};

/// What one worker keeps.
struct CpuWorker {
  std::uint64_t prepared = 0;  // the operation whose input rows `own` holds
  Inputs own;                  // [kOwnRows]
  Lines<float> sum, normed;    // [widest]
  PackedGroups packed, packed2;
  Lines<float> out, out2;              // [kItemRows][columns of an item]
  Lines<float> attention;              // attend_scratch
  Lines<float> max, state_sum, state;  // attention: [rows][group], the last x value_dim
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelSpec& spec, const ModelWeights& weights, const BackendLimits& limits,
             const CpuKernels& kernels);
  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  void begin(const Batch& batch) override;
  std::size_t count(Operation op, int layer) const override;
  void run(Operation op, int layer, std::size_t item, int worker) noexcept override;
  std::size_t count_prologue(Operation op, int layer) const override;
  void run_prologue(Operation op, int layer, std::size_t item, int worker) noexcept override;

 private:
  struct RowBlock {
    int first_row, n_rows, first_split, n_splits;
  };

  void embed(int row);
  void qkv(int layer, int head, RowRange rows, CpuWorker& w);
  void attend(int layer, int item, CpuWorker& w);
  void project(Operation op, int layer, const Weight& weight, const Vector& bias, int block,
               RowRange rows, CpuWorker& w);
  void gate_up(int layer, int block, RowRange rows, CpuWorker& w);
  void logits(int block, RowRange rows, CpuWorker& w);

  int n_inputs(Operation op) const {
    return op == Operation::logits ? static_cast<int>(logits_rows_.size()) : n_rows();
  }
  /// Whether integer weights meet int16: where int8 costs most in quality (docs/performance.md).
  bool is_wide(Operation op, int layer) const {
    return all_wide_ || op == Operation::qkv || op == Operation::logits ||
           layer + 1 == static_cast<int>(spec_.layers.size());
  }
  InputKind find_input_kind(Operation op, int layer) const;
  const InputKind& input_kind(Operation op, int layer) const {
    return input_kinds_[cpu_size(layer)][static_cast<std::size_t>(op)];
  }
  bool made_by_producer(Operation op, int layer) const;
  bool has_prologue(Operation op, int layer) const {
    return n_inputs(op) > kOwnRows && !made_by_producer(op, layer);
  }
  const Inputs& inputs(Operation op, int layer, CpuWorker& w);
  void make_input(Operation op, int layer, int at, Inputs& to, float* residual, CpuWorker& w) const;
  void set_input(Inputs& to, int at, int column, const float* x, int n, InputKind kind) const;
  void store_residual(Operation op, int layer, CpuWorker& w);
  float* new_residual(Operation op, int row) {
    return op == Operation::qkv       ? residual_[1][row]
           : op == Operation::gate_up ? residual_[0][row]
                                      : nullptr;
  }
  MatmulArgs multiplication(bool wide, const Weight& weight, int first_group, int n_groups,
                            const Inputs& in, PackedGroups& packed) const;
  void multiply(MatmulArgs args, RowRange rows, float* out, int out_stride) const;
  void attended_row(int layer, int row, float* to) const;
  int n_rows() const { return static_cast<int>(batch_.rows.size()); }
  int n_splits(int row) const { return batch_.rows[cpu_size(row)].position / kCpuSplit + 1; }
  /// With few rows a worker has four items or more, which are as long as that allows: the stream of
  /// weights falters between them.
  int item_groups(const Weight& weight) const {
    const int n_workers = static_cast<int>(workers_.size());
    if (n_rows() > kItemRows) return kManyItemGroups;
    if (n_rows() > kOwnRows)  // few items: each worker has as many
      return cpu_blocks(weight.n_groups(), kManyItemGroups) % n_workers == 0 ? kManyItemGroups : 2;
    const int share = weight.n_groups() / (4 * n_workers);
    return std::clamp(share / 2 * 2, 2, kFewItemGroups);
  }
  /// Items that share row groups: one where these are packed for it.
  int n_row_items(Operation op) const {
    return packs_items_ ? 1 : cpu_blocks(n_inputs(op), kItemRows);
  }
  /// Layer 0 has no layer before it, and nothing pending: any norm does.
  const Vector& post_ffn_norm_before(int layer) const {
    return layer_weights(std::max(0, layer - 1)).post_ffn_norm;
  }
  const LayerSpec& layer_spec(int layer) const { return spec_.layers[cpu_size(layer)]; }
  const LayerWeights& layer_weights(int layer) const { return weights_.layers[cpu_size(layer)]; }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const CpuKernels& kernels_;
  const bool all_wide_;
  bool packs_items_ = false;                           // some weights are as the file has them
  std::vector<std::array<InputKind, 7>> input_kinds_;  // [layer][operation]
  Batch batch_;
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t pass_ = 0;  // so that a worker knows whose rows it holds
  // Rows of a sequence that are attended together: their queries fill whole tiles.
  int block_rows_ = 1;
  std::vector<RowBlock> row_blocks_;
  std::vector<int> logits_rows_;
  std::vector<CpuWorker> workers_;

  Rows<float> residual_[2];  // qkv reads 0 and writes 1, gate_up the other way round
  Rows<float> q_, output_;
  Inputs normed_;  // of qkv, gate_up and logits, made by their prologues
  Inputs made_;    // of attention_output and down, made by attend and gate_up
  std::vector<std::vector<double>> inverse_frequency_;  // [rope][dims / 2]
  std::vector<Rows<float>> rope_;  // [rope][max_rows][2][dims]: CpuKernels::rotate
  // Rows that look back far are attended split by split where the results have room.
  bool by_split_ = false;
  std::vector<int> first_part_;                    // [row]
  Rows<float> part_max_, part_sum_, part_output_;  // [row's first part + split][head]
};

CpuBackend::CpuBackend(const ModelSpec& spec, const ModelWeights& weights,
                       const BackendLimits& limits, const CpuKernels& kernels)
    : spec_(spec),
      weights_(weights),
      kernels_(kernels),
      all_wide_(limits.activations == Activations::int16) {
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
  std::uint64_t packed_bytes = 0;  // of an item's rows
  const auto count_packed = [&](const Weight& w, int n_groups) {
    if (w.rows == 0 || w.group_bytes != 0) return;
    packs_items_ = true;
    packed_bytes = std::max(
        packed_bytes, static_cast<std::uint64_t>(n_groups) * packed_group_bytes(w.type, w.cols));
  };
  for (const LayerWeights& l : weights.layers) {
    for (const Weight* w : {&l.q, &l.k, &l.v}) count_packed(*w, w->segment_groups());
    for (const Weight* w : {&l.attention_output, &l.gate, &l.up, &l.down})
      count_packed(*w, std::max(kManyItemGroups, kFewItemGroups));
  }
  count_packed(weights.head, kHeadItemGroups);
  for (int layer = 0; layer < static_cast<int>(spec.layers.size()); ++layer) {
    input_kinds_.emplace_back();
    for (const Operation op : {Operation::qkv, Operation::attention_output, Operation::gate_up,
                               Operation::down, Operation::logits})
      input_kinds_.back()[static_cast<std::size_t>(op)] = find_input_kind(op, layer);
  }
  const int rows = limits.max_rows, item_rows = std::min(rows, kItemRows);
  const int widest = cpu_padded(std::max({spec.n_embd, attended_width, ff_width}));
  const int item_width =
      std::max({cpu_padded(head_width), group * value_dim, kHeadItemGroups * kRowGroup});
  const auto take = [&](auto& to, std::size_t n) {
    memory_bytes_ += n * sizeof(to[0]);
    if (!limits.measure) to.resize(n);
  };
  const auto take_rows = [&](auto& to, int n_rows, int width) {
    to.width = width;
    take(to.data, cpu_size(n_rows) * cpu_size(width));
  };
  const auto take_inputs = [&](Inputs& to, int n_rows) {
    take_rows(to.acts, n_rows, 2 * widest / kActBlock + kSkewLines);
    take_rows(to.floats, n_rows, widest + kSkewLines * 16);
  };
  for (int i = 0; i < limits.n_workers; ++i) {
    CpuWorker w;
    take_inputs(w.own, std::min(rows, kOwnRows));
    take(w.sum, cpu_size(widest));
    take(w.normed, cpu_size(widest));
    for (PackedGroups* packed : {&w.packed, &w.packed2})
      take(packed->data, static_cast<std::size_t>(packed_bytes));
    for (Lines<float>* out : {&w.out, &w.out2})
      take(*out, cpu_size(item_rows) * cpu_size(item_width));
    take(w.attention, attend_scratch(head_width, value_dim));
    take(w.max, cpu_size(kCpuMaxQueries * group));
    take(w.state_sum, cpu_size(kCpuMaxQueries * group));
    take(w.state, cpu_size(kCpuMaxQueries * group * value_dim));
    workers_.push_back(std::move(w));
  }
  for (auto& residual : residual_) take_rows(residual, rows, cpu_padded(spec.n_embd));
  take_rows(output_, rows, cpu_padded(spec.n_embd));
  take_rows(q_, rows, q_width);
  take_inputs(normed_, rows);
  take_inputs(made_, rows);
  const int parts = cpu_blocks(limits.max_positions, kCpuSplit) * std::min(rows, kSplitRows);
  take_rows(part_max_, parts, n_heads);
  take_rows(part_sum_, parts, n_heads);
  take_rows(part_output_, parts, attended_width);
  row_blocks_.reserve(std::max(cpu_size(rows), cpu_size(parts)));
  first_part_.resize(cpu_size(rows));
  block_rows_ = kCpuMaxQueries / std::gcd(kCpuMaxQueries, group);
  logits_rows_.reserve(cpu_size(rows));
  for (const RopeSpec& rope : spec.ropes) {
    inverse_frequency_.push_back(rope_frequencies(rope));
    take_rows(rope_.emplace_back(), rows, 2 * rope.dims);
  }
}

void CpuBackend::begin(const Batch& batch) {
  batch_ = batch;
  ++pass_;
  row_blocks_.clear();
  logits_rows_.clear();
  int n_parts = 0;
  for (int row = 0; row < n_rows(); ++row) {
    const Row& r = batch.rows[cpu_size(row)];
    if (r.logits != nullptr) logits_rows_.push_back(row);
    const bool continues = !row_blocks_.empty() && row_blocks_.back().n_rows < block_rows_ &&
                           batch.rows[cpu_size(row - 1)].sequence == r.sequence;
    if (!continues) row_blocks_.push_back({row, 0, 0, 0});
    RowBlock& block = row_blocks_.back();
    ++block.n_rows;
    block.n_splits = n_splits(row);
    first_part_[cpu_size(row)] = n_parts;
    n_parts += block.n_splits;
  }
  by_split_ =
      n_parts > n_rows() && cpu_size(n_parts) * cpu_size(part_max_.width) <= part_max_.data.size();
  if (!by_split_) return;
  for (std::size_t i = row_blocks_.size(); i-- > 0;) {
    const int n = std::exchange(row_blocks_[i].n_splits, 1);
    for (int split = 1; split < n; ++split)
      row_blocks_.push_back({row_blocks_[i].first_row, row_blocks_[i].n_rows, split, 1});
  }
}

std::size_t CpuBackend::count(Operation op, int layer) const {
  const auto items = [&](const Weight& weight, int groups) {
    return cpu_size(cpu_blocks(weight.n_groups(), groups) * n_row_items(op));
  };
  if (op == Operation::embed) return batch_.rows.size();
  if (op == Operation::logits)
    return logits_rows_.empty() ? 0 : items(weights_.head, kHeadItemGroups);
  const LayerSpec& l = layer_spec(layer);
  const LayerWeights& w = layer_weights(layer);
  switch (op) {
    case Operation::qkv: return cpu_size((l.n_heads + 2 * l.n_kv_heads) * n_row_items(op));
    case Operation::attend: return row_blocks_.size() * cpu_size(l.n_kv_heads);
    case Operation::attention_output:
      return items(w.attention_output, item_groups(w.attention_output));
    case Operation::gate_up: return items(w.gate, item_groups(w.gate));
    default: return items(w.down, item_groups(w.down));
  }
}

void CpuBackend::run(Operation op, int layer, std::size_t item, int worker) noexcept {
  CpuWorker& w = workers_[cpu_size(worker)];
  const int i = static_cast<int>(item);
  if (op == Operation::embed) return embed(i);
  if (op == Operation::attend) return attend(layer, i, w);
  // Rows slowly, weights fast: so a worker's share of all operations is that of the same rows.
  const int n = n_row_items(op), n_blocks = static_cast<int>(count(op, layer)) / n;
  const int block = i % n_blocks, first = i / n_blocks * kItemRows;
  const RowRange rows{first, n == 1 ? n_inputs(op) : std::min(first + kItemRows, n_inputs(op))};
  const LayerWeights& l = layer_weights(layer);  // of layer 0 for logits
  switch (op) {
    case Operation::qkv: return qkv(layer, block, rows, w);
    case Operation::attention_output:
      return project(op, layer, l.attention_output, l.attention_output_bias, block, rows, w);
    case Operation::gate_up: return gate_up(layer, block, rows, w);
    case Operation::down: return project(op, layer, l.down, l.down_bias, block, rows, w);
    default: return logits(block, rows, w);
  }
}

void CpuBackend::embed(int row) {
  const Row& r = batch_.rows[cpu_size(row)];
  float* x = residual_[0][row];
  const Weight& table = weights_.embedding;
  if (table.group_bytes != 0)
    unpack_row(table, r.token, x);
  else
    dequantise(table.type, table.data + static_cast<std::uint64_t>(r.token) * table.row_bytes,
               cpu_size(spec_.n_embd), x);
  const float scale = static_cast<float>(spec_.embedding_scale);
  for (int i = 0; i < spec_.n_embd; ++i) x[i] *= scale;
  for (std::size_t k = 0; k < rope_.size(); ++k) {
    const RopeSpec& rope = spec_.ropes[k];
    float* const cos = rope_[k][row];
    float* const sin = cos + rope.dims;
    const bool neighbours = rope.pairs == RopePairs::neighbours;
    for (int i = 0; i < rope.dims / 2; ++i) {
      const SinCos turn =
          sincos_d(static_cast<double>(r.position) * inverse_frequency_[k][cpu_size(i)]);
      const int first = neighbours ? 2 * i : i, second = neighbours ? first + 1 : i + rope.dims / 2;
      cos[first] = cos[second] = static_cast<float>(turn.cos);
      sin[second] = static_cast<float>(turn.sin);
      sin[first] = -sin[second];
    }
  }
}

// ------------------------------------------------------------------------------------- input rows

InputKind CpuBackend::find_input_kind(Operation op, int layer) const {
  InputKind kind;
  const LayerWeights& l = layer_weights(layer);
  switch (op) {
    case Operation::qkv:
      for (const Weight* weight : {&l.q, &l.k, &l.v}) kind.add(*weight);
      break;
    case Operation::gate_up:
      for (const Weight* weight : {&l.gate, &l.up}) kind.add(*weight);
      break;
    case Operation::attention_output: kind.add(l.attention_output); break;
    case Operation::down: kind.add(l.down); break;
    default: kind.add(weights_.head);
  }
  kind.wide = is_wide(op, layer);
  return kind;
}

/// Whether the operation before leaves the input as the weights want it. Attention cannot when its
/// splits are still to be merged, or when a KV head's columns end inside a block.
bool CpuBackend::made_by_producer(Operation op, int layer) const {
  if (op == Operation::down) return true;
  if (op != Operation::attention_output || by_split_) return false;
  const LayerSpec& l = layer_spec(layer);
  return !input_kind(op, layer).integer || l.group() * l.value_dim % kActBlock == 0;
}

/// Columns [column, + n) of row `at`; column and n are multiples of 32 where weights are integer.
void CpuBackend::set_input(Inputs& to, int at, int column, const float* x, int n,
                           InputKind kind) const {
  if (kind.integer && kind.wide)
    kernels_.quantise_wide(x, n, to.acts[at] + 2 * (column / kActBlock));
  if (kind.integer && !kind.wide) kernels_.quantise(x, n, to.acts[at] + column / kActBlock);
  if (kind.floats) std::memcpy(to.floats[at] + column, x, cpu_size(n) * sizeof(float));
}

/// Input row `at` of an operation that no producer made: for qkv, gate_up and logits the norm of
/// residual + post-norm(output), whose inner sum goes to `residual`.
void CpuBackend::make_input(Operation op, int layer, int at, Inputs& to, float* residual,
                            CpuWorker& w) const {
  const InputKind kind = input_kind(op, layer);
  if (op == Operation::attention_output) {
    const int width = layer_weights(layer).attention_output.cols;
    if (by_split_) attended_row(layer, at, w.normed.data());
    return set_input(to, at, 0, by_split_ ? w.normed.data() : made_.floats[at], width, kind);
  }
  const LayerWeights& l = layer_weights(layer);
  const Vector* post_norm = &post_ffn_norm_before(layer);
  const Vector* norm = &l.attention_norm;
  int row = at;
  if (op == Operation::gate_up) {
    post_norm = &l.post_attention_norm;
    norm = &l.ffn_norm;
  } else if (op == Operation::logits) {
    row = logits_rows_[cpu_size(at)];
    post_norm = &weights_.layers.back().post_ffn_norm;
    norm = &weights_.final_norm;
  }
  const bool pending = op != Operation::qkv || layer > 0;
  kernels_.norm({residual_[op == Operation::gate_up ? 1 : 0][row], pending ? output_[row] : nullptr,
                 post_norm->empty() ? nullptr : post_norm->data(), norm->data(), spec_.n_embd,
                 static_cast<float>(spec_.norm_eps), residual, w.normed.data()});
  set_input(to, at, 0, w.normed.data(), spec_.n_embd, kind);
}

std::size_t CpuBackend::count_prologue(Operation op, int layer) const {
  if (op == Operation::embed || op == Operation::attend || !has_prologue(op, layer)) return 0;
  return cpu_size(cpu_blocks(n_inputs(op), kPrologueRows));
}

void CpuBackend::run_prologue(Operation op, int layer, std::size_t item, int worker) noexcept {
  CpuWorker& w = workers_[cpu_size(worker)];
  const int first = static_cast<int>(item) * kPrologueRows;
  const int end = std::min(first + kPrologueRows, n_inputs(op));
  for (int at = first; at < end; ++at) {
    float* const residual = new_residual(op, at);
    make_input(op, layer, at, normed_, residual == nullptr ? w.sum.data() : residual, w);
  }
}

/// The input rows of an operation; few ones are made here, once by each worker that takes an item.
const Inputs& CpuBackend::inputs(Operation op, int layer, CpuWorker& w) {
  if (made_by_producer(op, layer)) return made_;
  if (n_inputs(op) > kOwnRows) return normed_;
  const std::uint64_t id =
      (pass_ * spec_.layers.size() + cpu_size(layer)) * 8 + static_cast<std::uint64_t>(op) + 1;
  if (w.prepared != id) {
    w.prepared = id;
    for (int at = 0; at < n_inputs(op); ++at) make_input(op, layer, at, w.own, w.sum.data(), w);
  }
  return w.own;
}

/// The new residual stream, by one item of the operation that sums it where no prologue did.
void CpuBackend::store_residual(Operation op, int layer, CpuWorker& w) {
  if (has_prologue(op, layer)) return;
  for (int row = 0; row < n_rows(); ++row)
    make_input(op, layer, row, w.own, new_residual(op, row), w);
}

/// Row groups [first_group, + n_groups) of a weight times rows of input. Weights as the file has
/// them are packed first: the same kernel, the same bits.
MatmulArgs CpuBackend::multiplication(bool wide, const Weight& weight, int first_group,
                                      int n_groups, const Inputs& in, PackedGroups& packed) const {
  MatmulArgs args{};
  args.weight = &weight;
  args.first_group = first_group;
  args.n_groups = n_groups;
  args.acts = in.acts[0];
  args.floats = in.floats[0];
  args.act_stride = cpu_size(in.acts.width);
  args.float_stride = cpu_size(in.floats.width);
  args.wide = wide;
  if (weight.group_bytes != 0) return args;
  packed.weight = weight;
  packed.weight.data = packed.data.data();
  packed.weight.group_bytes = packed_group_bytes(weight.type, weight.cols);
  for (int i = 0; i < n_groups; ++i) {
    const int row = weight.first_row(first_group + i);
    pack_group(weight.type, weight.data + static_cast<std::uint64_t>(row) * weight.row_bytes,
               weight.row_bytes, weight.end_row(first_group + i) - row, weight.cols,
               packed.data.data() + static_cast<std::uint64_t>(i) * packed.weight.group_bytes);
  }
  args.weight = &packed.weight;
  args.first_group = 0;
  return args;
}

void CpuBackend::multiply(MatmulArgs args, RowRange rows, float* out, int out_stride) const {
  args.acts += cpu_size(rows.first) * args.act_stride;
  args.floats += cpu_size(rows.first) * args.float_stride;
  args.n_rows = rows.end - rows.first;
  args.out = out;
  args.out_stride = cpu_size(out_stride);
  kernels_.matmul(args);
}

// ------------------------------------------------------------------------------------- operations

/// One head of q, k or v: projection, bias, q/k norm, RoPE; k and v go into pages.
void CpuBackend::qkv(int layer, int head, RowRange rows, CpuWorker& w) {
  const LayerSpec& l = layer_spec(layer);
  const LayerWeights& lw = layer_weights(layer);
  const Inputs& in = inputs(Operation::qkv, layer, w);
  if (head == 0) store_residual(Operation::qkv, layer, w);
  const bool is_q = head < l.n_heads, is_k = !is_q && head < l.n_heads + l.n_kv_heads;
  if (!is_q) head -= is_k ? l.n_heads : l.n_heads + l.n_kv_heads;
  const Weight& weight = is_q ? lw.q : is_k ? lw.k : lw.v;
  const Vector& bias = is_q ? lw.q_bias : is_k ? lw.k_bias : lw.v_bias;
  const Vector& head_norm = is_q ? lw.q_norm : lw.k_norm;
  const int dim = is_q || is_k ? l.key_dim : l.value_dim;
  const int groups = weight.segment_groups(), stride = groups * kRowGroup;
  const MatmulArgs args = multiplication(input_kind(Operation::qkv, layer).wide, weight,
                                         head * groups, groups, in, w.packed);
  const RopeSpec& rope = spec_.ropes[cpu_size(l.rope)];
  const KvView& kv = batch_.kv[cpu_size(l.kv_group)];
  for (int row = rows.first; row < rows.end; ++row) {
    const int at = (row - rows.first) % kItemRows;
    if (at == 0) multiply(args, {row, std::min(row + kItemRows, rows.end)}, w.out.data(), stride);
    float* x = w.out.data() + at * stride;
    if (!bias.empty())
      for (int i = 0; i < dim; ++i) x[i] += bias[cpu_size(head * dim + i)];
    if (is_q || is_k) {
      if (!head_norm.empty())
        kernels_.head_norm(x, head_norm.data(), dim, static_cast<float>(spec_.norm_eps));
      kernels_.rotate(x, rope_[cpu_size(l.rope)][row], rope.dims, rope.pairs);
      if (kv.key_type == KvType::int8) hadamard(x, dim);
    }
    if (is_q) {
      std::memcpy(q_[row] + head * dim, x, cpu_size(dim) * sizeof(float));
      continue;
    }
    const Row& r = batch_.rows[cpu_size(row)];
    const std::int32_t page =
        batch_.sequences[cpu_size(r.sequence)][l.kv_group][r.position / kPageTokens];
    const int slot = r.position % kPageTokens;
    if ((is_k ? kv.key_type : kv.value_type) == KvType::int8)
      store_int8(
          x, dim, slot, is_k,
          is_k ? kv.keys(page, l.kv_slot, head) : kv.values(page, l.kv_slot, head),
          is_k ? kv.key_scales(page, l.kv_slot, head) : kv.value_scales(page, l.kv_slot, head));
    else if (is_k)
      kernels_.store_kv(
          kv.key_type, x, dim, kPageTokens,
          kv.keys(page, l.kv_slot, head) + cpu_size(slot) * kv_element_bytes(kv.key_type));
    else
      kernels_.store_kv(kv.value_type, x, dim, 1,
                        kv.values(page, l.kv_slot, head) +
                            cpu_size(slot * dim) * kv_element_bytes(kv.value_type));
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
  a.softcap = static_cast<float>(l.attention_softcap);
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
  const int width = group * l.value_dim;
  InputKind kind = input_kind(Operation::attention_output, layer);
  if (!made_by_producer(Operation::attention_output, layer)) kind = {false, true};
  for (int row = 0; row < block.n_rows; ++row) {
    const int at = block.first_row + row;
    const std::size_t query = cpu_size(row * group);
    const float* const state = a.output + query * cpu_size(l.value_dim);
    if (by_split_) {
      if (block.first_split >= n_splits(at)) continue;
      const int part = first_part_[cpu_size(at)] + block.first_split;
      std::memcpy(part_max_[part] + head * group, a.max + query, cpu_size(group) * sizeof(float));
      std::memcpy(part_sum_[part] + head * group, a.sum + query, cpu_size(group) * sizeof(float));
      std::memcpy(part_output_[part] + head * width, state, cpu_size(width) * sizeof(float));
      continue;
    }
    float* const x = w.out.data();
    for (int i = 0; i < group; ++i)
      kernels_.divide(state + i * l.value_dim, a.sum[query + cpu_size(i)], l.value_dim,
                      x + i * l.value_dim);
    set_input(made_, at, head * width, x, width, kind);
  }
}

/// A row whose splits were attended apart: merged in ascending order.
void CpuBackend::attended_row(int layer, int row, float* to) const {
  const LayerSpec& l = layer_spec(layer);
  const int first = first_part_[cpu_size(row)], end = first + n_splits(row);
  for (int h = 0; h < l.n_heads; ++h) {
    float max = 0.0f, sum = 0.0f;
    float* output = to + h * l.value_dim;
    for (int part = first; part < end; ++part)
      kernels_.merge(&max, &sum, output, part_max_[part][h], part_sum_[part][h],
                     part_output_[part] + h * l.value_dim, l.value_dim);
    kernels_.divide(output, sum, l.value_dim, output);
  }
}

/// Output rows of attention_output and down.
void CpuBackend::project(Operation op, int layer, const Weight& weight, const Vector& bias,
                         int block, RowRange rows, CpuWorker& w) {
  const Inputs& in = inputs(op, layer, w);
  const int groups = item_groups(weight), first = block * groups;
  const int n = std::min(groups, weight.n_groups() - first);
  const MatmulArgs args =
      multiplication(input_kind(op, layer).wide, weight, first, n, in, w.packed);
  multiply(args, rows, output_[rows.first] + first * kRowGroup, output_.width);
  if (bias.empty()) return;
  const int end = std::min((first + n) * kRowGroup, weight.rows);
  for (int row = rows.first; row < rows.end; ++row)
    for (int i = first * kRowGroup; i < end; ++i) output_[row][i] += bias[cpu_size(i)];
}

void CpuBackend::gate_up(int layer, int block, RowRange rows, CpuWorker& w) {
  const LayerWeights& l = layer_weights(layer);
  const Inputs& in = inputs(Operation::gate_up, layer, w);
  if (block == 0) store_residual(Operation::gate_up, layer, w);
  const int groups = item_groups(l.gate), first = block * groups;
  const int n = std::min(groups, l.gate.n_groups() - first);
  const int begin = first * kRowGroup, width = std::min(n * kRowGroup, l.gate.rows - begin);
  const bool wide = input_kind(Operation::gate_up, layer).wide;
  const MatmulArgs gate_args = multiplication(wide, l.gate, first, n, in, w.packed);
  const MatmulArgs up_args = multiplication(wide, l.up, first, n, in, w.packed2);
  const InputKind& kind = input_kind(Operation::down, layer);
  const auto add = [&](const Vector& bias, float* x) {
    if (bias.empty()) return;
    for (int i = 0; i < width; ++i) x[i] += bias[cpu_size(begin + i)];
  };
  for (int row = rows.first; row < rows.end; ++row) {
    const int at = (row - rows.first) % kItemRows;
    if (at == 0) {
      const RowRange some{row, std::min(row + kItemRows, rows.end)};
      multiply(gate_args, some, w.out.data(), n * kRowGroup);
      multiply(up_args, some, w.out2.data(), n * kRowGroup);
    }
    float* const gate = w.out.data() + at * n * kRowGroup;
    float* const up = w.out2.data() + at * n * kRowGroup;
    add(l.gate_bias, gate);
    add(l.up_bias, up);
    kernels_.activate(layer_spec(layer).activation, gate, up, width, gate);
    set_input(made_, row, begin, gate, width, kind);
  }
}

void CpuBackend::logits(int block, RowRange rows, CpuWorker& w) {
  const Inputs& in = inputs(Operation::logits, 0, w);
  const int first = block * kHeadItemGroups,
            n = std::min(kHeadItemGroups, weights_.head.n_groups() - first);
  const int begin = first * kRowGroup, width = std::min(n * kRowGroup, spec_.n_vocab - begin);
  const MatmulArgs args =
      multiplication(input_kind(Operation::logits, 0).wide, weights_.head, first, n, in, w.packed);
  for (int row = rows.first; row < rows.end; ++row) {
    const int at = (row - rows.first) % kItemRows;
    if (at == 0)
      multiply(args, {row, std::min(row + kItemRows, rows.end)}, w.out.data(), n * kRowGroup);
    float* const out = w.out.data() + at * n * kRowGroup;
    if (spec_.logit_softcap != 0.0)
      kernels_.soft_cap(out, n * kRowGroup, static_cast<float>(spec_.logit_softcap));
    std::memcpy(batch_.rows[cpu_size(logits_rows_[cpu_size(row)])].logits + begin, out,
                cpu_size(width) * sizeof(float));
  }
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ModelSpec& spec, const ModelWeights& weights,
                                          const BackendLimits& limits, const CpuKernels& kernels) {
  return std::make_unique<CpuBackend>(spec, weights, limits, kernels);
}

}  // namespace decant::detail
