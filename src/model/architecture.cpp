#include "model/architecture.hpp"

#include <cmath>

namespace decant::detail {

namespace {

constexpr std::uint64_t kMaxLayers = 1024, kMaxHeads = 1024, kMaxWidth = 1 << 20,
                        kMaxVocabulary = 1 << 24;

/// What every architecture says in the same keys, and how to read them.
struct ArchitectureReader {
  const Gguf& file;
  std::string prefix;  // "llama."

  std::string key(std::string_view name) const { return prefix + std::string(name); }

  Status present(std::string_view name) const {
    if (file.has(key(name))) return {};
    return make_error(ErrorCode::invalid_file, "{}: the key {} is missing", file.name(), key(name));
  }

  /// A number in [low, high]; `fallback` 0 means that the key must be there.
  Result<int> count(std::string_view name, std::uint64_t fallback, std::uint64_t low,
                    std::uint64_t high) const {
    if (fallback == 0) DECANT_TRY(present(name));
    DECANT_ASSIGN(const std::uint64_t value, file.uint(key(name), fallback));
    if (value < low || value > high)
      return make_error(ErrorCode::invalid_file, "{}: {} is {}, must be {} to {}", file.name(),
                        key(name), value, low, high);
    return static_cast<int>(value);
  }

  /// A finite number above 0; `fallback` 0 means that the key must be there.
  Result<double> positive(std::string_view name, double fallback = 0.0) const {
    if (fallback == 0.0) DECANT_TRY(present(name));
    DECANT_ASSIGN(const double value, file.number(key(name), fallback));
    if (!(value > 0.0) || !std::isfinite(value))
      return make_error(ErrorCode::invalid_file, "{}: {} must be a finite number above 0",
                        file.name(), key(name));
    return value;
  }

  /// Within what floats can divide by.
  Result<double> softcap(std::string_view name, double fallback) const {
    DECANT_ASSIGN(const double value, positive(name, fallback));
    if (value < 1e-6 || value > 1e6)
      return make_error(ErrorCode::invalid_file, "{}: {} is {}, must be 1e-6 to 1e6", file.name(),
                        key(name), value);
    return value;
  }

  /// Features that would change results and are not built: better an error than nonsense.
  Status absent(std::string_view name, double neutral) const {
    DECANT_ASSIGN(const double value, file.number(key(name), neutral));
    if (value != neutral)
      return make_error(ErrorCode::unsupported, "{}: {} = {} is not supported", file.name(),
                        key(name), value);
    return {};
  }
};

/// rope.scaling.*: none or linear. (llama3 scaling comes as the tensor rope_freqs.weight.)
Result<double> read_position_scale(const ArchitectureReader& in) {
  DECANT_TRY(in.absent("rope.scale_linear", 1));  // its name in the first files
  DECANT_ASSIGN(const std::string_view type, in.file.string(in.key("rope.scaling.type"), "linear"));
  if (type == "none") return 1.0;
  if (type != "linear")
    return make_error(ErrorCode::unsupported, "{}: {} '{}' is not supported; linear and llama3 are",
                      in.file.name(), in.key("rope.scaling.type"), type);
  DECANT_ASSIGN(const double factor, in.positive("rope.scaling.factor", 1.0));
  return 1.0 / factor;
}

/// Everything that llama-like architectures share; all layers alike, full attention, one RoPE.
Result<ModelSpec> read_decoder(const ArchitectureReader& in, RopePairs pairs) {
  ModelSpec spec;
  DECANT_ASSIGN(const int n_layers, in.count("block_count", 0, 1, kMaxLayers));
  DECANT_ASSIGN(spec.n_embd, in.count("embedding_length", 0, 1, kMaxWidth));
  DECANT_ASSIGN(const int context, in.count("context_length", 0, 1, INT32_MAX));
  spec.trained_context = static_cast<std::uint64_t>(context);
  DECANT_ASSIGN(spec.norm_eps, in.positive("attention.layer_norm_rms_epsilon"));
  DECANT_TRY(in.absent("expert_count", 0));
  DECANT_TRY(in.absent("logit_scale", 1));
  DECANT_TRY(in.absent("residual_scale", 1));

  LayerSpec layer;
  DECANT_ASSIGN(layer.n_heads, in.count("attention.head_count", 0, 1, kMaxHeads));
  DECANT_ASSIGN(
      layer.n_kv_heads,
      in.count("attention.head_count_kv", static_cast<std::uint64_t>(layer.n_heads), 1, kMaxHeads));
  if (layer.n_heads % layer.n_kv_heads != 0)
    return make_error(ErrorCode::invalid_file, "{}: {} query heads are no multiple of {} KV heads",
                      in.file.name(), layer.n_heads, layer.n_kv_heads);
  const bool has_width = in.file.has(in.key("attention.key_length"));
  if (!has_width && spec.n_embd % layer.n_heads != 0)
    return make_error(ErrorCode::invalid_file,
                      "{}: {} is missing, and the embedding width {} is no multiple of {} heads",
                      in.file.name(), in.key("attention.key_length"), spec.n_embd, layer.n_heads);
  const auto derived = static_cast<std::uint64_t>(std::max(1, spec.n_embd / layer.n_heads));
  DECANT_ASSIGN(layer.key_dim, in.count("attention.key_length", derived, 2, 65536));
  DECANT_ASSIGN(layer.value_dim, in.count("attention.value_length", derived, 1, 65536));
  DECANT_ASSIGN(layer.n_ff, in.count("feed_forward_length", 0, 1, kMaxWidth));
  const std::uint64_t widest = static_cast<std::uint64_t>(layer.n_heads) *
                               static_cast<std::uint64_t>(std::max(layer.key_dim, layer.value_dim));
  if (widest > kMaxWidth)
    return make_error(ErrorCode::invalid_file, "{}: {} heads of width {} are wider than {}",
                      in.file.name(), layer.n_heads, std::max(layer.key_dim, layer.value_dim),
                      kMaxWidth);
  DECANT_ASSIGN(
      layer.attention_scale,
      in.positive("attention.scale", 1.0 / std::sqrt(static_cast<double>(layer.key_dim))));

  RopeSpec rope;
  rope.pairs = pairs;
  DECANT_ASSIGN(rope.dims,
                in.count("rope.dimension_count", static_cast<std::uint64_t>(layer.key_dim), 2,
                         static_cast<std::uint64_t>(layer.key_dim)));
  if (rope.dims % 2 != 0)
    return make_error(ErrorCode::invalid_file,
                      "{}: RoPE turns pairs of coordinates, but {} coordinates are odd",
                      in.file.name(), rope.dims);
  DECANT_ASSIGN(rope.base, in.positive("rope.freq_base", 10000.0));
  DECANT_ASSIGN(rope.position_scale, read_position_scale(in));
  spec.ropes.push_back(rope);
  spec.layers.assign(static_cast<std::size_t>(n_layers), layer);
  return spec;
}

Status no_softcaps(const ArchitectureReader& in) {
  DECANT_TRY(in.absent("attn_logit_softcapping", 0));
  return in.absent("final_logit_softcapping", 0);
}

Result<ModelSpec> read_llama(const ArchitectureReader& in) {
  DECANT_TRY(no_softcaps(in));
  return read_decoder(in, RopePairs::neighbours);
}

/// What the Gemmas share: GELU, and embeddings times sqrt(width). The 27B model, told by its depth,
/// divides scores by sqrt(width / heads); no key says so.
Result<ModelSpec> read_gemma(const ArchitectureReader& in, std::size_t n_layers_27b) {
  DECANT_ASSIGN(ModelSpec spec, read_decoder(in, RopePairs::halves));
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.n_embd));
  const bool divides =
      spec.layers.size() == n_layers_27b && !in.file.has(in.key("attention.scale"));
  for (LayerSpec& layer : spec.layers) {
    layer.activation = Activation::gelu_tanh;
    if (divides)
      layer.attention_scale =
          1.0 / std::sqrt(static_cast<double>(std::max(1, spec.n_embd / layer.n_heads)));
  }
  return spec;
}

/// Gemma 2: layers 0, 2, ... see a window; soft-capped scores and logits.
Result<ModelSpec> read_gemma2(const ArchitectureReader& in) {
  DECANT_ASSIGN(ModelSpec spec, read_gemma(in, 46));
  DECANT_ASSIGN(const int window, in.count("attention.sliding_window", 4096, 1, INT32_MAX));
  DECANT_ASSIGN(const double softcap, in.softcap("attn_logit_softcapping", 50.0));
  DECANT_ASSIGN(spec.logit_softcap, in.softcap("final_logit_softcapping", 30.0));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].attention_softcap = softcap;
    if (i % 2 == 0) spec.layers[i].window = window;
  }
  return spec;
}

/// Gemma 3: every sixth layer sees everything, the others a window, with a RoPE base of their own
/// and without its scaling.
Result<ModelSpec> read_gemma3(const ArchitectureReader& in) {
  DECANT_TRY(no_softcaps(in));
  DECANT_ASSIGN(ModelSpec spec, read_gemma(in, 62));
  DECANT_ASSIGN(const int window, in.count("attention.sliding_window", 0, 1, INT32_MAX));
  DECANT_ASSIGN(const int pattern, in.count("attention.sliding_window_pattern", 6, 1, kMaxLayers));
  RopeSpec local = spec.ropes[0];
  DECANT_ASSIGN(local.base, in.positive("rope.freq_base_swa", 10000.0));
  local.position_scale = 1.0;
  spec.ropes.push_back(local);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if ((i + 1) % static_cast<std::size_t>(pattern) == 0) continue;
    spec.layers[i].window = window;
    spec.layers[i].rope = 1;
  }
  return spec;
}

struct Architecture {
  std::string_view name;
  Result<ModelSpec> (*read)(const ArchitectureReader&);
};
constexpr Architecture kArchitectures[] = {
    {"llama", read_llama}, {"gemma2", read_gemma2}, {"gemma3", read_gemma3}};

/// Layers that keep the same positions in the same shape share a group of KV pages.
void assign_kv_groups(ModelSpec& spec) {
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const KvGroupSpec wanted{{}, layer.window, layer.n_kv_heads, layer.key_dim, layer.value_dim};
    std::size_t g = 0;
    while (g < spec.kv_groups.size() && !spec.kv_groups[g].same_shape(wanted)) ++g;
    if (g == spec.kv_groups.size()) spec.kv_groups.push_back(wanted);
    layer.kv_group = static_cast<int>(g);
    layer.kv_slot = static_cast<int>(spec.kv_groups[g].layers.size());
    spec.kv_groups[g].layers.push_back(static_cast<int>(i));
  }
}

/// llama3 scaling: a factor for each pair of coordinates.
Status read_rope_factors(const Gguf& file, ModelSpec& spec) {
  const GgufTensor* tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) return {};
  const auto n = static_cast<std::uint64_t>(spec.ropes[0].dims / 2);
  if (tensor->type != TensorType::F32 || tensor->elements() != n || tensor->shape[0] != n)
    return make_error(ErrorCode::invalid_file,
                      "{}: rope_freqs.weight must be F32 [{}], one factor for each pair",
                      file.name(), n);
  std::vector<float> factors(static_cast<std::size_t>(n));
  DECANT_TRY(file.read(*tensor, std::as_writable_bytes(std::span(factors))));
  for (const float f : factors)
    if (!(f > 0.0f) || !std::isfinite(f))
      return make_error(ErrorCode::invalid_file,
                        "{}: rope_freqs.weight holds a factor that is not a finite number above 0",
                        file.name());
  spec.ropes[0].factors = std::move(factors);
  return {};
}

/// The vocabulary's width is that of the embedding table.
Status read_vocabulary_width(const Gguf& file, ModelSpec& spec) {
  const GgufTensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr)
    return make_error(ErrorCode::invalid_file, "{}: the tensor token_embd.weight is missing",
                      file.name());
  if (table->n_dims != 2 || table->shape[1] == 0 || table->shape[1] > kMaxVocabulary)
    return make_error(ErrorCode::invalid_file,
                      "{}: token_embd.weight has {} dimensions and {} rows; wanted 2 and 1 to {}",
                      file.name(), table->n_dims, table->shape[1], kMaxVocabulary);
  spec.n_vocab = static_cast<int>(table->shape[1]);
  return {};
}

}  // namespace

Result<ModelSpec> read_model_spec(const Gguf& file) {
  DECANT_ASSIGN(const std::string_view name, file.string("general.architecture", ""));
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name != name) continue;
    DECANT_ASSIGN(ModelSpec spec, architecture.read({file, std::string(name) + "."}));
    spec.architecture = name;
    DECANT_TRY(read_vocabulary_width(file, spec));
    DECANT_TRY(read_rope_factors(file, spec));
    assign_kv_groups(spec);
    return spec;
  }
  return make_error(ErrorCode::unsupported,
                    "{}: the architecture '{}' is not supported; llama, gemma2 and gemma3 are",
                    file.name(), name);
}

}  // namespace decant::detail
