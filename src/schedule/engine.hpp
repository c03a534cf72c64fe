// Runs requests on a model, in steps. A step: plan (who runs, with how many rows), reserve pages,
// run the rows through one pass over the weights, commit. What fails before the commit leaves every
// sequence as it was, and only the request at fault ends with its error.
//
// In background mode a thread of the engine steps whenever there is something to do, and sleeps
// otherwise. In manual mode the host's threads do, one at a time. A step with a deadline may stop
// anywhere in a pass or between two commits; the next one goes on there. A request that ends
// meanwhile leaves the pass with a copy of its sequence: the pages that the pass writes are freed
// when it is over.
//
// In background mode, with a backend that runs by itself, a commit only takes tokens in; they are
// published while the next pass runs. Replies that end with them are not kept waiting, and those
// that a callback ends leave the pass before its commit.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "backend/cpu/kernels.hpp"
#include "backend/cuda/cuda.hpp"
#include "base/thread_pool.hpp"
#include "model/weights.hpp"
#include "sample/sampler.hpp"
#include "schedule/profile.hpp"
#include "schedule/request.hpp"

namespace decant::detail {

struct EngineOptions {
  const CpuKernels* kernels = nullptr;  // of the CPU backend
  bool cuda = false;                    // neither of the two: the reference backend
  std::uint64_t rounding = 0;           // another number for each backend: pages are not exchanged
  CudaOptions cuda_options;
  int max_positions = 1;  // of a sequence
  int n_sampled = 0;      // ids of the tokenizer, not of padding: only these are chosen
  int chunk = 512;        // prompt tokens in one pass
  KvConfig kv;
  Activations activations = Activations::int8;
  bool profile = false;
  bool manual = false;
  BatchPolicy batching = BatchPolicy::continuous;
  std::size_t max_batch = 64, max_queue = SIZE_MAX;
};

class Engine {
 public:
  using Clock = ThreadPool::Clock;
  static constexpr Clock::time_point kNoDeadline = ThreadPool::kNoDeadline;

  /// Loads the weights from `file`, which is kept if they are mapped; `weights.pool` becomes
  /// `pool`. What the backend does not know is told before they are read. Errors: those of
  /// LoadedWeights::load and of the backend.
  static Result<std::shared_ptr<Engine>> create(std::shared_ptr<const Gguf> file, ModelSpec spec,
                                                WeightOptions weights,
                                                std::unique_ptr<ThreadPool> pool,
                                                const EngineOptions& options);
  /// What the backend of such an engine would take. Errors: unsupported.
  static Result<std::uint64_t> measure_backend(const ModelSpec& spec, const LoadedWeights& weights,
                                               int n_workers, const EngineOptions& options);
  /// Ends all requests as cancelled and the worker with them. On the worker itself (inside a
  /// callback) the worker ends when the callback has returned.
  void shutdown() noexcept;

  const ModelSpec& spec() const { return spec_; }
  const std::shared_ptr<KvCache>& kv() const { return kv_; }
  const LoadedWeights& weights() const { return weights_; }
  /// Of the model and how it is computed; without the types of the KV cache.
  const Hash128& fingerprint() const { return fingerprint_; }
  std::uint64_t backend_bytes() const { return backend_->memory_bytes(); }
  void read_metrics(ModelMetrics& metrics) const noexcept;
  /// Whether this thread is in a step, that is inside a callback.
  bool is_stepping_here() const { return stepper_.load() == std::this_thread::get_id(); }

  /// The requests must be ready to run: their sequences have pending tokens. Errors: queue_full,
  /// out_of_memory (the pool cannot hold what one of them needs, whatever others do); then none of
  /// them was taken.
  Status submit(Requests requests) noexcept;
  /// How many tokens the host chooses at a time.
  static int n_samplers(int n_workers, const EngineOptions& options);

  /// Manual mode: steps for so long, at least a little. Whether requests are left. Errors:
  /// invalid_state (background mode), would_block (inside a callback), busy (another thread steps).
  Result<bool> step(std::chrono::nanoseconds budget) noexcept;
  /// Until the request has ended or, if asked for, has text to take; in manual mode by stepping.
  void wait(const Request& request, bool for_text = false) noexcept;
  /// A request that shall end has ended, unless someone else is stepping and its handle is still
  /// there, or this is a callback.
  void settle(Request& request) noexcept;

 private:
  enum class Phase : std::uint8_t { planning, running, choosing, committing };
  /// The rows of one request in a pass.
  struct Share {
    std::shared_ptr<Request> request;
    std::size_t n_rows = 0;
    std::shared_ptr<Sequence> left = nullptr;  // of a request that ended: what the pass writes into
  };
  /// The pass as stages: for each operation its prologue, then its items.
  struct Pass final : ThreadPool::Stages {
    Engine& engine;
    std::size_t begun = 0;  // stages
    explicit Pass(Engine& e) : engine(e) {}
    bool complete() const { return begun == 2 * engine.operations_.size(); }
    std::size_t next() noexcept override;
    void run(std::size_t item, int worker) noexcept override;
  };
  /// Tokens of a pass that the host chooses, as many at a time as there are workspaces.
  struct Choices final : ThreadPool::Stages {
    Engine& engine;
    std::vector<std::size_t> shares;  // whose tokens
    std::size_t begin = 0, end = 0;   // of them, in this stage
    explicit Choices(Engine& e) : engine(e) {}
    std::size_t next() noexcept override;
    void run(std::size_t item, int worker) noexcept override;
  };
  /// The right to step, if nobody else has it.
  class Stepping;

  explicit Engine(const EngineOptions& options)
      : options_(options), pass_(*this), choices_(*this) {}
  void loop() noexcept;
  void end_all() noexcept;
  bool advance(Clock::time_point deadline, std::chrono::nanoseconds wanted) noexcept;
  void begin_choices() noexcept;
  bool commit_shares(Clock::time_point deadline, bool at_least_one) noexcept;
  void fail_pass(const Error& error) noexcept;
  void commit(const Share& share) noexcept;
  void publish() noexcept;
  void branch(Request& prompt) noexcept;
  Result<Token> choose(Request& request);
  Result<Token> sample(Request& request, SamplerWorkspace& workspace);

  // admission.cpp: who is in the batch, and who has pages.
  void take_incoming() noexcept;
  void put_in_line(Requests& from) noexcept;
  void sweep_samples(Request& prompt, Clock::time_point now) noexcept;
  void sweep() noexcept;
  void admit() noexcept;
  Status find_pages(Request& request) noexcept;
  void plan(std::chrono::nanoseconds wanted) noexcept;
  bool waits_for_prefix(const Request& request) const;
  std::size_t reserve(Request& request, std::size_t n_rows) noexcept;
  template <class Condition>
  Request* last_in_line(const Request& but, Condition condition) noexcept;
  void preempt(Request& request) noexcept;
  void add_share(Request& request, std::size_t n_rows);
  void add_rows(const Share& share);
  bool leave_pass(Request& request) noexcept;
  void end(Request& request, FinishReason reason, Error error) noexcept;

  const EngineOptions options_;
  std::shared_ptr<const Gguf> file_;
  ModelSpec spec_;
  LoadedWeights weights_;
  Hash128 fingerprint_;
  std::shared_ptr<KvCache> kv_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::pair<Operation, int>> operations_;  // of a pass, with their layers
  std::size_t max_rows_ = 0;
  bool overlaps_ = false;  // a pass and the publishing of the one before
  Profile profile_;
  struct {
    std::atomic<std::uint64_t> steps{0}, rows{0}, sequences{0}, prompt_tokens{0}, cached_tokens{0},
        generated_tokens{0}, replies{0}, preemptions{0};
  } counts_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  Requests incoming_;
  std::uint64_t n_submitted_ = 0;
  std::size_t n_in_flight_ = 0, n_running_ = 0;
  bool open_ = true;  // admission
  std::atomic<bool> quit_{false};
  std::thread worker_;
  std::mutex step_mutex_;  // manual mode: held by the thread that steps
  std::atomic<std::thread::id> stepper_{};

  // Of whoever steps.
  Requests active_, waiting_;  // the latter in the order of comes_before
  Phase phase_ = Phase::planning;
  std::uint64_t step_ = 0;
  std::vector<Request*> order_;
  std::vector<Row> rows_;
  std::vector<const std::int32_t* const*> tables_;
  std::vector<Share> shares_;
  std::size_t n_committed_ = 0;                        // of the shares
  std::size_t n_decoding_ = 0;                         // of the rows
  std::vector<std::shared_ptr<Request>> unpublished_;  // their tokens were accepted
  Pass pass_;
  Clock::duration pass_time_{};
  Clock::duration commit_time_{std::chrono::microseconds(50)};  // that one may take
  Pace pace_;
  Choices choices_;
  std::vector<SamplerWorkspace> workspaces_;  // [n_samplers]
};

}  // namespace decant::detail
