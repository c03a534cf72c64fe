#include "model/weights.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace decant::detail {

static constexpr std::uint64_t kWeightAlignment = 64;

/// Finds and checks tensors by name first, and reads them once all are known to be right.
class WeightLoader {
 public:
  WeightLoader(const Gguf& file, bool mapped) : file_(file), mapped_(mapped) {}

  /// A matrix [rows][cols]. Absent and not required: left as it is.
  Status matrix(const std::string& name, int rows, int cols, bool required, Weight& to);
  /// A vector [n] of F32, F16 or BF16.
  Status vector(const std::string& name, int n, bool required, Vector& to);
  Status read_all(LoadedWeights& into, bool (*progress)(void*, float), void* user);

 private:
  Result<const GgufTensor*> find(const std::string& name, int rows, int cols, bool required) const;

  struct Wanted {
    const GgufTensor* tensor;
    Weight* weight;  // null: a vector
    Vector* vector;
  };
  const Gguf& file_;
  bool mapped_;
  std::vector<Wanted> wanted_;
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

Status WeightLoader::matrix(const std::string& name, int rows, int cols, bool required,
                            Weight& to) {
  DECANT_ASSIGN(const GgufTensor* tensor, find(name, rows, cols, required));
  if (tensor == nullptr) return {};
  to.type = tensor->type;
  to.rows = rows;
  to.cols = cols;
  to.row_bytes = tensor->bytes / static_cast<std::uint64_t>(rows);
  wanted_.push_back({tensor, &to, nullptr});
  return {};
}

Status WeightLoader::vector(const std::string& name, int n, bool required, Vector& to) {
  DECANT_ASSIGN(const GgufTensor* tensor, find(name, n, 0, required));
  if (tensor != nullptr) wanted_.push_back({tensor, nullptr, &to});
  return {};
}

Status WeightLoader::read_all(LoadedWeights& into, bool (*progress)(void*, float), void* user) {
  std::uint64_t arena_bytes = 0, all_bytes = 0;
  const auto in_place = [&](const Wanted& w) {
    return mapped_ && w.weight != nullptr ? file_.mapped_data(*w.tensor) : nullptr;
  };
  for (const Wanted& w : wanted_) {
    into.parameters_ += w.tensor->elements();
    all_bytes += w.tensor->bytes;
    if (w.weight == nullptr || in_place(w) != nullptr) continue;
    const auto rounded = checked_round_up(w.tensor->bytes, kWeightAlignment);
    const auto sum = rounded ? checked_add(arena_bytes, *rounded) : std::nullopt;
    if (!sum || *sum > SIZE_MAX)
      return make_error(ErrorCode::out_of_memory, "{}: the weights do not fit the address space",
                        file_.name());
    arena_bytes = *sum;
  }
  DECANT_ASSIGN(into.arena_, PageMemory::reserve(static_cast<std::size_t>(arena_bytes)));

  const auto report = [&](std::uint64_t done) -> Status {
    const float fraction =
        all_bytes == 0
            ? 0.0f
            : static_cast<float>(static_cast<double>(done) / static_cast<double>(all_bytes));
    // 1 is kept for the end of the whole load.
    if (progress != nullptr && !progress(user, std::min(fraction, 0.999f)))
      return make_error(ErrorCode::callback_failed, "{}: the progress callback cancelled the load",
                        file_.name());
    return {};
  };
  std::uint64_t used = 0, done = 0;
  DECANT_TRY(report(0));
  for (const Wanted& w : wanted_) {
    if (w.weight == nullptr) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(w.tensor->bytes));
      DECANT_TRY(file_.read(*w.tensor, bytes));
      w.vector->resize(static_cast<std::size_t>(w.tensor->elements()));
      dequantise(w.tensor->type, bytes.data(), w.vector->size(), w.vector->data());
    } else if (const std::byte* data = in_place(w)) {
      w.weight->data = data;
    } else {
      std::byte* to = into.arena_.data() + used;
      // In pieces, so that a slow source can be cancelled.
      constexpr std::uint64_t kPiece = 4 << 20;
      for (std::uint64_t at = 0; at < w.tensor->bytes; at += kPiece) {
        const std::uint64_t n = std::min(kPiece, w.tensor->bytes - at);
        DECANT_TRY(file_.read(*w.tensor, at, std::span(to + at, static_cast<std::size_t>(n))));
        DECANT_TRY(report(done + at));
      }
      w.weight->data = to;
      used += *checked_round_up(w.tensor->bytes, kWeightAlignment);
    }
    done += w.tensor->bytes;
    DECANT_TRY(report(done));
  }
  return {};
}

Result<LoadedWeights> LoadedWeights::load(const Gguf& file, const ModelSpec& spec, bool mapped,
                                          bool (*progress)(void*, float), void* progress_user) {
  constexpr bool kRequired = true, kOptional = false;
  // Gemma 3 has norms for each head of q and k and after both halves of a layer.
  const bool extra_norms = spec.architecture == "gemma3";
  LoadedWeights loaded;
  ModelWeights& w = loaded.weights_;
  WeightLoader load(file, mapped);
  DECANT_TRY(load.matrix("token_embd.weight", spec.n_vocab, spec.n_embd, kRequired, w.embedding));
  DECANT_TRY(load.matrix("output.weight", spec.n_vocab, spec.n_embd, kOptional, w.head));
  DECANT_TRY(load.vector("output_norm.weight", spec.n_embd, kRequired, w.final_norm));
  w.layers.resize(spec.layers.size());
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& s = spec.layers[i];
    LayerWeights& l = w.layers[i];
    const auto name = [&](std::string_view part) {
      return "blk." + std::to_string(i) + "." + std::string(part);
    };
    const int q = s.n_heads * s.key_dim, k = s.n_kv_heads * s.key_dim;
    const int v = s.n_kv_heads * s.value_dim, attended = s.n_heads * s.value_dim;
    DECANT_TRY(load.vector(name("attn_norm.weight"), spec.n_embd, kRequired, l.attention_norm));
    DECANT_TRY(load.matrix(name("attn_q.weight"), q, spec.n_embd, kRequired, l.q));
    DECANT_TRY(load.matrix(name("attn_k.weight"), k, spec.n_embd, kRequired, l.k));
    DECANT_TRY(load.matrix(name("attn_v.weight"), v, spec.n_embd, kRequired, l.v));
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
    if (!extra_norms) continue;
    DECANT_TRY(load.vector(name("attn_q_norm.weight"), s.key_dim, kRequired, l.q_norm));
    DECANT_TRY(load.vector(name("attn_k_norm.weight"), s.key_dim, kRequired, l.k_norm));
    DECANT_TRY(load.vector(name("post_attention_norm.weight"), spec.n_embd, kRequired,
                           l.post_attention_norm));
    DECANT_TRY(load.vector(name("post_ffw_norm.weight"), spec.n_embd, kRequired, l.post_ffn_norm));
  }
  DECANT_TRY(load.read_all(loaded, progress, progress_user));
  if (w.head.data == nullptr) w.head = w.embedding;  // tied
  return loaded;
}

}  // namespace decant::detail
