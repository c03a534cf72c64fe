#include <cmath>

#include "api/chat.hpp"
#include "model/architecture.hpp"
#include "text/pre_tokenizer.hpp"

namespace decant {

namespace detail {

static constexpr std::size_t kDefaultContext = 4096, kMaxContext = std::size_t{1} << 24;
static constexpr int kMaxThreads = 64;

/// The host's callbacks; what they throw stays here.
struct LoadCallbacks {
  const ModelOptions& options;

  static bool progress(void* self, float fraction) {
    const ModelOptions& o = static_cast<LoadCallbacks*>(self)->options;
    if (o.progress == nullptr) return true;
    try {
      return o.progress(o.progress_user, fraction);
    } catch (...) {
      return false;
    }
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    if (options.log == nullptr) return;
    const Error text = make_error(ErrorCode::unsupported, format, std::forward<Args>(args)...);
    try {
      options.log(options.log_user, LogLevel::warning, text.message());
    } catch (...) {
      // A warning is not worth failing for.
    }
  }
};

static Status check_options(const ModelOptions& o) {
  const auto wrong = [](std::string_view field, std::string_view wanted) {
    return make_error(ErrorCode::invalid_argument, "ModelOptions::{} must be {}", field, wanted);
  };
  if (o.threads < 0 || o.threads > kMaxThreads) return wrong("threads", "0 to 64");
  if (o.context > kMaxContext) return wrong("context", "at most 2^24");
  if (o.chunk < 1 || o.chunk > 4096) return wrong("chunk", "1 to 4096");
  if (o.sessions < 1 || o.sessions > 65536) return wrong("sessions", "1 to 65536");
  const auto known = [](KvType t) {
    return t == KvType::automatic || t == KvType::f32 || t == KvType::f16 || t == KvType::bf16;
  };
  if (!known(o.kv_keys) || !known(o.kv_values)) return wrong("kv_keys and kv_values", "a KvType");
  if (o.backend != decant::Backend::cpu && o.backend != decant::Backend::reference)
    return wrong("backend", "cpu or reference");
  return {};
}

/// Positions in the pool: by kv_memory, or room for all sessions at full length.
static Result<std::uint64_t> pool_tokens(const ModelOptions& o, const ModelInfo& info) {
  const std::uint64_t page_bytes =
      static_cast<std::uint64_t>(info.kv_bytes_per_token) * kPageTokens;
  if (o.kv_memory != 0) {
    if (o.kv_memory < page_bytes)
      return make_error(ErrorCode::invalid_argument,
                        "ModelOptions::kv_memory of {} bytes holds no page; one takes {}",
                        o.kv_memory, page_bytes);
    return o.kv_memory / page_bytes * kPageTokens;
  }
  const std::uint64_t pages = (info.context + kPageTokens - 1) / kPageTokens;
  return pages * kPageTokens * o.sessions;
}

/// A template that cannot be compiled is no error of the load: calls that need it answer with it.
static void load_chat_template(const Vocabulary& vocabulary, ModelState& state) {
  const auto text = [&](std::optional<Token> token) {
    return std::string(token ? state.tokenizer->piece_bytes(*token) : std::string_view());
  };
  state.bos_text = text(vocabulary.bos);
  state.eos_text = text(vocabulary.eos);
  if (vocabulary.chat_template.empty()) return;
  auto compiled = ChatTemplate::compile(vocabulary.chat_template);
  if (compiled)
    state.chat_template = *std::move(compiled);
  else
    state.chat_error = compiled.error();
}

static Status load_vocabulary(const Gguf& file, const LoadCallbacks& callbacks, ModelState& state) {
  Result<Vocabulary> vocabulary = read_vocabulary(file);
  if (!vocabulary) {
    // Without a usable vocabulary the model still runs on token ids.
    if (vocabulary.error().code() != ErrorCode::unsupported) return vocabulary.error();
    state.tokenizer_error = vocabulary.error();
    return {};
  }
  if (callbacks.options.default_pre_tokenizer && vocabulary->model == "gpt2" &&
      find_pre_tokenizer(vocabulary->pre) == nullptr) {
    callbacks.warn(
        "the pre-tokenizer '{}' (tokenizer.ggml.pre) is not known; '{}' is taken, and "
        "the tokens of a text may be unusual for the model",
        vocabulary->pre.substr(0, 64), kDefaultPreTokenizer);
    vocabulary->pre = kDefaultPreTokenizer;
  }
  auto tokenizer = Tokenizer::create(*vocabulary);
  if (tokenizer) {
    state.tokenizer = *std::move(tokenizer);
    state.gemma_chat = wants_gemma_chat(*vocabulary, state.info.architecture);
    load_chat_template(*vocabulary, state);
  } else if (tokenizer.error().code() == ErrorCode::unsupported) {
    state.tokenizer_error = tokenizer.error();
  } else {
    return tokenizer.error();
  }
  state.info.n_vocab = vocabulary->tokens.size();
  for (Token t = 0; static_cast<std::size_t>(t) < vocabulary->tokens.size(); ++t) {
    const bool ends = state.tokenizer != nullptr ? state.tokenizer->is_end(t)
                                                 : t == vocabulary->eos || t == vocabulary->eot;
    if (ends) state.end_tokens.push_back(t);
  }
  return {};
}

static Status load_engine(std::shared_ptr<const Gguf> file, const ModelOptions& options,
                          LoadCallbacks& callbacks, ModelState& state) {
  DECANT_ASSIGN(ModelSpec spec, read_model_spec(*file));
  const std::size_t n_tokens = state.info.n_vocab;  // of the tokenizer; 0: there is none
  if (n_tokens > static_cast<std::size_t>(spec.n_vocab))
    return make_error(ErrorCode::invalid_file,
                      "{}: the tokenizer has {} entries, token_embd.weight only {} rows",
                      file->name(), n_tokens, spec.n_vocab);

  ModelInfo& info = state.info;
  info.n_layers = spec.layers.size();
  info.n_embd = static_cast<std::size_t>(spec.n_embd);
  info.n_heads = static_cast<std::size_t>(spec.layers[0].n_heads);
  info.n_kv_heads = static_cast<std::size_t>(spec.layers[0].n_kv_heads);
  info.head_dim = static_cast<std::size_t>(spec.layers[0].key_dim);
  info.n_vocab = static_cast<std::size_t>(spec.n_vocab);
  info.trained_context = spec.trained_context;
  info.context =
      options.context != 0 ? options.context : std::min(info.trained_context, kDefaultContext);
  if (info.context > info.trained_context)
    callbacks.warn("a context of {} tokens is more than the {} the model was trained on",
                   info.context, info.trained_context);

  EngineOptions engine;
  const bool reference = options.backend == decant::Backend::reference;
  const KvType automatic = reference ? KvType::f32 : KvType::f16;
  engine.keys = options.kv_keys == KvType::automatic ? automatic : options.kv_keys;
  engine.values = options.kv_values == KvType::automatic ? automatic : options.kv_values;
  if (!reference) {
    DECANT_ASSIGN(engine.kernels, cpu_kernels(options.isa));
    info.isa = engine.kernels->name;
  }
  engine.max_positions = static_cast<int>(info.context);
  auto pool = options.executor != nullptr
                  ? std::make_unique<ThreadPool>(*options.executor)
                  : std::make_unique<ThreadPool>(options.threads != 0
                                                     ? options.threads
                                                     : std::min(processor_count(), kMaxThreads));
  engine.chunk = static_cast<int>(options.chunk);
  engine.activations = options.activations;
  engine.profile = options.profile;
  info.kv_bytes_per_token = KvCache::bytes_per_token(spec.kv_groups, engine.keys, engine.values);
  for (const KvGroupSpec& group : spec.kv_groups)
    info.kv_groups.push_back({group.layers.size(), static_cast<std::size_t>(group.window),
                              KvCache::bytes_per_token({&group, 1}, engine.keys, engine.values)});
  DECANT_ASSIGN(engine.kv_tokens, pool_tokens(options, info));

  WeightOptions how;
  how.pack = !reference && !options.mapped;
  how.mapped = options.mapped;
  how.pool = pool.get();
  how.progress = LoadCallbacks::progress;
  how.progress_user = &callbacks;
  DECANT_ASSIGN(LoadedWeights weights, LoadedWeights::load(*file, spec, how));
  info.parameters = weights.parameters();
  info.layer_weight_bytes = static_cast<std::size_t>(weights.layer_bytes());
  info.head_weight_bytes = static_cast<std::size_t>(weights.head_bytes());
  info.layer_parameters = weights.layer_elements();
  if (!options.mapped) file = nullptr;
  DECANT_ASSIGN(state.engine, Engine::create(std::move(file), std::move(spec), std::move(weights),
                                             std::move(pool), engine));
  if (n_tokens != 0) state.engine->set_sampled_width(n_tokens);
  info.kv_pool_bytes = state.engine->kv()->pool_bytes();
  return {};
}

static Result<std::shared_ptr<ModelState>> load_model(Result<Gguf> opened,
                                                      const ModelOptions& options) {
  if (!opened) return opened.error();
  const auto file = std::make_shared<const Gguf>(*std::move(opened));
  auto state = std::make_shared<ModelState>();
  DECANT_ASSIGN(state->info.architecture, file->string("general.architecture", ""));
  DECANT_ASSIGN(state->info.name, file->string("general.name", ""));
  LoadCallbacks callbacks{options};
  DECANT_TRY(load_vocabulary(*file, callbacks, *state));
  if (!options.vocabulary_only) DECANT_TRY(load_engine(file, options, callbacks, *state));
  if (!LoadCallbacks::progress(&callbacks, 1.0f))
    return make_error(ErrorCode::callback_failed, "{}: the progress callback cancelled the load",
                      file->name());
  return state;
}

}  // namespace detail

using namespace detail;

Model::Model(std::shared_ptr<ModelState> state) noexcept : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

template <class Source>
static Result<std::shared_ptr<ModelState>> open_and_load(Source&& open,
                                                         const ModelOptions& options) {
  return guarded([&]() -> Result<std::shared_ptr<ModelState>> {
    DECANT_TRY(check_options(options));
    return load_model(open(), options);
  });
}

Result<Model> Model::load(std::string_view path, const ModelOptions& options) {
  DECANT_ASSIGN(auto state,
                open_and_load([&] { return Gguf::open(path, options.mapped); }, options));
  return Model(std::move(state));
}

Result<Model> Model::load(std::span<const std::byte> file, const ModelOptions& options) {
  DECANT_ASSIGN(auto state, open_and_load([&] { return Gguf::open(file); }, options));
  return Model(std::move(state));
}

Result<Model> Model::load(std::span<Reader* const> parts, const ModelOptions& options) {
  if (options.mapped)
    return Error(ErrorCode::invalid_argument,
                 "ModelOptions::mapped needs a path or memory, not a Reader");
  DECANT_ASSIGN(auto state, open_and_load([&] { return Gguf::open(parts); }, options));
  return Model(std::move(state));
}

Result<FileInfo> Model::inspect(std::string_view path) {
  return guarded([&]() -> Result<FileInfo> {
    DECANT_ASSIGN(const Gguf file, Gguf::open(path, false));
    FileInfo info;
    info.format = "GGUF v";
    info.format += std::to_string(file.version());
    DECANT_ASSIGN(info.architecture, file.string("general.architecture", ""));
    DECANT_ASSIGN(info.tokenizer, file.string("tokenizer.ggml.model", ""));
    DECANT_ASSIGN(const std::string_view pre, file.string("tokenizer.ggml.pre", ""));
    if (!pre.empty()) info.tokenizer += "/" + std::string(pre);
    DECANT_ASSIGN(info.chat_template, file.string("tokenizer.chat_template", ""));
    for (const GgufTensor& tensor : file.tensors()) {
      const TensorTypeInfo* type = tensor_type_info(tensor.type);
      FileInfo::Tensor shown{
          tensor.name, std::string(type == nullptr ? "unknown" : type->name), {}};
      for (int d = tensor.n_dims; d-- > 0;)
        shown.shape.push_back(tensor.shape[static_cast<std::size_t>(d)]);
      info.parameters += tensor.elements();
      info.tensors.push_back(std::move(shown));
    }
    info.metadata = file.describe();
    return info;
  });
}

const ModelInfo& Model::info() const noexcept { return state_->info; }

ModelMetrics Model::metrics() const noexcept {
  return state_->engine != nullptr ? state_->engine->metrics() : Profile().metrics();
}

Result<std::vector<Token>> Model::tokenize(std::string_view text,
                                           const TextOptions& options) const {
  return guarded([&]() -> Result<std::vector<Token>> {
    DECANT_TRY(state_->need_tokenizer());
    const Tokenizer& tokenizer = *state_->tokenizer;
    std::vector<Token> tokens;
    if (options.add_bos && tokenizer.add_bos()) tokens.push_back(*tokenizer.bos());
    const TextSpan span{text, options.special};
    DECANT_TRY(tokenizer.tokenize({&span, 1}, tokens));
    if (options.add_eos && tokenizer.closing()) tokens.push_back(*tokenizer.closing());
    return tokens;
  });
}

Result<std::string> Model::detokenize(std::span<const Token> tokens) const {
  return guarded([&]() -> Result<std::string> {
    DECANT_TRY(state_->need_tokenizer());
    std::string text;
    DECANT_TRY(state_->tokenizer->detokenize(tokens, text));
    return text;
  });
}

Result<std::string> Model::render(std::span<const Message> messages,
                                  bool add_generation_prompt) const {
  return guarded([&]() -> Result<std::string> {
    DECANT_ASSIGN(const std::vector<TextPart> parts,
                  render_conversation(*state_, messages, add_generation_prompt));
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    return text;
  });
}

Result<Session> Model::session() {
  return guarded([&]() -> Result<Session> {
    if (state_->engine == nullptr)
      return make_error(ErrorCode::invalid_state,
                        "the model was loaded with vocabulary_only; load it whole for sessions");
    auto session = std::make_shared<SessionState>();
    session->model = state_;
    session->sequence = std::make_shared<Sequence>(state_->engine->kv(), state_->info.context);
    return Session(std::move(session));
  });
}

}  // namespace decant
