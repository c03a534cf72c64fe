// The CUDA backend: the operations of Backend as launches on one stream. `run` returns as soon as
// an operation is queued; `finish` waits for the pass. All memory is taken at the start, except for
// the pages, which the cache asks for.
//
// A pass copies one piece of memory to the device (its tokens, tiles of attention, block tables,
// and how the next tokens are chosen) and one back (these), besides logits that are asked for. If
// it has one row of each sequence, as decoding has, its launches are recorded as a graph and from
// then on queued at once: a graph for each number of rows in kBuckets, to which rows without a
// token are added, and each power of two of splits. All that changes from pass to pass lies in the
// piece of memory that is copied to the device.
#pragma once

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda.hpp"
#include "backend/rope.hpp"
#include "cuda/attend.cuh"
#include "cuda/sample.cuh"

namespace decant::detail::DECANT_CUDA_SPACE {

inline constexpr int kLogitsRows = 64;     // that are computed together
inline constexpr int kAttendParts = 4096;  // rows x splits that are attended together, or more
inline constexpr int kMaxHistory = 4096;   // tokens that a row's penalties look at
inline constexpr std::uint64_t kPiece = 8 << 20;  // of weights copied together; twice what is
                                                  // read of the file, as some types grow

/// Rows of a graph.
inline constexpr int kBuckets[] = {1, 2, 4, 8, 16, 24, 32, 48, kLogitsRows};
inline constexpr int kBucketCount = static_cast<int>(std::size(kBuckets));
inline constexpr int kSplitPowers = 24;
/// Where a number of rows finds its graph.
constexpr int bucket_of(int n_rows) {
  int bucket = 0;
  while (kBuckets[bucket] < n_rows) ++bucket;
  return bucket;
}

constexpr int filled(int n, int unit) { return (n + unit - 1) / unit * unit; }

class CudaBackend final : public Backend, public WeightStore {
 public:
  CudaBackend(const ModelSpec& spec, const BackendLimits& limits, const CudaOptions& options)
      : spec_(spec), limits_(limits), options_(options) {}
  /// Errors as those of make_cuda_backend.
  Status create(const ModelWeights& weights);

  std::uint64_t memory_bytes() const override { return memory_bytes_; }
  WeightStore* weight_store() override { return this; }
  Result<std::byte*> take_matrix(std::uint64_t bytes) override;
  std::span<std::byte> piece() override { return pieces_[0]; }
  Status write(std::byte* to, std::size_t bytes) override;
  Status bind(const ModelWeights& weights) override;
  Result<std::byte*> take_pages(std::uint64_t bytes) override;
  void begin(const Batch& batch) override;
  std::size_t count(Operation op, int) const override {
    return op == Operation::logits && n_logits_ == 0 ? 0 : 1;
  }
  void run(Operation op, int layer, std::size_t item, int worker) noexcept override;
  bool chooses(const Sampler& sampler, std::size_t n_before) const override {
    SampleRow row;
    return sample_row(sampler, n_before, row) && row.n_history <= kMaxHistory;
  }
  bool runs_by_itself() const override { return true; }
  Status finish() noexcept override;

  void copy_page(const KvView& view, std::int32_t from, std::int32_t to) noexcept override;
  void read_page(const KvView& view, std::int32_t page, std::byte* to) noexcept override;
  void write_page(const KvView& view, std::int32_t page, const std::byte* from) noexcept override;

 private:
  /// A layer's weights, bound to the rows that they read and write.
  struct Layer {
    const float *attention_norm, *post_attention_norm, *ffn_norm, *post_ffn_norm, *q_norm, *k_norm;
    MultiplyArgs qkv, attention_output, down;
    GateUpArgs gate_up;
  };
  /// Tiles whose splits fit the workspace together.
  struct Slab {
    int first_tile, n_tiles, first_row, n_rows;
  };

  Status check(const ModelWeights& weights) const;
  Status take_rows(const ModelWeights& weights);
  void lay_out(int rows);
  std::byte* needed(std::byte* memory) {
    lacks_memory_ = lacks_memory_ || memory == nullptr;
    return memory;
  }
  Status check_memory();
  const float* upload(const Vector& vector);
  const float* upload_bias(const Vector& bias, const Weight& weight);
  template <class T>
  T* take(std::size_t n, bool pinned = false);
  template <class T>
  T* take(int rows, int width) {
    return take<T>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
  }
  int add_choice(const Choice* choice, int table);
  void add_tile(int first_row, int n_rows);
  void find_graph(bool alone);

  void queue(Operation op, int layer);
  void queue_pass();
  int n_splits(const Slab& slab, int window) const;
  void embed();
  void norm(const float* pending, const float* post_norm, const float* norm,
            const std::int32_t* which, int n);
  void multiply(MultiplyArgs args, int n);
  void gate_up(const Layer& layer);
  void place(int layer);
  void attend(int layer);
  void logits();
  void choose(int first, int n);
  void compute_logits(int first, int n);
  void copy_logits(int first, int n);
  void copy_tokens();
  const Row& logits_row(int i) const {
    return batch_.rows[static_cast<std::size_t>(logits_rows_[i])];
  }
  unsigned n_rows() const { return static_cast<unsigned>(n_rows_); }
  int n_sequences() const { return std::min(limits_.max_rows, limits_.max_sequences); }
  /// Of block tables and histories, at most.
  std::int64_t n_numbers() const {
    const std::int64_t n_pages = (limits_.max_positions + kPageTokens - 1) / kPageTokens;
    return n_sequences() * (n_pages * static_cast<std::int64_t>(spec_.kv_groups.size()) +
                            std::min(limits_.max_positions, kMaxHistory));
  }
  const float* post_ffn_norm_before(int layer) const {
    return layer == 0 ? nullptr : layers_[static_cast<std::size_t>(layer - 1)].post_ffn_norm;
  }

  const ModelSpec& spec_;
  const BackendLimits limits_;
  const CudaOptions options_;
  Graph graphs_[kBucketCount][kSplitPowers];
  Device device_;  // waits for the graphs before they go
  bool lacks_memory_ = false;
  std::uint64_t memory_bytes_ = 0;
  std::span<std::byte> pieces_[2];  // pinned: one is packed, one copied; of a load
  std::vector<Layer> layers_;
  DeviceWeight embedding_;
  MultiplyArgs head_;
  const float* final_norm_ = nullptr;

  Batch batch_;
  int n_rows_ = 0;          // with those that are added
  Graph* graph_ = nullptr;  // of this pass, if it has one
  int graph_splits_ = 0;    // that its rows may see
  int n_logits_ = 0, n_chosen_ = 0, n_tiles_ = 0, n_used_parts_ = 0;
  int tile_columns_ = 1;  // of attention, in eights of queries
  std::vector<Slab> slabs_;

  // One piece, on the host and on the device. `rows`: of the pass, those of its graph included.
  std::byte *inputs_ = nullptr, *device_inputs_ = nullptr;
  SampleRow* choices_ = nullptr;         // [rows], of logits_rows_
  DeviceRow* rows_ = nullptr;            // [rows]
  AttendTile* tiles_ = nullptr;          // [rows], at most
  std::int32_t* logits_rows_ = nullptr;  // [rows], at most
  std::int32_t* tables_ = nullptr;       // [sequences][n_groups][pages], and histories of choices
  static constexpr std::size_t kInputsOfRow =
      sizeof(SampleRow) + sizeof(DeviceRow) + sizeof(AttendTile) + sizeof(std::int32_t);
  int n_parts_ = 0;
  /// Where something of inputs_ lies on the device.
  template <class T>
  const T* on_device(const T* input) const {
    return reinterpret_cast<const T*>(device_inputs_ +
                                      (reinterpret_cast<const std::byte*>(input) - inputs_));
  }

  // Rows on the device: [max_rows][width].
  float *residual_ = nullptr, *qkv_ = nullptr, *q_ = nullptr, *output_ = nullptr;
  std::uint16_t *normed_ = nullptr, *attended_ = nullptr, *ff_ = nullptr;  // bf16
  int normed_width_ = 0, qkv_width_ = 0, attended_width_ = 0, output_width_ = 0, ff_width_ = 0;
  RopeTable ropes_[kMaxRopes];
  float *part_max_ = nullptr, *part_sum_ = nullptr, *part_output_ = nullptr;
  float* logits_ = nullptr;         // [kLogitsRows][vocabulary, filled]
  int* occurs_ = nullptr;           // the same; see SampleArgs
  Token* device_tokens_ = nullptr;  // [max_rows], of logits_rows_
  Token* tokens_ = nullptr;         // the same, on the host
};

// -------------------------------------------------------------------------------- the forward pass

inline void CudaBackend::run(Operation op, int layer, std::size_t, int) noexcept {
  const CurrentDevice current = device_.use();
  if (graph_ == nullptr) return op == Operation::logits ? logits() : queue(op, layer);
  if (op == Operation::embed) device_.replay(*graph_, [&] { queue_pass(); });
  if (op != Operation::logits) return;
  copy_logits(0, n_logits_);
  copy_tokens();
}

inline void CudaBackend::queue_pass() {
  queue(Operation::embed, 0);
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer)
    for (const Operation op : {Operation::qkv, Operation::attend, Operation::attention_output,
                               Operation::gate_up, Operation::down})
      queue(op, layer);
  queue(Operation::logits, 0);
}

inline void CudaBackend::queue(Operation op, int layer) {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const int n = static_cast<int>(n_rows());
  switch (op) {
    case Operation::embed: return embed();
    case Operation::qkv:
      norm(layer == 0 ? nullptr : output_, post_ffn_norm_before(layer), l.attention_norm, nullptr,
           n);
      multiply(l.qkv, n);
      return place(layer);
    case Operation::attend: return attend(layer);
    case Operation::attention_output: return multiply(l.attention_output, n);
    case Operation::gate_up:
      norm(output_, l.post_attention_norm, l.ffn_norm, nullptr, n);
      return gate_up(l);
    case Operation::down: return multiply(l.down, n);
    case Operation::logits: compute_logits(0, n); return choose(0, n);
  }
}

inline void CudaBackend::embed() {
  EmbedArgs args;
  args.rows = on_device(rows_);
  args.table = embedding_;
  args.scale = static_cast<float>(spec_.embedding_scale);
  args.out = residual_;
  args.n_embd = spec_.n_embd;
  std::copy(std::begin(ropes_), std::end(ropes_), args.ropes);
  launch(embed_rows, {n_rows(), 1, 1}, kRowThreads, 0, device_.stream, args);
}

/// The residual stream with `pending` added to it, and its norm to normed_: of all rows, or of n.
inline void CudaBackend::norm(const float* pending, const float* post_norm, const float* norm,
                              const std::int32_t* which, int n) {
  NormArgs args;
  args.residual = residual_;
  args.pending = pending;
  args.post_norm = post_norm;
  args.norm = norm;
  args.which = which;
  args.out = normed_;
  args.n = spec_.n_embd;
  args.pending_stride = output_width_;
  args.out_stride = normed_width_;
  args.eps = static_cast<float>(spec_.norm_eps);
  launch(norm_rows, {static_cast<unsigned>(n), 1, 1}, kRowThreads, kNormSharedBytes, device_.stream,
         args);
}

/// Weights times the first n rows of what they read.
inline void CudaBackend::multiply(MultiplyArgs args, int n) {
  int n_groups = 0, stage = 0;
  for (const DeviceWeight& weight : args.weight) {
    n_groups += weight.n_groups;
    stage = std::max(stage, stage_bytes(weight.form));
  }
  args.x.n_rows = n;
  for_token_tiles(n, [&](auto tiles) {
    const Index grid = {static_cast<unsigned>(n_groups),
                        static_cast<unsigned>((n + 8 * tiles - 1) / (8 * tiles)), 1};
    launch(multiply_rows<tiles()>, grid, kMultiplyThreads, multiply_shared_bytes(stage, tiles()),
           device_.stream, args);
  });
}

inline void CudaBackend::gate_up(const Layer& layer) {
  GateUpArgs args = layer.gate_up;
  args.x.n_rows = static_cast<int>(n_rows());
  const int stage = std::max(stage_bytes(args.gate.form), stage_bytes(args.up.form));
  for_token_tiles(args.x.n_rows, [&](auto tiles) {
    const Index grid = {static_cast<unsigned>(args.gate.n_groups),
                        (n_rows() + 8 * tiles - 1) / (8 * tiles), 1};
    launch(multiply_gate_up<tiles()>, grid, kMultiplyThreads, multiply_shared_bytes(stage, tiles()),
           device_.stream, args);
  });
}

/// q to its rows, k and v into pages.
inline void CudaBackend::place(int layer) {
  const LayerSpec& s = spec_.layers[static_cast<std::size_t>(layer)];
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  const RopeSpec& rope = spec_.ropes[static_cast<std::size_t>(s.rope)];
  PlaceArgs args;
  args.rows = on_device(rows_);
  args.tables = on_device(tables_);
  args.qkv = qkv_;
  args.qkv_stride = qkv_width_;
  args.n_heads = s.n_heads;
  args.n_kv_heads = s.n_kv_heads;
  args.q_norm = l.q_norm;
  args.k_norm = l.k_norm;
  args.eps = static_cast<float>(spec_.norm_eps);
  args.rope = ropes_[s.rope].out;
  args.rope_dims = rope.dims;
  args.rope_pairs = rope.pairs;
  args.q = q_;
  args.kv = batch_.kv[static_cast<std::size_t>(s.kv_group)];
  args.kv_group = s.kv_group;
  args.kv_slot = s.kv_slot;
  launch(place_heads, {n_rows(), static_cast<unsigned>(s.n_heads + 2 * s.n_kv_heads), 1}, kWarp,
         kPlaceSharedBytes, device_.stream, args);
}

/// That a tile may see, at most.
inline int CudaBackend::n_splits(const Slab& slab, int window) const {
  if (graph_ != nullptr)
    return window == 0 ? graph_splits_
                       : std::min(graph_splits_, (window + kSplit - 2) / kSplit + 1);
  int n = 1;
  for (int t = slab.first_tile; t < slab.first_tile + slab.n_tiles; ++t) {
    const int first = rows_[tiles_[t].first_row].position;
    const int last = first + tiles_[t].n_rows - 1;
    const int seen = window == 0 || first < window ? 0 : first - window + 1;
    n = std::max(n, last / kSplit - seen / kSplit + 1);
  }
  return n;
}

inline void CudaBackend::attend(int layer) {
  const LayerSpec& s = spec_.layers[static_cast<std::size_t>(layer)];
  AttendArgs args;
  args.rows = on_device(rows_);
  args.tables = on_device(tables_);
  args.q = q_;
  args.n_heads = s.n_heads;
  args.group = s.group();
  args.scale = static_cast<float>(s.attention_scale);
  args.softcap = static_cast<float>(s.attention_softcap);
  args.kv = batch_.kv[static_cast<std::size_t>(s.kv_group)];
  args.kv_group = s.kv_group;
  args.kv_slot = s.kv_slot;
  args.max = part_max_;
  args.sum = part_sum_;
  args.output = part_output_;
  MergeArgs merge;
  merge.rows = args.rows;
  merge.max = part_max_;
  merge.sum = part_sum_;
  merge.output = part_output_;
  merge.n_heads = s.n_heads;
  merge.value_dim = s.value_dim;
  merge.window = args.kv.window;
  merge.out = attended_;
  merge.out_stride = attended_width_;
  for (const Slab& slab : slabs_) {
    args.tiles = on_device(tiles_ + slab.first_tile);
    const Index grid = {static_cast<unsigned>(n_splits(slab, args.kv.window)),
                        static_cast<unsigned>(s.n_kv_heads), static_cast<unsigned>(slab.n_tiles)};
    if (tile_columns_ == 1)
      launch(attend_tiles<1>, grid, kAttendThreads, attend_shared_bytes<1>(args.kv), device_.stream,
             args);
    else
      launch(attend_tiles<2>, grid, kAttendThreads, attend_shared_bytes<2>(args.kv), device_.stream,
             args);
    merge.first_row = slab.first_row;
    launch(merge_splits, {static_cast<unsigned>(s.n_heads), static_cast<unsigned>(slab.n_rows), 1},
           kMergeThreads, 0, device_.stream, merge);
  }
}

inline void CudaBackend::logits() {
  for (int first = 0; first < n_logits_; first += kLogitsRows) {
    const int n = std::min(kLogitsRows, n_logits_ - first);
    compute_logits(first, n);
    if (n_chosen_ != 0) choose(first, n);
    copy_logits(first, n);
  }
  copy_tokens();
}
inline void CudaBackend::compute_logits(int first, int n) {
  // The residual stream is not needed any more, and a row is asked for once.
  norm(output_, layers_.back().post_ffn_norm, final_norm_, on_device(logits_rows_ + first), n);
  multiply(head_, n);
}
/// Tokens from the logits of the rows that want one.
inline void CudaBackend::choose(int first, int n) {
  SampleArgs args;
  args.rows = on_device(choices_ + first);
  args.logits = logits_;
  args.history = on_device(tables_);
  args.occurs = occurs_;
  args.chosen = device_tokens_ + first;
  args.n_vocab = limits_.n_sampled;
  args.stride = head_.out_stride;
  launch(sample_rows, {static_cast<unsigned>(n), 1, 1}, kSampleThreads, kSampleSharedBytes,
         device_.stream, args);
}
inline void CudaBackend::copy_logits(int first, int n) {
  for (int i = 0; i < n; ++i)
    if (float* const to = logits_row(first + i).logits)
      device_.copy_out(
          to, logits_ + static_cast<std::size_t>(i) * static_cast<std::size_t>(head_.out_stride),
          static_cast<std::size_t>(spec_.n_vocab) * sizeof(float));
}
inline void CudaBackend::copy_tokens() {
  if (n_chosen_ != 0)
    device_.copy_out(tokens_, device_tokens_, static_cast<std::size_t>(n_logits_) * sizeof(Token));
}
inline Status CudaBackend::finish() noexcept {
  const CurrentDevice current = device_.use();
  DECANT_TRY(device_.finish());
  for (int i = 0; i < n_logits_; ++i)
    if (Choice* const choice = logits_row(i).choice) choice->token = tokens_[i];
  return {};
}

// --------------------------------------------------------------------------------- before a pass

/// Of the next row of logits, if it wants a token; its history goes to tables_ + table. Where that
/// ends.
inline int CudaBackend::add_choice(const Choice* choice, int table) {
  SampleRow& to = choices_[n_logits_ - 1];
  to = {};
  to.wanted = choice != nullptr;
  if (choice == nullptr) return table;
  ++n_chosen_;
  static_cast<void>(sample_row(*choice->sampler, choice->history.size(), to));
  to.random.seed = choice->seed;
  to.random.position = choice->history.size();
  to.first_history = table;
  std::copy(choice->history.end() - to.n_history, choice->history.end(), tables_ + table);
  return table + to.n_history;
}

/// Rows [first_row, + n_rows) of one sequence are attended together.
inline void CudaBackend::add_tile(int first_row, int n_rows) {
  const int n_splits = rows_[first_row + n_rows - 1].position / kSplit + 1;
  if (slabs_.empty() || n_used_parts_ + n_rows * n_splits > n_parts_) {
    slabs_.push_back({n_tiles_, 0, first_row, 0});
    n_used_parts_ = 0;
  }
  for (int row = first_row; row < first_row + n_rows; ++row, n_used_parts_ += n_splits)
    rows_[row].part = n_used_parts_;
  tiles_[n_tiles_++] = {first_row, n_rows};
  slabs_.back().n_tiles += 1;
  slabs_.back().n_rows += n_rows;
}

/// After the pass's rows and tiles: its graph, and the rows that this has on top.
inline void CudaBackend::find_graph(bool alone) {
  graph_ = nullptr;
  const int n = n_rows_ = static_cast<int>(batch_.rows.size());
  // Rows without a token take a part of attention each.
  if (!alone || n_logits_ != n || n > kLogitsRows || slabs_.size() != 1) return;
  const int bucket = bucket_of(n);
  if (n_used_parts_ + kBuckets[bucket] - n > n_parts_) return;
  int n_splits = 1, power = 0;
  for (int row = 0; row < n; ++row) n_splits = std::max(n_splits, rows_[row].position / kSplit + 1);
  while (1 << power < n_splits) ++power;
  graph_ = &graphs_[bucket][power];
  graph_splits_ = 1 << power;
  for (; n_rows_ < kBuckets[bucket]; ++n_rows_) {
    rows_[n_rows_] = {0, -1, 0, 0, 0};
    logits_rows_[n_rows_] = n_rows_;
    choices_[n_rows_].wanted = false;
    add_tile(n_rows_, 1);
  }
}

inline void CudaBackend::begin(const Batch& batch) {
  const CurrentDevice current = device_.use();
  // A pass that was given up may still be reading what the last one copied.
  static_cast<void>(device_.finish());
  batch_ = batch;
  n_logits_ = n_chosen_ = n_tiles_ = 0;
  slabs_.clear();
  const auto n_groups = static_cast<int>(batch.kv.size());
  const auto n = static_cast<int>(batch.rows.size());
  lay_out(n > kLogitsRows ? n : kBuckets[bucket_of(n)]);
  bool alone = true;  // each row has a sequence of its own
  int table = 0;
  for (int row = 0; row < n; ++row) {
    const Row& r = batch.rows[static_cast<std::size_t>(row)];
    const bool goes_on =
        row > 0 && batch.rows[static_cast<std::size_t>(row - 1)].sequence == r.sequence;
    alone = alone && !goes_on;
    if (r.logits != nullptr || r.choice != nullptr) {
      logits_rows_[n_logits_++] = row;
      table = add_choice(r.choice, table);
    }
    rows_[row] = {r.token, r.position, 0, 0, 0};
    if (goes_on) {
      rows_[row].table = rows_[row - 1].table;
      rows_[row].n_pages = rows_[row - 1].n_pages;
      continue;
    }
    int last = row;
    while (last + 1 < n && batch.rows[static_cast<std::size_t>(last + 1)].sequence == r.sequence)
      ++last;
    const int n_pages = batch.rows[static_cast<std::size_t>(last)].position / kPageTokens + 1;
    rows_[row].table = table;
    rows_[row].n_pages = n_pages;
    for (int g = 0; g < n_groups; ++g, table += n_pages)
      std::copy_n(batch.sequences[static_cast<std::size_t>(r.sequence)][g], n_pages,
                  tables_ + table);
  }
  int group = 1;
  for (const LayerSpec& layer : spec_.layers) group = std::max(group, layer.group());
  tile_columns_ = alone && group <= 8 ? 1 : 2;
  const int rows_of_tile = 8 * tile_columns_ / group;
  for (int row = 0; row < n;) {
    int end = row + 1;
    while (end < n && end < row + rows_of_tile && rows_[end].table == rows_[row].table) ++end;
    add_tile(row, end - row);
    row = end;
  }
  find_graph(alone);
  const std::byte* const used = reinterpret_cast<const std::byte*>(tables_ + table);
  device_.copy_in(device_inputs_, inputs_, static_cast<std::size_t>(used - inputs_));
}

// ------------------------------------------------------------------------------------------ pages

inline Result<std::byte*> CudaBackend::take_pages(std::uint64_t bytes) {
  const CurrentDevice current = device_.use();
  std::byte* const pages =
      device_.take(static_cast<std::size_t>(std::max<std::uint64_t>(bytes, 1)));
  if (pages == nullptr)
    return make_error(ErrorCode::out_of_memory,
                      "the device has no {} bytes for pages; lower ModelOptions::context, sessions "
                      "or kv_memory",
                      bytes);
  return pages;
}

inline void CudaBackend::copy_page(const KvView& view, std::int32_t from,
                                   std::int32_t to) noexcept {
  const CurrentDevice current = device_.use();
  device_.copy_within(view.keys(to, 0, 0), view.keys(from, 0, 0),
                      static_cast<std::size_t>(view.page_stride));
}
inline void CudaBackend::read_page(const KvView& view, std::int32_t page, std::byte* to) noexcept {
  const CurrentDevice current = device_.use();
  device_.copy_out(to, view.keys(page, 0, 0), static_cast<std::size_t>(view.page_stride));
  static_cast<void>(device_.finish());
}
inline void CudaBackend::write_page(const KvView& view, std::int32_t page,
                                    const std::byte* from) noexcept {
  const CurrentDevice current = device_.use();
  device_.copy_in(view.keys(page, 0, 0), from, static_cast<std::size_t>(view.page_stride));
}

// ------------------------------------------------------------------------------------ at the start

/// Whether the kernels know the model's shapes.
inline Status CudaBackend::check(const ModelWeights& weights) const {
  if (spec_.ropes.size() > kMaxRopes)
    return make_error(ErrorCode::unsupported, "the CUDA backend knows {} kinds of RoPE, not {}",
                      kMaxRopes, spec_.ropes.size());
  for (const LayerSpec& l : spec_.layers)
    if (l.key_dim % 16 != 0 || l.value_dim % 16 != 0 || l.key_dim > kMaxHead ||
        l.value_dim > kMaxHead || l.group() > 16)
      return make_error(ErrorCode::unsupported,
                        "the CUDA backend knows heads of 16 to {} channels, multiples of 16, and "
                        "at most 16 to a KV head; the model has {}, {} and {}",
                        kMaxHead, l.key_dim, l.value_dim, l.group());
  if (n_numbers() > INT32_MAX)
    return make_error(
        ErrorCode::unsupported,
        "the CUDA backend's block tables for {} sequences of up to {} tokens have more than "
        "2^31 entries; lower ModelOptions::max_batch or context",
        n_sequences(), limits_.max_positions);
  const auto known = [](const Weight& w) { return w.rows == 0 || w.group_bytes != 0; };
  bool all_known = known(weights.head) && known(weights.embedding);
  for (const LayerWeights& l : weights.layers)
    for (const Weight* w : l.matrices()) all_known = all_known && known(*w);
  if (!all_known)
    return make_error(ErrorCode::unsupported,
                      "the CUDA backend does not know one of the model's tensor types");
  return {};
}

template <class T>
T* CudaBackend::take(std::size_t n, bool pinned) {
  const std::size_t bytes = std::max<std::size_t>(n, 1) * sizeof(T);
  memory_bytes_ += bytes;
  if (limits_.measure) return nullptr;
  return reinterpret_cast<T*>(needed(pinned ? device_.take_pinned(bytes) : device_.take(bytes)));
}

inline Status CudaBackend::check_memory() {
  if (!lacks_memory_) return {};
  DECANT_TRY(device_.finish());
  return make_error(
      ErrorCode::out_of_memory,
      "the device, or pinned memory of the host, is too small for the model; it needs "
      "{} bytes for rows on top of the weights; lower ModelOptions::chunk or context, or take a "
      "smaller model",
      memory_bytes_);
}

inline Result<std::byte*> CudaBackend::take_matrix(std::uint64_t bytes) {
  const CurrentDevice current = device_.use();
  std::byte* const memory = needed(device_.take(static_cast<std::size_t>(bytes)));
  DECANT_TRY(check_memory());
  return memory;
}
inline Status CudaBackend::write(std::byte* to, std::size_t bytes) {
  const CurrentDevice current = device_.use();
  DECANT_TRY(device_.finish());  // with the piece before
  device_.copy_in_late(to, pieces_[0].data(), bytes);
  std::swap(pieces_[0], pieces_[1]);
  return {};
}

inline DeviceWeight device_weight(const Weight& weight) {
  DeviceWeight to;
  to.data = weight.data;
  to.group_bytes = weight.group_bytes;
  to.n_groups = weight.n_groups();
  to.n_tiles = filled(weight.cols, kTileColumns) / kTileColumns;
  to.form = weight_form(weight.type);
  return to;
}
/// Vectors are counted where they were loaded.
inline const float* CudaBackend::upload(const Vector& vector) {
  if (vector.empty()) return nullptr;
  std::byte* const memory = needed(device_.take(vector.size() * sizeof(float)));
  if (memory != nullptr) device_.copy_in(memory, vector.data(), vector.size() * sizeof(float));
  return reinterpret_cast<const float*>(memory);
}
/// In the order of the packed rows.
inline const float* CudaBackend::upload_bias(const Vector& bias, const Weight& weight) {
  if (bias.empty()) return nullptr;
  Vector packed(static_cast<std::size_t>(weight.n_groups() * kRowGroup));
  for (int g = 0; g < weight.n_groups(); ++g)
    std::copy(bias.begin() + weight.first_row(g), bias.begin() + weight.end_row(g),
              packed.begin() + g * kRowGroup);
  return upload(packed);
}

inline Status CudaBackend::create(const ModelWeights& weights) {
  DECANT_TRY(check(weights));
  if (limits_.measure) return take_rows(weights);
  DECANT_TRY(device_.open(options_.device, options_.stream));
  const CurrentDevice current = device_.use();
  device_.overlap_as(embed_rows);
  std::uint64_t bytes = 0;  // of a piece: at least a group, at most a matrix
  const auto fit = [&](const Weight& w) {
    const std::uint64_t all = static_cast<std::uint64_t>(w.n_groups()) * w.group_bytes;
    bytes = std::max({bytes, w.group_bytes, std::min(all, kPiece)});
  };
  fit(weights.embedding);
  fit(weights.head);
  for (const LayerWeights& l : weights.layers)
    for (const Weight* w : l.matrices()) fit(*w);
  for (auto& piece : pieces_)
    piece = {needed(device_.take_pinned(static_cast<std::size_t>(bytes))),
             static_cast<std::size_t>(bytes)};
  return take_rows(weights);
}

/// What a pass works in.
inline Status CudaBackend::take_rows(const ModelWeights& weights) {
  const int rows =
      limits_.max_rows > kLogitsRows ? limits_.max_rows : kBuckets[bucket_of(limits_.max_rows)];
  int q_width = 0, n_heads = 0;
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& l = spec_.layers[i];
    const LayerWeights& w = weights.layers[i];
    qkv_width_ =
        std::max(qkv_width_, (w.q.n_groups() + w.k.n_groups() + w.v.n_groups()) * kRowGroup);
    q_width = std::max(q_width, l.n_heads * l.key_dim);
    n_heads = std::max(n_heads, l.n_heads);
    attended_width_ = std::max(attended_width_, filled(l.n_heads * l.value_dim, kTileColumns));
    ff_width_ = std::max(ff_width_, filled(l.n_ff, kTileColumns));
  }
  normed_width_ = filled(spec_.n_embd, kTileColumns);
  output_width_ = filled(spec_.n_embd, kRowGroup);
  residual_ = take<float>(rows, spec_.n_embd);
  normed_ = take<std::uint16_t>(std::max(rows, 1), normed_width_);
  qkv_ = take<float>(rows, qkv_width_);
  q_ = take<float>(rows, q_width);
  attended_ = take<std::uint16_t>(rows, attended_width_);
  output_ = take<float>(rows, output_width_);
  ff_ = take<std::uint16_t>(rows, ff_width_);
  const int n_splits = (limits_.max_positions + kSplit - 1) / kSplit;
  n_parts_ = static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(rows) * n_splits,
                                                     std::max(16 * n_splits, kAttendParts)));
  part_max_ = take<float>(n_parts_, n_heads);
  part_sum_ = take<float>(n_parts_, n_heads);
  part_output_ = take<float>(n_parts_, attended_width_);
  logits_ = take<float>(std::min(rows, kLogitsRows), filled(spec_.n_vocab, kRowGroup));
  occurs_ = take<int>(std::min(rows, kLogitsRows), filled(spec_.n_vocab, kRowGroup));
  device_tokens_ = take<Token>(rows, 1);
  slabs_.reserve(static_cast<std::size_t>(rows));

  const std::size_t input_bytes = static_cast<std::size_t>(rows) * kInputsOfRow +
                                  static_cast<std::size_t>(n_numbers()) * sizeof(std::int32_t);
  device_inputs_ = take<std::byte>(input_bytes);
  constexpr bool kPinned = true;  // memory of the host's
  inputs_ = take<std::byte>(input_bytes, kPinned);
  tokens_ = take<Token>(static_cast<std::size_t>(rows), kPinned);
  for (std::size_t i = 0; i < spec_.ropes.size(); ++i) {
    ropes_[i].dims = spec_.ropes[i].dims;
    ropes_[i].out = take<float>(rows, ropes_[i].dims);
    std::vector<double> turns = rope_frequencies(spec_.ropes[i]);
    for (double& turn : turns) turn /= 6.28318530717958647693;
    auto* const to = take<double>(turns.size());
    if (to != nullptr) device_.copy_in(to, turns.data(), turns.size() * sizeof(double));
    ropes_[i].turns = to;
  }
  return check_memory();
}

/// The inputs of a pass of so many rows: no more than it needs is copied, and the same places for
/// each pass of a graph.
inline void CudaBackend::lay_out(int rows) {
  choices_ = reinterpret_cast<SampleRow*>(inputs_);
  rows_ = reinterpret_cast<DeviceRow*>(choices_ + rows);
  tiles_ = reinterpret_cast<AttendTile*>(rows_ + rows);
  logits_rows_ = reinterpret_cast<std::int32_t*>(tiles_ + rows);
  tables_ = logits_rows_ + rows;
}

/// The vectors to the device, and each weight to the rows that it reads and writes.
inline Status CudaBackend::bind(const ModelWeights& weights) {
  const CurrentDevice current = device_.use();
  const Activations normed = {normed_, 0, normed_width_};
  const auto writes_output = [&](const Weight& weight, const Vector& bias, const Activations& x) {
    MultiplyArgs args;
    args.weight[0] = device_weight(weight);
    args.bias[0] = upload_bias(bias, weight);
    args.x = x;
    args.out = output_;
    args.out_stride = output_width_;
    return args;
  };
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerWeights& w = weights.layers[i];
    Layer l;
    l.attention_norm = upload(w.attention_norm);
    l.post_attention_norm = upload(w.post_attention_norm);
    l.ffn_norm = upload(w.ffn_norm);
    l.post_ffn_norm = upload(w.post_ffn_norm);
    l.q_norm = upload(w.q_norm);
    l.k_norm = upload(w.k_norm);
    const Weight* const qkv[] = {&w.q, &w.k, &w.v};
    const Vector* const biases[] = {&w.q_bias, &w.k_bias, &w.v_bias};
    for (int k = 0; k < 3; ++k) {
      l.qkv.weight[k] = device_weight(*qkv[k]);
      l.qkv.bias[k] = upload_bias(*biases[k], *qkv[k]);
    }
    l.qkv.x = normed;
    l.qkv.out = qkv_;
    l.qkv.out_stride = qkv_width_;
    l.attention_output =
        writes_output(w.attention_output, w.attention_output_bias, {attended_, 0, attended_width_});
    l.gate_up.gate = device_weight(w.gate);
    l.gate_up.up = device_weight(w.up);
    l.gate_up.gate_bias = upload_bias(w.gate_bias, w.gate);
    l.gate_up.up_bias = upload_bias(w.up_bias, w.up);
    l.gate_up.activation = spec_.layers[i].activation;
    l.gate_up.x = normed;
    l.gate_up.out = ff_;
    l.gate_up.out_stride = ff_width_;
    l.down = writes_output(w.down, w.down_bias, {ff_, 0, ff_width_});
    layers_.push_back(l);
  }
  final_norm_ = upload(weights.final_norm);
  embedding_ = device_weight(weights.embedding);
  head_.weight[0] = device_weight(weights.head);
  head_.x = normed;
  head_.softcap = static_cast<float>(spec_.logit_softcap);
  head_.out = logits_;
  head_.out_stride = filled(spec_.n_vocab, kRowGroup);
  DECANT_TRY(check_memory());
  DECANT_TRY(device_.finish());
  for (auto& piece : pieces_) device_.free_pinned(std::exchange(piece, {}).data());
  return {};
}

inline Result<std::unique_ptr<Backend>> make_backend(const ModelSpec& spec,
                                                     const ModelWeights& weights,
                                                     const BackendLimits& limits,
                                                     const CudaOptions& options) {
  auto backend = std::make_unique<CudaBackend>(spec, limits, options);
  DECANT_TRY(backend->create(weights));
  return Result<std::unique_ptr<Backend>>(std::move(backend));
}

}  // namespace decant::detail::DECANT_CUDA_SPACE
