// Runs requests on a model: one worker thread, woken on demand, asleep otherwise. Each step takes
// the next tokens of all requests in flight through one pass over the weights: decoding sequences
// first, the rest of the rows for prompts in chunks. A failure ends only the request at fault.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "backend/cpu/kernels.hpp"
#include "base/thread_pool.hpp"
#include "model/weights.hpp"
#include "sample/sampler.hpp"
#include "schedule/profile.hpp"
#include "schedule/request.hpp"

namespace decant::detail {

struct EngineOptions {
  const CpuKernels* kernels = nullptr;  // null: the reference backend
  int max_positions = 1;                // of a sequence
  int chunk = 512;                      // prompt tokens in one pass
  KvConfig kv;
  Activations activations = Activations::int8;
  bool profile = false;
};

class Engine {
 public:
  /// `file`: what mapped weights point into, or null. Errors: out_of_memory, unsupported (no
  /// backend).
  static Result<std::shared_ptr<Engine>> create(std::shared_ptr<const Gguf> file, ModelSpec spec,
                                                LoadedWeights weights,
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
  std::uint64_t backend_bytes() const { return backend_->memory_bytes(); }
  ModelMetrics metrics() const { return profile_.metrics(); }
  bool on_worker() const { return std::this_thread::get_id() == worker_.get_id(); }

  using Requests = std::list<std::shared_ptr<Request>>;
  /// The requests must be ready to run: their sequences have pending tokens.
  void submit(Requests requests) noexcept;
  /// Only these are sampled: ids of the tokenizer, not of padding.
  void set_sampled_width(std::size_t n) { sampled_width_ = n; }

 private:
  // The rows of one request in a pass.
  struct Share {
    Request* request;
    std::size_t n_rows;
  };

  Engine() = default;
  void loop() noexcept;
  void step() noexcept;
  void plan(bool decoding) noexcept;
  bool waits_for_prefix(const Request& request) const;
  Status add_rows(Request& request, std::size_t n_rows);
  bool run_pass() noexcept;
  void commit(const Share& share) noexcept;
  Result<Token> choose(Request& request);
  void end(Request& request, FinishReason reason, Error error) noexcept;

  std::shared_ptr<const Gguf> file_;
  ModelSpec spec_;
  LoadedWeights weights_;
  std::shared_ptr<KvCache> kv_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::pair<Operation, int>> operations_;  // of a pass, with their layers
  std::size_t max_rows_ = 0;
  std::size_t sampled_width_ = 0;
  Profile profile_;

  std::mutex mutex_;
  std::condition_variable wake_;
  Requests incoming_;               // guarded by mutex_
  std::uint64_t n_submitted_ = 0;  // the same
  std::atomic<bool> quit_{false};
  std::thread worker_;

  // The worker's own.
  Requests active_;
  std::vector<Row> rows_;
  std::vector<const std::int32_t* const*> tables_;
  std::vector<Share> shares_;
  SamplerWorkspace workspace_;
};

}  // namespace decant::detail
