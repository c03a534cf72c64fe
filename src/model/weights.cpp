#include "model/weights.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace decant::detail {

static constexpr std::uint64_t kWeightAlignment = 64;

/// Finds and checks tensors by name first, and reads them once all are known to be right.
class WeightLoader {
 public:
  WeightLoader(const Gguf& file, const WeightOptions& options) : file_(file), options_(options) {}

  /// A matrix [rows][cols], packed in segments of `segment_rows` (0: one). Absent and not required:
  /// left as it is.
  Status matrix(const std::string& name, int rows, int cols, bool required, Weight& to,
                int segment_rows = 0);
  /// A vector [n] of F32, F16 or BF16.
  Status vector(const std::string& name, int n, bool required, Vector& to);
  Status read_all(LoadedWeights& into);

 private:
  Result<const GgufTensor*> find(const std::string& name, int rows, int cols, bool required) const;

  struct Wanted {
    const GgufTensor* tensor;
    Weight* weight;  // null: a vector
    Vector* vector;
    std::byte* to = nullptr;  // of a matrix; null: used in place
  };
  std::uint64_t bytes_in_memory(const Wanted& wanted) const;
  Status report(std::uint64_t done) const;
  Status read_as_it_is(const Wanted& wanted, std::byte* to) const;
  Status read_packed(const Wanted& wanted, std::byte* to);

  const Gguf& file_;
  const WeightOptions& options_;
  std::vector<Wanted> wanted_;
  std::vector<std::byte> staging_;  // rows to pack
  std::uint64_t all_bytes_ = 0, done_ = 0;
};

/// `cols` 0: a vector of `rows` elements.
Result<const GgufTensor*> WeightLoader::find(const std::string& name, int rows, int cols,
                                             bool required) const {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    if (!required) return tensor;
    return make_error(ErrorCode::invalid_file, "{}: the tensor {} is missing", file_.name(), name);
  }
  const std::array<std::uint64_t, 4> shape =
      cols == 0 ? std::array<std::uint64_t, 4>{static_cast<std::uint64_t>(rows), 1, 1, 1}
                : std::array<std::uint64_t, 4>{static_cast<std::uint64_t>(cols),
                                               static_cast<std::uint64_t>(rows), 1, 1};
  if (tensor->shape != shape)
    return make_error(ErrorCode::invalid_file,
                      "{}: the tensor {} has the shape [{}, {}, {}, {}], wanted [{}, {}, 1, 1]",
                      file_.name(), name, tensor->shape[0], tensor->shape[1], tensor->shape[2],
                      tensor->shape[3], shape[0], shape[1]);
  const TensorTypeInfo* type = tensor_type_info(tensor->type);
  if (type == nullptr || !type->dequantises)
    return make_error(ErrorCode::unsupported,
                      "{}: the tensor {} has the type {}, which is not supported", file_.name(),
                      name, type == nullptr ? "unknown" : type->name);
  return tensor;
}

Status WeightLoader::matrix(const std::string& name, int rows, int cols, bool required, Weight& to,
                            int segment_rows) {
  DECANT_ASSIGN(const GgufTensor* tensor, find(name, rows, cols, required));
  if (tensor == nullptr) return {};
  to.type = tensor->type;
  to.rows = rows;
  to.cols = cols;
  to.row_bytes = tensor->bytes / static_cast<std::uint64_t>(rows);
  to.segment_rows = segment_rows == 0 ? rows : segment_rows;
  if (options_.packing != nullptr)
    to.group_bytes = options_.packing->group_bytes(tensor->type, cols);
  wanted_.push_back({tensor, &to, nullptr});
  return {};
}

Status WeightLoader::vector(const std::string& name, int n, bool required, Vector& to) {
  DECANT_ASSIGN(const GgufTensor* tensor, find(name, n, 0, required));
  if (tensor != nullptr) wanted_.push_back({tensor, nullptr, &to});
  return {};
}

/// 0 for vectors and for what is used in place.
std::uint64_t WeightLoader::bytes_in_memory(const Wanted& wanted) const {
  if (wanted.weight == nullptr) return 0;
  if (options_.packing != nullptr)
    return static_cast<std::uint64_t>(wanted.weight->n_groups()) * wanted.weight->group_bytes;
  const bool in_place =
      options_.mapped && (options_.measure || file_.mapped_data(*wanted.tensor) != nullptr);
  return in_place ? 0 : wanted.tensor->bytes;
}

Status WeightLoader::report(std::uint64_t done) const {
  const double fraction =
      all_bytes_ == 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(all_bytes_);
  // 1 is kept for the end of the whole load.
  if (options_.progress != nullptr &&
      !options_.progress(options_.progress_user, std::min(static_cast<float>(fraction), 0.999f)))
    return make_error(ErrorCode::callback_failed, "{}: the progress callback cancelled the load",
                      file_.name());
  return {};
}

// Both ways read in pieces, so that a slow source can be cancelled.
static constexpr std::uint64_t kWeightPiece = 4 << 20;

Status WeightLoader::read_as_it_is(const Wanted& wanted, std::byte* to) const {
  for (std::uint64_t at = 0; at < wanted.tensor->bytes; at += kWeightPiece) {
    const std::uint64_t n = std::min(kWeightPiece, wanted.tensor->bytes - at);
    DECANT_TRY(file_.read(*wanted.tensor, at, std::span(to + at, static_cast<std::size_t>(n))));
    DECANT_TRY(report(done_ + at));
  }
  return {};
}

Status WeightLoader::read_packed(const Wanted& wanted, std::byte* to) {
  const Weight& w = *wanted.weight;
  WeightStore* const store = options_.store;
  const std::uint64_t room = store != nullptr ? store->piece().size() / w.group_bytes : UINT64_MAX;
  const int step = static_cast<int>(
      std::clamp<std::uint64_t>(std::min(kWeightPiece / (w.row_bytes * kRowGroup), room), 1,
                                static_cast<std::uint64_t>(w.n_groups())));
  for (int group = 0; group < w.n_groups(); group += step) {
    const int n = std::min(step, w.n_groups() - group), row = w.first_row(group);
    const std::uint64_t from = static_cast<std::uint64_t>(row) * w.row_bytes;
    staging_.resize(static_cast<std::size_t>(
        static_cast<std::uint64_t>(w.end_row(group + n - 1) - row) * w.row_bytes));
    DECANT_TRY(file_.read(*wanted.tensor, from, staging_));
    std::byte* const piece = store != nullptr ? store->piece().data() : to;
    const auto pack = [&](int i) noexcept {
      const int g = group + i, begin = w.first_row(g);
      options_.packing->pack_group(
          w.type, staging_.data() + static_cast<std::uint64_t>(begin - row) * w.row_bytes,
          w.row_bytes, w.end_row(g) - begin, w.cols,
          piece + static_cast<std::uint64_t>(i) * w.group_bytes);
    };
    options_.pool->run(
        static_cast<std::size_t>(n),
        [](void* f, std::size_t i, int) noexcept {
          (*static_cast<decltype(pack)*>(f))(static_cast<int>(i));
        },
        const_cast<void*>(static_cast<const void*>(&pack)));
    const std::uint64_t bytes = static_cast<std::uint64_t>(n) * w.group_bytes;
    if (store != nullptr) DECANT_TRY(store->write(to, static_cast<std::size_t>(bytes)));
    to += bytes;
    DECANT_TRY(report(done_ + from));
  }
  return {};
}

Status WeightLoader::read_all(LoadedWeights& into) {
  std::uint64_t arena_bytes = 0;
  for (const Wanted& w : wanted_) {
    into.parameters_ += w.tensor->elements();
    all_bytes_ += w.tensor->bytes;
    const auto rounded = checked_round_up(bytes_in_memory(w), kWeightAlignment);
    const auto sum = rounded ? checked_add(arena_bytes, *rounded) : std::nullopt;
    if (!sum || *sum > SIZE_MAX)
      return make_error(ErrorCode::out_of_memory, "{}: the weights do not fit the address space",
                        file_.name());
    arena_bytes = *sum;
    if (w.vector != nullptr) into.memory_bytes_ += w.tensor->elements() * sizeof(float);
  }
  into.memory_bytes_ += arena_bytes;
  if (options_.measure) return {};
  WeightStore* const store = options_.store;
  DECANT_ASSIGN(into.arena_,
                PageMemory::reserve(static_cast<std::size_t>(store != nullptr ? 0 : arena_bytes)));

  // A lack of memory is told before anything is read.
  std::byte* next = into.arena_.data();
  for (Wanted& w : wanted_) {
    const std::uint64_t bytes = bytes_in_memory(w);
    if (bytes == 0) continue;
    DECANT_ASSIGN(w.to, store != nullptr ? store->take_matrix(bytes) : next);
    if (store == nullptr) next += *checked_round_up(bytes, kWeightAlignment);
  }

  DECANT_TRY(report(0));
  for (const Wanted& w : wanted_) {
    if (w.weight == nullptr) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(w.tensor->bytes));
      DECANT_TRY(file_.read(*w.tensor, bytes));
      w.vector->resize(static_cast<std::size_t>(w.tensor->elements()));
      dequantise(w.tensor->type, bytes.data(), w.vector->size(), w.vector->data());
    } else if (w.to != nullptr) {
      if (options_.packing != nullptr)
        DECANT_TRY(read_packed(w, w.to));
      else
        DECANT_TRY(read_as_it_is(w, w.to));
      w.weight->data = w.to;
    } else {
      w.weight->data = file_.mapped_data(*w.tensor);
    }
    done_ += w.tensor->bytes;
    DECANT_TRY(report(done_));
  }
  return {};
}

Result<LoadedWeights> LoadedWeights::load(const Gguf& file, const ModelSpec& spec,
                                          const WeightOptions& options) {
  constexpr bool kRequired = true, kOptional = false;
  // Gemma has norms after both halves of a layer; Gemma 3 also for each head of q and k.
  const bool head_norms = spec.architecture == "gemma3";
  const bool post_norms = head_norms || spec.architecture == "gemma2";
  LoadedWeights loaded;
  ModelWeights& w = loaded.weights_;
  WeightLoader load(file, options);
  DECANT_TRY(load.matrix("token_embd.weight", spec.n_vocab, spec.n_embd, kRequired, w.embedding));
  DECANT_TRY(load.matrix("output.weight", spec.n_vocab, spec.n_embd, kOptional, w.head));
  DECANT_TRY(load.vector("output_norm.weight", spec.n_embd, kRequired, w.final_norm));
  w.layers.resize(spec.layers.size());
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& s = spec.layers[i];
    LayerWeights& l = w.layers[i];
    const auto name = [&](std::string_view part) {
      std::string full = "blk.";
      full += std::to_string(i);
      full += '.';
      return full += part;
    };
    const int q = s.n_heads * s.key_dim, k = s.n_kv_heads * s.key_dim;
    const int v = s.n_kv_heads * s.value_dim, attended = s.n_heads * s.value_dim;
    DECANT_TRY(load.vector(name("attn_norm.weight"), spec.n_embd, kRequired, l.attention_norm));
    DECANT_TRY(load.matrix(name("attn_q.weight"), q, spec.n_embd, kRequired, l.q, s.key_dim));
    DECANT_TRY(load.matrix(name("attn_k.weight"), k, spec.n_embd, kRequired, l.k, s.key_dim));
    DECANT_TRY(load.matrix(name("attn_v.weight"), v, spec.n_embd, kRequired, l.v, s.value_dim));
    DECANT_TRY(load.vector(name("attn_q.bias"), q, kOptional, l.q_bias));
    DECANT_TRY(load.vector(name("attn_k.bias"), k, kOptional, l.k_bias));
    DECANT_TRY(load.vector(name("attn_v.bias"), v, kOptional, l.v_bias));
    DECANT_TRY(load.matrix(name("attn_output.weight"), spec.n_embd, attended, kRequired,
                           l.attention_output));
    DECANT_TRY(
        load.vector(name("attn_output.bias"), spec.n_embd, kOptional, l.attention_output_bias));
    DECANT_TRY(load.vector(name("ffn_norm.weight"), spec.n_embd, kRequired, l.ffn_norm));
    DECANT_TRY(load.matrix(name("ffn_gate.weight"), s.n_ff, spec.n_embd, kRequired, l.gate));
    DECANT_TRY(load.matrix(name("ffn_up.weight"), s.n_ff, spec.n_embd, kRequired, l.up));
    DECANT_TRY(load.matrix(name("ffn_down.weight"), spec.n_embd, s.n_ff, kRequired, l.down));
    DECANT_TRY(load.vector(name("ffn_gate.bias"), s.n_ff, kOptional, l.gate_bias));
    DECANT_TRY(load.vector(name("ffn_up.bias"), s.n_ff, kOptional, l.up_bias));
    DECANT_TRY(load.vector(name("ffn_down.bias"), spec.n_embd, kOptional, l.down_bias));
    if (head_norms) {
      DECANT_TRY(load.vector(name("attn_q_norm.weight"), s.key_dim, kRequired, l.q_norm));
      DECANT_TRY(load.vector(name("attn_k_norm.weight"), s.key_dim, kRequired, l.k_norm));
    }
    if (!post_norms) continue;
    DECANT_TRY(load.vector(name("post_attention_norm.weight"), spec.n_embd, kRequired,
                           l.post_attention_norm));
    DECANT_TRY(load.vector(name("post_ffw_norm.weight"), spec.n_embd, kRequired, l.post_ffn_norm));
  }
  DECANT_TRY(load.read_all(loaded));
  if (w.head.rows == 0) w.head = w.embedding;  // tied
  if (options.store != nullptr && !options.measure) DECANT_TRY(options.store->bind(w));
  return loaded;
}

static std::uint64_t weight_bytes(const Weight& w) {
  return w.group_bytes != 0 ? static_cast<std::uint64_t>(w.n_groups()) * w.group_bytes
                            : static_cast<std::uint64_t>(w.rows) * w.row_bytes;
}

template <class Measure>
static std::uint64_t weight_sum(const ModelWeights& weights, Measure&& measure) {
  std::uint64_t sum = 0;
  for (const LayerWeights& l : weights.layers)
    for (const Weight* w : l.matrices()) sum += measure(*w);
  return sum;
}

std::uint64_t LoadedWeights::layer_bytes() const { return weight_sum(weights_, weight_bytes); }

std::uint64_t LoadedWeights::layer_elements() const {
  return weight_sum(weights_, [](const Weight& w) {
    return static_cast<std::uint64_t>(w.rows) * static_cast<std::uint64_t>(w.cols);
  });
}

std::uint64_t LoadedWeights::head_bytes() const { return weight_bytes(weights_.head); }

}  // namespace decant::detail
