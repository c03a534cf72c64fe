// What a model is, as data, and the operations that a backend runs.
//
// The forward pass is embed; for each layer qkv, attend, attention_output, gate_up, down; logits.
// The seven operations are cut where a fused kernel ends. An operation ends with plain rows; post-
// norm, residual and the next norm are the prologue of the operation that reads them. An operation
// is a list of independent items: threads, clock and executor live outside, in the loop that runs
// them.
#pragma once

#include <array>

#include "base/result.hpp"
#include "format/tensor_type.hpp"
#include "kv/kv_view.hpp"

namespace decant::detail {

/// Which coordinates of a head turn together: (2i, 2i + 1), or (i, i + dims / 2).
enum class RopePairs : std::uint8_t { neighbours, halves };
enum class Activation : std::uint8_t { silu, gelu_tanh };

/// Rotary position embedding (Su et al. 2021): pair i of position p turns by
/// p * position_scale * base^(-2i / dims) / factors[i].
struct RopeSpec {
  RopePairs pairs = RopePairs::neighbours;
  int dims = 0;  // the first `dims` coordinates of a head turn
  double base = 10000.0;
  double position_scale = 1.0;  // linear scaling: 1 / factor
  std::vector<float> factors;   // [dims / 2] or empty: llama3 scaling, as the file gives it
  bool operator==(const RopeSpec&) const = default;
};

/// What differs between layers and architectures.
struct LayerSpec {
  int n_heads = 0, n_kv_heads = 0;
  int key_dim = 0, value_dim = 0;  // width of a head
  int n_ff = 0;
  double attention_scale = 1.0;    // multiplies q.k
  double attention_softcap = 0.0;  // scores become cap tanh(score / cap); 0: as they are
  Activation activation = Activation::silu;
  int rope = 0;                   // index into ModelSpec::ropes
  int window = 0;                 // 0: sees everything before it
  int kv_group = 0, kv_slot = 0;  // where its keys and values lie
  int group() const { return n_heads / n_kv_heads; }
};

struct ModelSpec {
  std::string architecture;
  int n_embd = 0, n_vocab = 0;
  std::uint64_t trained_context = 0;
  double norm_eps = 1e-5;
  double embedding_scale = 1.0;
  double logit_softcap = 0.0;  // as attention_softcap, of logits
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  std::vector<KvGroupSpec> kv_groups;
};

/// Output rows that packed weights keep together, one in each lane of a vector.
inline constexpr int kRowGroup = 16;

/// How a backend wants groups of 16 rows to lie.
struct Packing {
  /// Bytes of a group; 0: the backend does not know the type.
  std::uint64_t (*group_bytes)(TensorType type, int cols);
  /// n_rows <= 16 rows as the file stores them to one group; missing rows become zero.
  void (*pack_group)(TensorType type, const std::byte* rows, std::uint64_t row_bytes, int n_rows,
                     int cols, std::byte* to);
};

/// A matrix [rows][cols]: either as the file has it, `rows` rows of blocks of `type`, or packed in
/// groups of 16 rows (backend/cpu/pack.hpp, backend/cuda/pack.hpp), segment by segment (a head),
/// each segment filled up with zero rows.
struct Weight {
  const std::byte* data = nullptr;  // where the backend reads it; null: none, or not read yet
  TensorType type{};
  int rows = 0, cols = 0;
  std::uint64_t row_bytes = 0;    // as in the file
  std::uint64_t group_bytes = 0;  // packed: bytes of 16 rows; 0: as in the file
  int segment_rows = 0;           // rows of a segment

  int segment_groups() const { return (segment_rows + kRowGroup - 1) / kRowGroup; }
  int n_groups() const { return rows / segment_rows * segment_groups(); }
  /// The rows of a group, [first_row, end_row): 16 but for the last ones of a segment.
  int first_row(int group) const {
    return group / segment_groups() * segment_rows + group % segment_groups() * kRowGroup;
  }
  int end_row(int group) const {
    const int segment_end = (group / segment_groups() + 1) * segment_rows;
    const int full = first_row(group) + kRowGroup;
    return full < segment_end ? full : segment_end;
  }
};

/// Norm weights and biases; empty: the model has none.
using Vector = std::vector<float>;

struct LayerWeights {
  Vector attention_norm, q_norm, k_norm, post_attention_norm;
  Weight q, k, v, attention_output;
  Vector q_bias, k_bias, v_bias, attention_output_bias;
  Vector ffn_norm, post_ffn_norm;
  Weight gate, up, down;
  Vector gate_bias, up_bias, down_bias;

  std::array<const Weight*, 7> matrices() const {
    return {&q, &k, &v, &attention_output, &gate, &up, &down};
  }
};

struct ModelWeights {
  Weight embedding, head;  // head is the embedding again when the two are tied
  Vector final_norm;
  std::vector<LayerWeights> layers;
};

/// How the token behind a row is chosen, and the token, by a backend that does so.
struct Choice {
  const Sampler* sampler = nullptr;
  std::span<const Token> history;  // all tokens before it; their number is its position
  std::uint64_t seed = 0;
  Token token = -1;  // once the pass is finished; -1: no token has a logit above -inf
};

/// One token of a batch.
struct Row {
  std::int32_t sequence;  // index into Batch::sequences
  std::int32_t position;
  Token token;
  float* logits;             // [n_vocab] when the row asks for logits, else null
  Choice* choice = nullptr;  // when it asks for the next token, which takes a backend that chooses
};

/// The rows of a pass. Rows of a sequence stand together with ascending, adjacent positions; the
/// positions before them are in its pages already.
struct Batch {
  std::span<const Row> rows;
  std::span<const std::int32_t* const* const> sequences;  // block tables [sequence][kv group][page]
  std::span<const KvView> kv;                             // [kv group]
};

/// Memory of a backend's own for packed matrices. A piece is copied there while the next one is
/// packed.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// For a matrix, as long as the backend lives. Errors: out_of_memory, device_lost.
  virtual Result<std::byte*> take_matrix(std::uint64_t bytes) = 0;
  /// Where to pack the next piece: a group has room.
  virtual std::span<std::byte> piece() = 0;
  /// Begins to copy so much of the piece to its place. Errors: device_lost.
  virtual Status write(std::byte* to, std::size_t bytes) = 0;
  /// Once, behind the last piece, after which there are none: copies the vectors, and waits until
  /// all is there. Errors: as take_matrix.
  virtual Status bind(const ModelWeights& weights) = 0;
};

struct BackendLimits {
  int max_rows = 1;       // of a pass
  int max_positions = 1;  // of a sequence
  int max_sequences = 1;  // of a pass
  int n_sampled = 0;      // tokens [0, n_sampled) may be chosen
  int n_workers = 1;
  Activations activations = Activations::int8;  // that meet integer weights on the CPU
  bool measure = false;  // take no memory: the backend only says how much it would be
};

enum class Operation : std::uint8_t { embed, qkv, attend, attention_output, gate_up, down, logits };

/// Runs operations for one model. Not thread-safe but for `run`, which different threads may call
/// at the same time for different items of one operation, each with its own `worker` number.
class Backend : public PageAccess {
 public:
  /// What it took when it was made, or would have taken.
  virtual std::uint64_t memory_bytes() const = 0;
  /// Null: it reads weights where they are.
  virtual WeightStore* weight_store() { return nullptr; }
  /// Where pages lie that this backend reads: zeroed memory, taken once, which lives as long as the
  /// backend; null: in the cache's own. Errors: out_of_memory.
  virtual Result<std::byte*> take_pages(std::uint64_t /*bytes*/) {
    return static_cast<std::byte*>(nullptr);
  }
  /// Starts a pass over at most `max_rows` rows; `batch` must outlive it.
  virtual void begin(const Batch& batch) = 0;
  /// Whether rows may ask for the next token of such a sampler, so many tokens being before it.
  virtual bool chooses(const Sampler&, std::size_t /*n_before*/) const { return false; }
  /// Whether what `run` has begun goes on without this thread, until `finish` waits for it.
  virtual bool runs_by_itself() const { return false; }
  /// Waits until all that the pass has begun is done; its logits and tokens are there then. Errors:
  /// device_lost, now and ever after.
  virtual Status finish() noexcept { return {}; }
  /// The number of items of an operation in this pass.
  virtual std::size_t count(Operation op, int layer) const = 0;
  virtual void run(Operation op, int layer, std::size_t item, int worker) noexcept = 0;
  /// What all items of an operation read may be made by items of their own, which must be finished
  /// before the others start. None by default.
  virtual std::size_t count_prologue(Operation, int /*layer*/) const { return 0; }
  virtual void run_prologue(Operation, int /*layer*/, std::size_t /*item*/,
                            int /*worker*/) noexcept {}
};

}  // namespace decant::detail
