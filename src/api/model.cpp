#include <cmath>

#include "api/chat.hpp"
#include "backend/cpu/pack.hpp"
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

/// Of a model without an executor.
static int own_threads(const ModelOptions& o) {
  return o.threads != 0 ? o.threads : std::min(processor_count(), kMaxThreads);
}

static Status check_options(const ModelOptions& o) {
  const auto wrong = [](std::string_view field, std::string_view wanted) {
    return make_error(ErrorCode::invalid_argument, "ModelOptions::{} must be {}", field, wanted);
  };
  if (o.threads < 0 || o.threads > kMaxThreads) return wrong("threads", "0 to 64");
  if (o.context > kMaxContext) return wrong("context", "at most 2^24");
  if (o.chunk < 1 || o.chunk > 4096) return wrong("chunk", "1 to 4096");
  if (o.max_batch < 1 || o.max_batch > 1024) return wrong("max_batch", "1 to 1024");
  if (o.mode != RunMode::background && o.mode != RunMode::manual)
    return wrong("mode", "background or manual");
  if (o.batching != BatchPolicy::continuous && o.batching != BatchPolicy::fixed)
    return wrong("batching", "continuous or fixed");
  if (o.sessions < 1 || o.sessions > 65536) return wrong("sessions", "1 to 65536");
  const auto known = [](KvType t) {
    return t == KvType::automatic || t == KvType::f32 || t == KvType::f16 || t == KvType::bf16 ||
           t == KvType::int8;
  };
  if (!known(o.kv_keys) || !known(o.kv_values)) return wrong("kv_keys and kv_values", "a KvType");
  if (o.backend != decant::Backend::cpu && o.backend != decant::Backend::reference &&
      o.backend != decant::Backend::cuda && o.backend != decant::Backend::cuda_host)
    return wrong("backend", "cpu, reference or cuda");
  if (o.device < 0) return wrong("device", "0 or above");
  const bool cuda = o.backend == decant::Backend::cuda || o.backend == decant::Backend::cuda_host;
  if (cuda && o.mapped) return wrong("mapped", "off with the cuda backend, which copies weights");
  if (o.activations != Activations::int8 && o.activations != Activations::int16)
    return wrong("activations", "int8 or int16");
  if (o.backend != decant::Backend::cpu && !o.isa.empty())
    return wrong("isa", "empty: only the cpu backend has instruction sets");
  return {};
}

static Status check_int8(const ModelSpec& spec, const KvConfig& kv, std::string_view file) {
  for (const KvGroupSpec& group : spec.kv_groups) {
    const bool keys = kv.keys == KvType::int8 && group.key_dim % 8 != 0;
    if (keys || (kv.values == KvType::int8 && group.value_dim % 8 != 0))
      return make_error(ErrorCode::unsupported,
                        "{}: {} of {} channels a head cannot be int8, only multiples of 8; "
                        "choose f16 or bf16",
                        file, keys ? "keys" : "values", keys ? group.key_dim : group.value_dim);
  }
  return {};
}

/// Pages of each group: as many as kv_memory holds, or enough for all sessions at full length. Of a
/// window, a session needs what its next pass sees; four states more are kept for each, so that it
/// can go back to the ends of its last turns.
static Result<std::vector<std::size_t>> pool_pages(const ModelOptions& o, const ModelInfo& info,
                                                   const ModelSpec& spec) {
  const std::uint64_t page_bytes =
      static_cast<std::uint64_t>(info.kv_bytes_per_token) * kPageTokens;
  if (o.kv_memory != 0) {
    if (o.kv_memory < page_bytes)
      return make_error(ErrorCode::invalid_argument,
                        "ModelOptions::kv_memory of {} bytes holds no page; one takes {}",
                        o.kv_memory, page_bytes);
    return std::vector<std::size_t>(spec.kv_groups.size(), o.kv_memory / page_bytes);
  }
  const auto pages_for = [](std::size_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  const std::size_t all = pages_for(info.context);
  std::vector<std::size_t> pages;
  for (const KvGroupSpec& group : spec.kv_groups) {
    const std::size_t window = pages_for(static_cast<std::size_t>(group.window)) + 1;
    const std::size_t wanted =
        group.window == 0 ? all
                          : std::min(all, (1 + kKeptStates) * window + pages_for(o.chunk) + 1);
    pages.push_back(wanted * o.sessions);
  }
  return pages;
}

/// Pages of each group in the swap space: of all groups the same part of the pool.
static Result<std::vector<std::size_t>> swap_pages(std::size_t memory, std::uint64_t pool_bytes,
                                                   std::span<const std::size_t> pool_pages) {
  std::vector<std::size_t> pages;
  if (memory == 0) return pages;
  for (const std::size_t n : pool_pages) {
    const std::uint64_t share = (pool_bytes + n - 1) / n;  // of all groups, for a page of this one
    pages.push_back(static_cast<std::size_t>(memory / share));
    if (pages.back() == 0 || pages.back() > INT32_MAX)
      return make_error(ErrorCode::invalid_argument,
                        "ModelOptions::swap_memory of {} bytes is {} pages, {} bytes each; 1 to "
                        "2^31 - 1 are possible, or 0 bytes",
                        memory, pages.back(), share);
  }
  return pages;
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
  vocabulary->pattern = callbacks.options.pre_tokenizer_pattern;
  if (callbacks.options.default_pre_tokenizer && vocabulary->pattern.empty() &&
      vocabulary->model == "gpt2" && find_pre_tokenizer(vocabulary->pre) == nullptr) {
    callbacks.warn(
        "the pre-tokenizer '{}' (tokenizer.ggml.pre) is not known; '{}' is taken, and "
        "the tokens of a text may be unusual for the model",
        vocabulary->pre.substr(0, 64), kDefaultPreTokenizer);
    vocabulary->pre = kDefaultPreTokenizer;
  }
  for (const std::string& warning : vocabulary->warnings) callbacks.warn("{}", warning);
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
  if (state.tokenizer != nullptr) {
    const std::span<const Token> ends = state.tokenizer->end_tokens();
    state.end_tokens.assign(ends.begin(), ends.end());
  } else {
    for (const auto& end :
         {std::min(vocabulary->eos, vocabulary->eot), std::max(vocabulary->eos, vocabulary->eot)})
      if (end && (state.end_tokens.empty() || state.end_tokens.back() != *end))
        state.end_tokens.push_back(*end);
  }
  return {};
}

/// What the options make of a file: all that is known before anything large is taken.
struct EngineSetup {
  ModelSpec spec;
  EngineOptions engine;
  WeightOptions weights;
  std::uint64_t kv_bytes = 0;
};

static Result<EngineSetup> set_up_engine(const Gguf& file, const ModelOptions& options,
                                         const LoadCallbacks& callbacks, ModelInfo& info) {
  EngineSetup setup;
  DECANT_ASSIGN(setup.spec, read_model_spec(file));
  const ModelSpec& spec = setup.spec;
  // So far this is the tokenizer's number; 0: there is none.
  if (info.n_vocab > static_cast<std::size_t>(spec.n_vocab))
    return make_error(ErrorCode::invalid_file,
                      "{}: the tokenizer has {} entries, token_embd.weight only {} rows",
                      file.name(), info.n_vocab, spec.n_vocab);

  EngineOptions& engine = setup.engine;
  engine.n_sampled = info.n_vocab != 0 ? static_cast<int>(info.n_vocab) : spec.n_vocab;
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

  const bool reference = options.backend == decant::Backend::reference;
  const KvType automatic = reference ? KvType::f32 : KvType::f16;
  KvConfig& kv = engine.kv;
  kv.keys = options.kv_keys == KvType::automatic ? automatic : options.kv_keys;
  kv.values = options.kv_values == KvType::automatic ? automatic : options.kv_values;
  kv.prefix_cache = options.prefix_cache;
  kv.touched = options.mode == RunMode::manual;
  DECANT_TRY(check_int8(spec, kv, file.name()));
  engine.cuda =
      options.backend == decant::Backend::cuda || options.backend == decant::Backend::cuda_host;
  engine.cuda_options = {options.backend == decant::Backend::cuda_host, options.device,
                         options.stream};
  if (options.backend == decant::Backend::cpu) {
    DECANT_ASSIGN(engine.kernels, cpu_kernels(options.isa));
    info.isa = engine.kernels->name;
  }
  engine.max_positions = static_cast<int>(info.context);
  engine.chunk = static_cast<int>(options.chunk);
  engine.activations = options.activations;
  engine.profile = options.profile;
  engine.manual = options.mode == RunMode::manual;
  engine.batching = options.batching;
  engine.max_batch = options.max_batch;
  engine.max_queue = options.max_queue;
  info.kv_bytes_per_token = KvCache::bytes_per_token(spec.kv_groups, kv.keys, kv.values);
  for (const KvGroupSpec& group : spec.kv_groups)
    info.kv_groups.push_back({group.layers.size(), static_cast<std::size_t>(group.window),
                              KvCache::bytes_per_token({&group, 1}, kv.keys, kv.values)});
  DECANT_ASSIGN(kv.pages, pool_pages(options, info, spec));
  if (options.kv_memory == 0)  // else one for each page
    kv.nodes = (info.context + kPageTokens - 1) / kPageTokens * options.sessions;
  DECANT_ASSIGN(setup.kv_bytes, KvCache::pool_bytes(spec.kv_groups, kv));
  DECANT_ASSIGN(kv.swap_pages, swap_pages(options.swap_memory, setup.kv_bytes, kv.pages));
  if (!reference && !options.mapped)
    setup.weights.packing = engine.cuda ? &kCudaPacking : &kCpuPacking;
  setup.weights.mapped = options.mapped;
  return setup;
}

/// `weights` and `backend`: bytes, of the real ones or of measured ones.
static MemoryPlan memory_plan(const ModelState& state, const EngineSetup& setup, int n_workers,
                              std::uint64_t weights, std::uint64_t backend) {
  const KvConfig& kv = setup.engine.kv;
  const std::span<const KvGroupSpec> groups = setup.spec.kv_groups;
  MemoryPlan plan;
  plan.weights_bytes = weights;
  plan.tokenizer_bytes = state.tokenizer == nullptr ? 0 : state.tokenizer->memory_bytes();
  plan.kv_bytes_per_token = state.info.kv_bytes_per_token;
  plan.page_tokens = kPageTokens;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const ModelInfo::KvGroup& group = state.info.kv_groups[g];
    plan.groups.push_back({group.n_layers, group.window, group.bytes_per_token, kv.pages[g]});
  }
  plan.kv_bytes = setup.kv_bytes;
  plan.swap_bytes = KvCache::swap_bytes(groups, kv);
  const int n_samplers = Engine::n_samplers(n_workers, setup.engine);
  plan.workspace_bytes = backend + KvCache::table_bytes(groups, kv) +
                         static_cast<std::uint64_t>(n_samplers) *
                             SamplerWorkspace::bytes(static_cast<std::size_t>(setup.spec.n_vocab));
  plan.total_bytes = plan.weights_bytes + plan.tokenizer_bytes + plan.kv_bytes + plan.swap_bytes +
                     plan.workspace_bytes;
  if (setup.weights.mapped)
    plan.notes.push_back(
        "weights stay in the mapped file, which the system may drop and read again");
  for (const MemoryPlan::Group& group : plan.groups)
    if (group.window != 0)
      plan.notes.push_back("layers with a window of " + std::to_string(group.window) +
                           " tokens keep that many, not the whole context");
  plan.notes.push_back("stacks of threads, and the tokens and texts of each session, come on top");
  return plan;
}

static Status load_engine(std::shared_ptr<const Gguf> file, const ModelOptions& options,
                          LoadCallbacks& callbacks, ModelState& state) {
  ModelInfo& info = state.info;
  DECANT_ASSIGN(EngineSetup setup, set_up_engine(*file, options, callbacks, info));
  auto pool = options.executor != nullptr ? std::make_unique<ThreadPool>(*options.executor)
                                          : std::make_unique<ThreadPool>(own_threads(options));
  setup.weights.progress = LoadCallbacks::progress;
  setup.weights.progress_user = &callbacks;
  setup.engine.rounding = options.backend == decant::Backend::reference ? 1
                          : options.backend == decant::Backend::cpu     ? 2
                          : options.backend == decant::Backend::cuda    ? 3
                                                                        : 4;
  const int n_workers = pool->n_workers();
  DECANT_ASSIGN(state.engine, Engine::create(std::move(file), setup.spec, setup.weights,
                                             std::move(pool), setup.engine));
  const LoadedWeights& weights = state.engine->weights();
  info.parameters = weights.parameters();
  info.layer_weight_bytes = static_cast<std::size_t>(weights.layer_bytes());
  info.head_weight_bytes = static_cast<std::size_t>(weights.head_bytes());
  info.layer_parameters = weights.layer_elements();
  info.kv_pool_bytes = state.engine->kv()->pool_bytes();
  const KvConfig& kv = setup.engine.kv;
  state.snapshot_shape = {state.engine->fingerprint(), kv.keys, kv.values, {}};
  for (const KvView& view : state.engine->kv()->views())
    state.snapshot_shape.groups.push_back(
        {static_cast<std::uint64_t>(view.window), view.page_stride});
  state.memory =
      memory_plan(state, setup, n_workers, weights.memory_bytes(), state.engine->backend_bytes());
  return {};
}

static Result<MemoryPlan> measure_model(const Gguf& file, const ModelOptions& options) {
  ModelState state;
  DECANT_ASSIGN(state.info.architecture, file.string("general.architecture", ""));
  ModelOptions quiet = options;
  quiet.log = nullptr;
  const LoadCallbacks callbacks{quiet};
  DECANT_TRY(load_vocabulary(file, callbacks, state));
  DECANT_ASSIGN(EngineSetup setup, set_up_engine(file, options, callbacks, state.info));
  setup.weights.measure = true;
  DECANT_ASSIGN(const LoadedWeights weights, LoadedWeights::load(file, setup.spec, setup.weights));
  const int n_workers = std::clamp(
      options.executor != nullptr ? options.executor->concurrency() : own_threads(options), 1,
      kMaxThreads);
  DECANT_ASSIGN(const std::uint64_t backend,
                Engine::measure_backend(setup.spec, weights, n_workers, setup.engine));
  return memory_plan(state, setup, n_workers, weights.memory_bytes(), backend);
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
Model& Model::operator=(Model&& other) noexcept {
  Model old(std::move(other));
  std::swap(state_, old.state_);
  return *this;
}
Model::~Model() { drop_state(state_, state_.get()); }

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

Result<MemoryPlan> Model::plan(std::string_view path, const ModelOptions& options) {
  return guarded([&]() -> Result<MemoryPlan> {
    DECANT_TRY(check_options(options));
    DECANT_ASSIGN(const Gguf file, Gguf::open_headers(path));
    return measure_model(file, options);
  });
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

MemoryPlan Model::memory() const { return state_->memory; }

ModelMetrics Model::metrics() const noexcept {
  ModelMetrics metrics;
  if (state_->engine == nullptr || state_->is_forked()) {
    Profile().read(metrics);
    return metrics;
  }
  state_->engine->read_metrics(metrics);
  const KvCache& kv = *state_->engine->kv();
  int group = 0;
  while (group + 1 < kv.n_groups() && kv.views()[static_cast<std::size_t>(group)].window != 0)
    ++group;
  if (kv.views()[static_cast<std::size_t>(group)].window != 0) group = 0;
  const KvCounters counters = kv.counters();
  metrics.kv_pages = kv.n_pages(group);
  metrics.kv_pages_used = metrics.kv_pages - kv.free_pages(group);
  metrics.kv_copied_pages = counters.copied_pages;
  metrics.kv_evicted_pages = counters.evicted_nodes;
  metrics.kv_swapped_pages = kv.swapped_pages();
  metrics.kv_swapped_out_pages = counters.swapped_pages;
  return metrics;
}

Result<std::vector<Token>> Model::tokenize(std::string_view text,
                                           const TextOptions& options) const {
  return guarded(*state_, [&]() -> Result<std::vector<Token>> {
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
  return guarded(*state_, [&]() -> Result<std::string> {
    DECANT_TRY(state_->need_tokenizer());
    std::string text;
    DECANT_TRY(state_->tokenizer->detokenize(tokens, text));
    return text;
  });
}

Result<std::string> Model::render(std::span<const Message> messages,
                                  bool add_generation_prompt) const {
  return guarded(*state_, [&]() -> Result<std::string> {
    DECANT_ASSIGN(const std::vector<TextPart> parts,
                  render_conversation(*state_, messages, add_generation_prompt));
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    return text;
  });
}

Result<bool> Model::step(std::chrono::nanoseconds budget) {
  return guarded(*state_, [&]() -> Result<bool> {
    const std::shared_ptr<ModelState> state = state_;  // a callback may drop this Model
    DECANT_TRY(state->need_engine());
    return state->engine->step(budget);
  });
}

void Model::unpin_prefixes() noexcept {
  if (state_->is_forked()) return;
  const std::lock_guard lock(state_->pins_mutex);
  state_->pins.clear();
}

Result<Session> Model::session() {
  return guarded(*state_, [&]() -> Result<Session> {
    DECANT_TRY(state_->need_engine());
    auto session = std::make_shared<SessionState>();
    session->model = state_;
    session->sequence = std::make_shared<Sequence>(state_->engine->kv(), state_->info.context);
    return Session(std::move(session));
  });
}

}  // namespace decant
