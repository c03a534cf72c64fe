/// Decant: language models inside your own process.
///
///   auto model   = decant::Model::load("model.gguf").value();
///   auto session = model.session().value();
///   session.append(decant::Message{"user", "Why is the sky blue?"}).value();
///   auto reply   = session.generate({.max_tokens = 200}).value();
///   while (auto piece = reply.next()) std::cout << *piece << std::flush;
///
/// Three classes do the work: Model (weights, tokenizer, engine), Session (one sequence of tokens
/// with its KV pages) and Sampler (how the next token is chosen). Every call that can fail returns
/// a Result; the library never throws, prints or ends the process. Paths and texts are UTF-8.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define DECANT_VERSION_MAJOR 0
#define DECANT_VERSION_MINOR 1
#define DECANT_VERSION_PATCH 0

#if defined(_WIN32) && defined(DECANT_SHARED)
#if defined(DECANT_BUILDING)
#define DECANT_API __declspec(dllexport)
#else
#define DECANT_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) && !defined(_WIN32)
#define DECANT_API __attribute__((visibility("default")))
#else
#define DECANT_API
#endif

namespace decant {

namespace detail {
struct ErrorText;
struct ModelState;
struct SessionState;
struct ReplyState;
}  // namespace detail

/// The index of an entry of the model's vocabulary.
using Token = std::int32_t;

/// What kind of failure it was. New codes are appended; the numbers never change.
enum class ErrorCode : int {
  none = 0,
  invalid_argument = 1,     ///< an argument or option is out of its range
  invalid_state = 2,        ///< the object cannot do this now (for example text after messages)
  busy = 3,                 ///< a reply is in flight on this session
  would_block = 4,          ///< waiting inside a callback would wait for itself
  not_found = 5,            ///< no such file
  io = 6,                   ///< reading or writing failed
  invalid_file = 7,         ///< the file's contents break the rules of its format
  unsupported = 8,          ///< well formed, but not something this build can run
  out_of_memory = 9,        ///< the system or the KV pool has no more
  context_full = 10,        ///< more tokens than the session can hold
  no_valid_token = 11,      ///< nothing is left to sample from (all logits -inf or NaN)
  callback_failed = 12,     ///< a callback of the host threw or asked to stop
  internal = 13,            ///< a defect of the library; please report it
  queue_full = 14,          ///< ModelOptions::max_queue requests wait already
  device_unavailable = 15,  ///< no GPU, or no driver, that this build could use
  device_lost = 16,         ///< the GPU failed; load the model again, or on another backend
};

/// The code's name, for example "invalid_argument". Never null.
DECANT_API const char* error_code_name(ErrorCode code) noexcept;

/// A failure: a code and a text of at most 1 KiB that says what, where and how to mend it.
/// Copying shares the text. Thread-safe to copy and to destroy.
class DECANT_API Error {
 public:
  Error() noexcept = default;
  /// A host's own error, for example from its Reader. The text is cut at 1 KiB.
  Error(ErrorCode code, std::string_view text) noexcept;
  Error(const Error& other) noexcept;
  Error(Error&& other) noexcept : text_(std::exchange(other.text_, nullptr)) {}
  Error& operator=(Error other) noexcept {
    std::swap(text_, other.text_);
    return *this;
  }
  ~Error();
  ErrorCode code() const noexcept;  ///< none for a default-constructed Error
  std::string_view message()
      const noexcept;  ///< ends with a zero byte; lives as long as this Error
  explicit operator bool() const noexcept { return text_ != nullptr; }

 private:
  detail::ErrorText* text_ = nullptr;
};

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define DECANT_EXCEPTIONS 1
/// What `value()` throws. The library itself never throws it across its boundary.
class Exception : public std::exception {
 public:
  explicit Exception(Error error) noexcept : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message().data(); }
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};
#endif

/// A value or an Error. `operator*` and `operator->` may be used only when it holds a value;
/// `value()` throws decant::Exception otherwise and exists only where the host has exceptions.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) noexcept : error_(std::move(error)) {}
  explicit operator bool() const noexcept { return value_.has_value(); }
  const Error& error() const noexcept { return error_; }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }
#ifdef DECANT_EXCEPTIONS
  T& value() & {
    if (!value_) throw Exception(error_);
    return *value_;
  }
  T value() && {
    if (!value_) throw Exception(error_);
    return std::move(*value_);
  }
#endif

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() noexcept = default;
  Result(Error error) noexcept : error_(std::move(error)) {}
  explicit operator bool() const noexcept { return !error_; }
  const Error& error() const noexcept { return error_; }
#ifdef DECANT_EXCEPTIONS
  void value() const {
    if (error_) throw Exception(error_);
  }
#endif

 private:
  Error error_;
};
using Status = Result<void>;

// ---------------------------------------------------------------------------------------- model

/// The host's own file: an archive, an encrypted container, a download. Used only during
/// Model::load and Model::inspect, from one thread at a time.
class DECANT_API Reader {
 public:
  virtual ~Reader();
  /// The file's size in bytes; asked once.
  virtual std::uint64_t size() = 0;
  /// Fills `to` with the bytes that begin at `offset`; all of them or an Error.
  virtual Status read(std::uint64_t offset, std::span<std::byte> to) = 0;
  /// A name for error texts.
  virtual std::string_view name() const = 0;
};

/// Runs a model's work on the host's own threads (a job system). It owes no concurrency: the
/// library finishes what the calls leave undone. May be shared by models.
class Executor {
 public:
  virtual ~Executor() = default;
  /// The most threads that will be inside `fn` at a time, 1..64; asked once, at load.
  virtual int concurrency() const noexcept = 0;
  /// Calls fn(context) up to n times: on any threads, at the same time or one after the other.
  /// Returns when all calls it made have returned, and makes none later; an exception counts as a
  /// return. Called by the thread that runs a step, and at load by the loading one: by several at
  /// the same time when models share the executor. No Model may be destroyed inside fn.
  virtual void run(int n, void (*fn)(void* context) noexcept, void* context) = 0;
};

/// cuda: NVIDIA GPUs of compute capability 8.0 and above, in builds with DECANT_CUDA. cuda_host:
/// the same kernels on the processor, very slowly, in programs that are built with the tests.
enum class Backend { cpu, reference, cuda, cuda_host };
/// How keys and values are stored. `automatic` is f16, and f32 for the reference backend. int8:
/// codes with a scale for each token and 64 channels, about half of f16.
enum class KvType { automatic, f32, f16, bf16, int8 };
/// What activations are rounded to where they meet quantised weights on the cpu backend. int8: but
/// int16 in front of q, k and v, in the last layer and in front of the head, where rounding hurts
/// most. int16 everywhere costs more time and is as good as float (docs/performance.md).
enum class Activations { int8, int16 };
/// Who runs a model's steps. background: a thread of its own, asleep when there is nothing to do.
/// manual: the host, with Model::step or by waiting for a reply or for logits; all memory is taken
/// while loading, because a page that the system has yet to find can take longer than a frame.
enum class RunMode { background, manual };
/// When a waiting reply joins those that run. continuous: as soon as there is a place. fixed: when
/// all that run have ended, for comparison: it wastes what short replies leave free.
enum class BatchPolicy { continuous, fixed };
enum class LogLevel { info, warning };

struct ModelOptions {
  Backend backend = Backend::cpu;
  /// Instruction set of the cpu backend: "portable", "avx2", "avx512" or "neon"; empty: the best
  /// this processor has, and for the reference backend. All give the same bits.
  std::string_view isa = {};
  int device = 0;          ///< of the cuda backend: which GPU
  void* stream = nullptr;  ///< of the cuda backend: a cudaStream_t to use, which must outlive the
                           ///< model, its sessions and replies; null: one of its own
  int threads = 0;         ///< 0: one per processor, at most 64
  /// Must outlive the model, its sessions and replies; `threads` is then ignored. Null: the model
  /// has threads of its own, `threads` - 1 of them.
  Executor* executor = nullptr;
  std::size_t context = 0;    ///< tokens a session may hold; 0: min(the model's, 4096)
  std::size_t sessions = 1;   ///< the KV pool holds so many full sessions
  std::size_t kv_memory = 0;  ///< bytes of the KV pool; 0: by `context` and `sessions`
  /// Bytes of host memory, taken at load, where preempted replies leave their pages and from where
  /// they get them back: two copies in place of running the tokens again. What does not fit is run
  /// again, and with 0 everything. Divided among groups of layers as the pool is. Never changes
  /// results.
  std::size_t swap_memory = 0;
  KvType kv_keys = KvType::automatic;
  KvType kv_values = KvType::automatic;
  Activations activations = Activations::int8;
  /// Sessions that begin with the same tokens share their pages, and pages outlive their session
  /// until they are wanted: what was computed once is not computed again. Never changes results.
  bool prefix_cache = true;
  std::size_t chunk = 512;             ///< most tokens in one pass, 1..4096; never changes results
  RunMode mode = RunMode::background;  ///< for the model's whole life
  BatchPolicy batching = BatchPolicy::continuous;
  std::size_t max_batch = 64;        ///< most replies that run at the same time, 1..1024
  std::size_t max_queue = SIZE_MAX;  ///< most that wait for their turn; one more: queue_full
  /// Leave weights in the mapped file, which must not shrink: a file larger than memory can be
  /// used, the same bits come out, but the cpu backend packs rows anew for each pass and is much
  /// slower.
  bool mapped = false;
  bool vocabulary_only = false;  ///< load the tokenizer alone
  /// Where the file names a pre-tokenizer that is not known (tokenizer.ggml.pre): take the one that
  /// files without a name get, with a warning, instead of answering `unsupported` to texts. The
  /// tokens of a text may then be unusual for the model.
  bool default_pre_tokenizer = false;
  /// Or cut texts by this regular expression there (Perl syntax; of the model's tokenizer.json).
  /// Needs a build with DECANT_PCRE2; an expression that is wrong is an error of the load.
  std::string_view pre_tokenizer_pattern = {};
  bool profile = false;  ///< measure the time of each operation: see Model::metrics
  /// Called during load with 0..1, never falling; 1 only on success. Return false to cancel.
  bool (*progress)(void* user, float fraction) = nullptr;
  void* progress_user = nullptr;
  /// Warnings and facts, one line each, from the loading thread. Nothing is printed without it.
  void (*log)(void* user, LogLevel level, std::string_view line) = nullptr;
  void* log_user = nullptr;
};

struct TextOptions {
  bool add_bos = true;  ///< put the begin token in front if the model wants one
  /// Put the end token (or BERT's separator) behind if the model wants one. Sessions never do: the
  /// text goes on.
  bool add_eos = true;
  bool special = true;  ///< text that looks like a special token becomes that token
};

struct ModelInfo {
  std::string architecture;
  std::string name;
  std::uint64_t parameters = 0;
  std::size_t n_layers = 0, n_embd = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, n_vocab = 0;
  std::size_t trained_context = 0;  ///< tokens the model was trained on
  std::size_t context = 0;          ///< tokens a session may hold
  std::string isa;                  ///< instruction set in use; empty for the reference backend
  /// What a pass over the weights reads, as they lie in memory: the matrices of all layers, and the
  /// output head (the embedding table if the two are tied), which only rows with logits need.
  std::size_t layer_weight_bytes = 0, head_weight_bytes = 0;
  std::uint64_t layer_parameters = 0;  ///< elements of the layers' matrices: products per token
  std::size_t kv_bytes_per_token = 0;
  std::size_t kv_pool_bytes = 0;
  /// Layers that keep the same positions.
  struct KvGroup {
    std::size_t n_layers = 0;
    std::size_t window = 0;           ///< positions a token sees, itself included; 0: all before it
    std::size_t bytes_per_token = 0;  ///< of all the group's layers
  };
  std::vector<KvGroup> kv_groups;
};

/// What the engine did since the load.
struct ModelMetrics {
  struct Operation {
    const char* name = "";          ///< static
    std::uint64_t nanoseconds = 0;  ///< of wall time, all threads working on it
    std::uint64_t calls = 0;
  };
  /// embed, qkv, attend, attention_output, gate_up, down, logits, and "other": planning, sampling
  /// and handing out text, one call a step. Filled only with ModelOptions::profile.
  Operation operations[8];
  /// Pages of the first group of layers that sees all positions (or of the first one): those that
  /// sessions and pins hold now, each counted once, and all there are.
  std::size_t kv_pages_used = 0, kv_pages = 0;
  std::uint64_t kv_copied_pages = 0;   ///< before a write into a shared one
  std::uint64_t kv_evicted_pages = 0;  ///< that the prefix cache had to give up
  /// Pages of preempted replies in ModelOptions::swap_memory, of all groups: now, and all that were
  /// copied there.
  std::size_t kv_swapped_pages = 0;
  std::uint64_t kv_swapped_out_pages = 0;

  std::uint64_t steps = 0;           ///< passes over the weights
  std::uint64_t step_rows = 0;       ///< tokens in them, all together
  std::uint64_t step_sequences = 0;  ///< sequences in them: by steps, the mean batch
  std::uint64_t prompt_tokens = 0;   ///< of replies whose prompt is done
  std::uint64_t cached_tokens = 0;   ///< of these, found in the KV cache
  std::uint64_t generated_tokens = 0;
  std::uint64_t replies = 0;             ///< that have ended, in whatever way
  std::uint64_t preemptions = 0;         ///< replies that lost their pages for a while
  std::size_t running = 0, waiting = 0;  ///< replies and calls of logits now

  /// The same in Prometheus' text format (0.0.4), for a host's own endpoint.
  DECANT_API std::string prometheus() const;
};

/// What a file says about itself, from its headers alone.
struct FileInfo {
  struct Tensor {
    std::string name;
    std::string type;
    std::vector<std::uint64_t> shape;  ///< rows first: [out, in]
  };
  std::string format;
  std::string architecture;
  std::uint64_t parameters = 0;
  std::vector<Tensor> tensors;
  std::string tokenizer;
  std::string chat_template;
  std::vector<std::pair<std::string, std::string>>
      metadata;  ///< arrays are shown by type and length
};

/// What a model takes of memory, before it is loaded or once it is: the same numbers.
struct MemoryPlan {
  /// Layers that keep the same positions in one pool of pages.
  struct Group {
    std::size_t layers = 0;
    std::size_t window = 0;           ///< positions a token sees, itself included; 0: all before it
    std::size_t bytes_per_token = 0;  ///< of all the group's layers
    std::size_t pages = 0;
  };
  std::uint64_t weights_bytes = 0;  ///< as they lie in memory; 0 with ModelOptions::mapped
  std::uint64_t tokenizer_bytes = 0;
  std::uint64_t kv_bytes_per_token = 0;  ///< all groups together
  std::size_t page_tokens = 0;           ///< tokens in a page
  std::vector<Group> groups;
  std::uint64_t kv_bytes = 0;         ///< the pools of all groups
  std::uint64_t swap_bytes = 0;       ///< whole pages in ModelOptions::swap_memory
  std::uint64_t workspace_bytes = 0;  ///< of the backend, the sampler and the tables of pages
  std::uint64_t total_bytes = 0;
  std::vector<std::string> notes;  ///< what the numbers do not say, in plain words
};

/// One message of a conversation. `json` may carry an object whose members the chat template sees
/// beside role and content, or instead of them: tool calls, content parts. Its JSON may be nested
/// 96 deep, with 4096 members in an object.
struct Message {
  std::string role;
  std::string content;
  std::string json = {};
};

/// Renders a chat template (Jinja as transformers uses it) on its own. `variables`: a JSON object
/// with messages, tools, add_generation_prompt, bos_token and whatever else the template reads; its
/// member `now` ("2025-07-04T09:05:03") is what strftime_now shows. Limits as of Message::json.
/// Errors: invalid_argument (syntax, and what the template raises), unsupported.
DECANT_API Result<std::string> render_template(std::string_view source, std::string_view variables);

class Session;

/// Weights, tokenizer and the engine that runs them. A cheap, reference-counted, move-only handle:
/// Sessions and Replies keep what they need alive, so any order of destruction is safe.
/// Every member may be called from any thread. In a child process that fork made, all handles
/// answer invalid_state or nothing, and dropping them frees nothing.
class DECANT_API Model {
 public:
  /// Loads a GGUF file, or all its parts when `path` names the first (-00001-of-000NN).
  /// Errors: not_found, io, invalid_file, unsupported, out_of_memory, invalid_argument,
  /// callback_failed (progress returned false).
  static Result<Model> load(std::string_view path, const ModelOptions& options = {});
  /// The same from memory, which need only live until load returns (with `mapped`: as long as the
  /// Model and everything made from it).
  static Result<Model> load(std::span<const std::byte> file, const ModelOptions& options = {});
  /// The same from the host's reader, one for each part of the file, in order.
  static Result<Model> load(std::span<Reader* const> parts, const ModelOptions& options = {});
  /// What `load` with these options would take, from the file's headers alone. Errors: those of
  /// load.
  static Result<MemoryPlan> plan(std::string_view path, const ModelOptions& options = {});
  /// Reads headers only.
  static Result<FileInfo> inspect(std::string_view path);

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const noexcept;
  /// What this model has taken: equal to the plan.
  MemoryPlan memory() const;
  /// Values of a step in progress may be counted in part.
  ModelMetrics metrics() const noexcept;

  /// Token ids of a text (any bytes). Errors: unsupported (a tokenizer this build does not know),
  /// invalid_argument (more than 2^31 - 1 bytes).
  Result<std::vector<Token>> tokenize(std::string_view text, const TextOptions& options = {}) const;
  /// The exact bytes of the tokens, special tokens included. Errors: unsupported,
  /// invalid_argument (an id outside the vocabulary).
  Result<std::string> detokenize(std::span<const Token> tokens) const;
  /// The conversation as the model's prompt. Errors: unsupported, invalid_argument.
  Result<std::string> render(std::span<const Message> messages,
                             bool add_generation_prompt = true) const;

  /// RunMode::manual: runs the model for about so long and returns whether anything is left to do.
  /// It looks at the clock between work items of some 50 microseconds, begins none that would end
  /// too late, and may stop in the middle of a pass, where the next call goes on; it does at least
  /// a little. One thread at a time. Errors: invalid_state (background mode, vocabulary_only),
  /// would_block (inside a callback), busy (another thread is stepping).
  Result<bool> step(std::chrono::nanoseconds budget);

  /// Lets go of all that Session::pin_prefix holds.
  void unpin_prefixes() noexcept;

  /// A new, empty session. Errors: invalid_state (loaded with vocabulary_only), out_of_memory.
  Result<Session> session();

 private:
  friend class Session;
  explicit Model(std::shared_ptr<detail::ModelState> state) noexcept;
  std::shared_ptr<detail::ModelState> state_;
};

// -------------------------------------------------------------------------------------- sampler

/// The steps that turn logits into a distribution, applied in the order of Sampler::order.
enum class SamplerStep : std::uint8_t { penalties, top_k, typical, top_p, min_p, temperature };

/// Different steps, first to last; at most six. A seventh is kept, so that it is found to be a
/// repetition.
class SamplerOrder {
 public:
  constexpr SamplerOrder() noexcept = default;
  constexpr SamplerOrder(std::initializer_list<SamplerStep> steps) noexcept {
    for (const SamplerStep step : steps) push_back(step);
  }
  constexpr explicit SamplerOrder(std::span<const SamplerStep> steps) noexcept {
    for (const SamplerStep step : steps) push_back(step);
  }
  constexpr void push_back(SamplerStep step) noexcept {
    if (size_ < sizeof steps_) steps_[size_++] = step;
  }
  constexpr const SamplerStep* begin() const noexcept { return steps_; }
  constexpr const SamplerStep* end() const noexcept { return steps_ + size_; }
  constexpr std::size_t size() const noexcept { return size_; }

 private:
  SamplerStep steps_[7] = {};
  std::size_t size_ = 0;
};

/// How the next token is chosen. A plain value; also works alone on any span of logits.
/// Each step keeps at least one token. Ties go to the lower id. Random numbers are keyed by
/// (seed, sample_index, position), so a draw does not depend on what happened before it.
struct DECANT_API Sampler {
  float temperature = 1.0f;  ///< finite, >= 0; 0: only the most likely of what is left
  int top_k = 0;             ///< keep the k most likely; <= 0: off
  float top_p = 1.0f;        ///< nucleus; in [0, 1], 1: off
  float min_p = 0.0f;        ///< keep p >= min_p * max(p); in [0, 1], 0: off
  float typical_p = 1.0f;    ///< locally typical sampling (Meister et al. 2022); in [0, 1], 1: off
  float repetition_penalty =
      1.0f;  ///< > 0; divides positive logits, multiplies negative (Keskar et al. 2019)
  float frequency_penalty = 0.0f;       ///< subtracted once per occurrence
  float presence_penalty = 0.0f;        ///< subtracted once if the token occurred
  std::size_t penalty_last = SIZE_MAX;  ///< tokens of history that the penalties look at
  std::optional<std::uint64_t> seed =
      {};                          ///< none: drawn from the system and reported in the stats
  std::uint32_t sample_index = 0;  ///< tells parallel samples of one seed apart
  /// Steps that are left out do not happen.
  SamplerOrder order = {SamplerStep::penalties, SamplerStep::top_k, SamplerStep::typical,
                        SamplerStep::top_p,     SamplerStep::min_p, SamplerStep::temperature};

  static Sampler greedy();    ///< always the most likely token
  static Sampler precise();   ///< facts, code, extraction
  static Sampler balanced();  ///< assistants
  static Sampler creative();  ///< stories, characters

  /// Fields out of range. Called by everything below.
  Status validate() const;
  /// Plain-language warnings about combinations that rarely do what is wanted.
  std::vector<std::string> review() const;
  /// The final distribution, exact 0 for dropped tokens. NaN counts as -inf; if any logit is +inf,
  /// those share everything. Errors: invalid_argument, no_valid_token.
  Result<std::vector<double>> probabilities(std::span<const float> logits,
                                            std::span<const Token> history = {}) const;
  /// Chooses a token. Without a seed, seed 0 is used here. Errors: invalid_argument,
  /// no_valid_token.
  Result<Token> sample(std::span<const float> logits, std::span<const Token> history = {},
                       std::uint64_t position = 0) const;
};

// ---------------------------------------------------------------------------- session and reply

enum class FinishReason {
  none,         ///< still running, or ended by an error: see status()
  end_token,    ///< the model ended its turn
  stop_string,  ///< one of GenerateOptions::stop
  max_tokens,
  context_full,  ///< the session holds as many tokens as it can
  stopped,       ///< stop()
  cancelled,     ///< cancel(), or the Reply was dropped
  timeout,       ///< GenerateOptions::timeout; what came is kept
};
/// The reason's name, for example "end_token". Never null.
DECANT_API const char* finish_reason_name(FinishReason reason) noexcept;

/// How a reply gets pages of the KV pool. optimistic: when it needs them; if there are none, the
/// youngest reply of the lowest priority loses its own and goes on later with the same bits, by
/// running its tokens again. guaranteed: it starts when pages for prompt + max_tokens are set aside
/// for it, and keeps them until its end.
enum class Admission { optimistic, guaranteed };

/// What GenerateOptions::on_text is told.
struct ReplyText {
  std::string_view text;  ///< more text, as Reply::next would give it; empty at the end
  bool finished = false;  ///< the last call for this reply, right before its waiters are released
  FinishReason reason = FinishReason::none;  ///< of the end
  Error error = {};                          ///< of the end: why the reply failed, if it did
};

struct GenerateOptions {
  std::size_t max_tokens = SIZE_MAX;  ///< 0: success with no tokens
  Sampler sampler = {};
  std::vector<std::string> stop =
      {};                   ///< the reply ends before the first of these; none may be empty
  bool ignore_end = false;  ///< go on after the model's end token
  /// What happens when the session is full. None: the reply ends with context_full. Otherwise a
  /// rolling window: the first so many tokens stay, of the others the older half goes, the newer
  /// half is run again at its new positions, and the reply goes on, with the bits that a new
  /// session with the tokens left would give. Costs up to one prompt token more for each new one,
  /// in bursts of half a session. At most the session's capacity - 2. A conversation that is too
  /// long is cut by the same rule before it is answered; its messages all stay. Reply::tokens and
  /// ReplyStats count all of a reply.
  std::optional<std::size_t> keep_first = {};
  int priority = 0;  ///< higher ones start, run their prompts and get pages before others
  std::chrono::nanoseconds timeout{0};  ///< from the call of generate; 0: none
  Admission admission = Admission::optimistic;
  /// May change the logits of each token before the sampler sees them. `history` is the session's
  /// tokens. Runs on the thread that steps the model, without locks. Return false to end with
  /// callback_failed.
  bool (*process_logits)(void* user, std::span<const Token> history,
                         std::span<float> logits) = nullptr;
  void* process_logits_user = nullptr;
  /// Gets the text in place of Reply::next, and exactly one call with `finished` at the end; on the
  /// thread that steps the model or ends the reply, without locks. It may start, stop, cancel and
  /// drop replies; what would wait answers would_block. Return false to stop the reply.
  bool (*on_text)(void* user, const ReplyText& piece) = nullptr;
  void* on_text_user = nullptr;
};

struct ReplyStats {
  std::size_t prompt_tokens = 0;  ///< tokens of the session before the first new one
  std::size_t cached_tokens = 0;  ///< of these, already in the KV cache and not run again
  std::size_t recomputed = 0;     ///< of these, run again because a window's pages were reused
  std::size_t tokens = 0;         ///< tokens generated, an end token included
  std::size_t dropped = 0;        ///< that GenerateOptions::keep_first took out of the session
  double queue_ms = 0;            ///< time from the call of generate to a place in the batch
  double ttft_ms = 0;             ///< time to first token, from the call of generate
  double tpot_ms = 0;             ///< mean time per output token after the first
  double tokens_per_second = 0;   ///< 1000 / tpot_ms
  std::uint64_t seed = 0;         ///< repeats this reply
};

/// A reply in flight. Move-only; dropping it cancels, and the next call on its Session waits for
/// the step that is running (inside a callback it answers `busy`). `stop` and `cancel` may be
/// called from any thread, the rest from one thread at a time.
class DECANT_API Reply {
 public:
  Reply(Reply&&) noexcept;
  Reply& operator=(Reply&&) noexcept;
  ~Reply();

  /// Waits for more text. Whole UTF-8 characters only, except bytes of the model that can never
  /// become one: these pass unchanged, so all pieces together are exactly the detokenised bytes
  /// (cut before a stop string). Empty at the end, on errors (see status()) and inside a callback.
  /// The view lives until the next call on this Reply.
  std::optional<std::string_view> next();
  /// The same without waiting; empty also when nothing is ready yet.
  std::optional<std::string_view> try_next();
  /// Waits until the reply has ended. Errors: that of the reply, would_block inside a callback.
  Status wait();
  /// Ends the reply and keeps what came. Effective within one step.
  void stop() noexcept;
  /// Ends the reply and takes the session back to before generate. Effective within one step.
  void cancel() noexcept;

  bool finished() const noexcept;
  /// Success while running and after a normal end; otherwise why it ended.
  Status status() const;
  FinishReason finish_reason() const noexcept;
  ReplyStats stats() const;
  /// The tokens so far (a copy), an end token included.
  std::vector<Token> tokens() const;

 private:
  friend class Session;
  explicit Reply(std::shared_ptr<detail::ReplyState> state) noexcept;
  std::shared_ptr<detail::ReplyState> state_;
};

struct Sample;

struct SaveOptions {
  /// False: tokens and messages alone, a few KB; keys and values are computed again after restore.
  bool pages = true;
};

/// One sequence of tokens and its KV pages. Move-only; used from one thread at a time. While a
/// Reply is in flight, changing calls answer `busy`. A failed call changes nothing.
class DECANT_API Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Adds a message; the next generate renders the conversation and answers it. A session holds
  /// either messages or raw text and tokens; mixing is invalid_state. Errors: invalid_argument also
  /// for a message without a role and for a `json` that is no object; then nothing changes.
  Status append(const Message& message);
  /// Adds raw text; the first text of a session gets the begin token if the model wants one.
  Status append(std::string_view text, const TextOptions& options = {});
  Status append(std::span<const Token> tokens);

  /// Starts a reply. Errors: busy, invalid_argument, invalid_state (nothing to continue),
  /// context_full, out_of_memory (the KV pool could never hold it), queue_full, unsupported.
  Result<Reply> generate(const GenerateOptions& options = {});

  /// Starts n replies to the same prompt, 1 to 1024, which is run once: sample i has the sampler's
  /// sample_index + i and a session of its own, forked behind the prompt, to which its cancel goes
  /// back. This session stays at the prompt, `busy` until that was run. To go on with one:
  /// session = std::move(sample.session). Errors: those of generate.
  Result<std::vector<Sample>> generate_n(std::size_t n, const GenerateOptions& options = {});

  /// Runs what was appended and gives the logits that predict the next token, [n_vocab]. The span
  /// lives until the next call on this Session. For those who choose tokens themselves.
  Result<std::span<const float>> logits();
  /// Logits after each of the last `rows.size() / n_vocab` tokens, row-major.
  Status logits(std::span<float> rows);

  /// A session of its own with the same first `n_tokens` tokens (SIZE_MAX: all). The two share
  /// memory until one of them writes: a full page is never copied, a last, partial one is copied by
  /// whoever writes into it first. A chat session is forked whole. Errors: busy, invalid_argument,
  /// invalid_state, out_of_memory.
  Result<Session> fork(std::size_t n_tokens = SIZE_MAX);
  /// Keeps the whole pages of the first `n_tokens` tokens (SIZE_MAX: all that were run) in the
  /// prefix cache until Model::unpin_prefixes, whatever becomes of this session. Errors: busy,
  /// invalid_state (not run yet, no prefix cache, pages that came from a snapshot, or a window that
  /// lost what it showed there).
  Status pin_prefix(std::size_t n_tokens = SIZE_MAX);
  /// The session as bytes: tokens, messages and the pages of what was run, for this model with the
  /// same KV types on any machine. Errors: busy, out_of_memory.
  Result<std::vector<std::byte>> save(const SaveOptions& options = {}) const;
  /// The same into a file, which is replaced at once when all is written, or not at all. Errors:
  /// busy, io, out_of_memory.
  Status save(std::string_view path, const SaveOptions& options = {}) const;
  /// Makes this session the one that was saved; it goes on with the same bits. Untrusted bytes are
  /// safe. Errors: busy, invalid_file (not a snapshot, cut or changed), invalid_argument (of
  /// another model or KV type), context_full, out_of_memory; then nothing changes.
  Status restore(std::span<const std::byte> snapshot);
  /// The same from a file. More errors: not_found, io.
  Status restore(std::string_view path);
  /// Sessions of one model together, 1 to 4096 of them: memory that they share (forks, equal
  /// beginnings) is stored once. Errors: those of save, invalid_argument.
  static Result<std::vector<std::byte>> save_all(std::span<const Session* const> sessions,
                                                 const SaveOptions& options = {});
  static Status save_all(std::span<const Session* const> sessions, std::string_view path,
                         const SaveOptions& options = {});
  /// New sessions, equal to those that were saved and in their order, which share that memory
  /// again. All of them or none; a snapshot of one session is fine as well. Untrusted bytes are
  /// safe. Errors: those of restore, invalid_state (loaded with vocabulary_only).
  static Result<std::vector<Session>> restore_all(Model& model,
                                                  std::span<const std::byte> snapshot);
  static Result<std::vector<Session>> restore_all(Model& model, std::string_view path);
  /// Forgets all tokens from position `n_tokens` on, exactly. A chat session rewinds to whole
  /// messages: use it with 0 there. Errors: busy, invalid_argument, invalid_state.
  Status rewind(std::size_t n_tokens);

  /// The tokens so far; while a Reply is in flight, those that stay whatever becomes of it. Lives
  /// until the next call on this Session.
  std::span<const Token> tokens() const noexcept;
  std::span<const Message> messages() const noexcept;  ///< the same

 private:
  friend class Model;
  explicit Session(std::shared_ptr<detail::SessionState> state) noexcept;
  std::shared_ptr<detail::SessionState> state_;
};

/// One of several replies to a prompt: Session::generate_n.
struct Sample {
  Session session;
  Reply reply;
};

}  // namespace decant
