#include "schedule/engine.hpp"

#include <limits>

#include "backend/cpu/cpu.hpp"
#include "backend/reference/reference.hpp"
#include "base/float_mode.hpp"
#include "model/forward.hpp"

namespace decant::detail {

static Result<std::unique_ptr<Backend>> engine_backend(const ModelSpec& spec,
                                                       const LoadedWeights& weights, int n_workers,
                                                       const EngineOptions& options, bool measure) {
  const BackendLimits limits{options.chunk, options.max_positions, n_workers, options.activations,
                             measure};
  auto backend = options.kernels != nullptr
                     ? make_cpu_backend(spec, weights.weights(), limits, *options.kernels)
                     : make_reference_backend(spec, weights.weights(), limits);
  if (backend == nullptr)
    return make_error(
        ErrorCode::unsupported,
        "the reference backend is not part of this build; configure with DECANT_EIGEN=ON");
  return backend;
}

Result<std::uint64_t> Engine::measure_backend(const ModelSpec& spec, const LoadedWeights& weights,
                                              int n_workers, const EngineOptions& options) {
  DECANT_ASSIGN(const auto backend, engine_backend(spec, weights, n_workers, options, true));
  return backend->memory_bytes();
}

Result<std::shared_ptr<Engine>> Engine::create(std::shared_ptr<const Gguf> file, ModelSpec spec,
                                               LoadedWeights weights,
                                               std::unique_ptr<ThreadPool> pool,
                                               const EngineOptions& options) {
  const std::shared_ptr<Engine> engine(new Engine);
  engine->file_ = std::move(file);
  engine->spec_ = std::move(spec);
  engine->weights_ = std::move(weights);
  engine->max_rows_ = static_cast<std::size_t>(options.chunk);
  engine->sampled_width_ = static_cast<std::size_t>(engine->spec_.n_vocab);
  DECANT_ASSIGN(engine->kv_, KvCache::create(engine->spec_.kv_groups, options.kv));
  DECANT_ASSIGN(engine->backend_,
                engine_backend(engine->spec_, engine->weights_, pool->n_workers(), options, false));
  engine->pool_ = std::move(pool);
  engine->kv_->set_access(*engine->backend_);
  if (options.profile) engine->profile_.enable();
  forward(static_cast<int>(engine->spec_.layers.size()),
          [&](Operation op, int layer) { engine->operations_.emplace_back(op, layer); });
  engine->rows_.reserve(engine->max_rows_);
  engine->tables_.reserve(engine->max_rows_);
  engine->shares_.reserve(engine->max_rows_);
  // The worker keeps the engine alive until it ends.
  engine->worker_ = std::thread([engine] { engine->loop(); });
  return engine;
}

void Engine::shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (on_worker())
    worker_.detach();
  else if (worker_.joinable())
    worker_.join();
}

void Engine::submit(Requests requests) noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& request : requests) request->number = ++n_submitted_;
    incoming_.splice(incoming_.end(), requests);
  }
  wake_.notify_all();
}

void Engine::loop() noexcept {
  const FloatMode mode;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return quit_ || !incoming_.empty() || !active_.empty(); });
      active_.splice(active_.end(), incoming_);
    }
    if (quit_) break;
    step();
  }
  for (const auto& request : active_) request->finish(FinishReason::cancelled, {});
  active_.clear();
}

void Engine::step() noexcept {
  profile_.start();
  for (auto at = active_.begin(); at != active_.end();) {
    Request& request = **at++;  // ending a request takes it out of the list
    const Request::Asked asked = request.asked.load(std::memory_order_relaxed);
    if (asked == Request::Asked::cancel) end(request, FinishReason::cancelled, {});
    if (asked == Request::Asked::stop) end(request, FinishReason::stopped, {});
  }
  rows_.clear();
  tables_.clear();
  shares_.clear();
  plan(true);
  plan(false);
  if (shares_.empty() || !run_pass()) return;
  profile_.enter(Profile::kOther);
  for (const Share& share : shares_) commit(share);
  // Whoever found no room goes first next time.
  if (active_.size() > 1) active_.splice(active_.end(), active_, active_.begin());
  profile_.stop();
}

/// Gives rows to the sequences that decode (one token to go), or to the others.
void Engine::plan(bool decoding) noexcept {
  for (auto at = active_.begin(); at != active_.end() && rows_.size() < max_rows_;) {
    Request& request = **at++;
    if ((request.sequence->pending() == 1) != decoding) continue;
    // Rows whose logits are asked for run in any case.
    if (!decoding && request.sequence->pending() > request.n_wanted()) {
      request.resume();
      if (waits_for_prefix(request)) continue;
    }
    const std::size_t pending = request.sequence->pending();
    const Status added = add_rows(request, std::min(pending, max_rows_ - rows_.size()));
    if (!added) end(request, FinishReason::none, added.error());
  }
}

/// Whether another request in flight is running the very tokens of this one's next page: then this
/// one takes the page from the prefix tree when it is full. Who is furthest goes on, of equals the
/// one that came first.
bool Engine::waits_for_prefix(const Request& request) const {
  const Sequence& own = *request.sequence;
  const std::size_t begin = own.computed() / kPageTokens * kPageTokens, end = begin + kPageTokens;
  if (!kv_->has_tree() || end + request.n_wanted() > own.tokens.size()) return false;
  for (const auto& active : active_) {
    const Sequence& other = *active->sequence;
    if (active.get() == &request || other.tokens.size() < end || !own.kv.same_path(other.kv) ||
        !std::equal(own.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                    own.tokens.begin() + static_cast<std::ptrdiff_t>(end),
                    other.tokens.begin() + static_cast<std::ptrdiff_t>(begin)))
      continue;
    if (other.computed() > own.computed() ||
        (other.computed() == own.computed() && active->number < request.number))
      return true;
  }
  return false;
}

Status Engine::add_rows(Request& request, std::size_t n_rows) {
  Sequence& sequence = *request.sequence;
  DECANT_TRY(sequence.kv.reserve(sequence.computed() + n_rows));
  const std::size_t n_tokens = sequence.tokens.size(), n_wanted = request.n_wanted();
  float* const wanted = request.n_logits == 0 ? request.logits.data() : request.logits_out;
  for (std::size_t i = 0; i < n_rows; ++i) {
    const std::size_t position = sequence.computed() + i;
    float* logits = nullptr;
    if (position + n_wanted >= n_tokens)
      logits = wanted + (position + n_wanted - n_tokens) * static_cast<std::size_t>(spec_.n_vocab);
    rows_.push_back({static_cast<std::int32_t>(tables_.size()), static_cast<std::int32_t>(position),
                     sequence.tokens[position], logits});
  }
  tables_.push_back(sequence.kv.block_tables());
  shares_.push_back({&request, n_rows});
  return {};
}

/// One forward pass over the planned rows; false if it was given up.
bool Engine::run_pass() noexcept {
  // Two stages for each operation: its prologue, then its items.
  struct Pass final : ThreadPool::Stages {
    Engine& engine;
    std::size_t begun = 0;  // stages

    explicit Pass(Engine& e) : engine(e) {}
    bool complete() const { return begun == 2 * engine.operations_.size(); }
    std::size_t next() noexcept override {
      while (!complete() && !engine.quit_.load(std::memory_order_relaxed)) {
        const auto [op, layer] = engine.operations_[begun / 2];
        if (begun % 2 == 0) engine.profile_.enter(static_cast<std::size_t>(op));
        const std::size_t n = begun % 2 == 0 ? engine.backend_->count_prologue(op, layer)
                                             : engine.backend_->count(op, layer);
        ++begun;
        if (n != 0) return n;
      }
      return 0;
    }
    void run(std::size_t item, int worker) noexcept override {
      const std::size_t stage = begun - 1;
      const auto [op, layer] = engine.operations_[stage / 2];
      if (stage % 2 == 0)
        engine.backend_->run_prologue(op, layer, item, worker);
      else
        engine.backend_->run(op, layer, item, worker);
    }
  };
  backend_->begin({rows_, tables_, kv_->views()});
  Pass pass(*this);
  pool_->run(pass);
  return pass.complete();
}

void Engine::commit(const Share& share) noexcept {
  Request& request = *share.request;
  Sequence& sequence = *request.sequence;
  sequence.advance(share.n_rows);
  const bool in_prompt = sequence.tokens.size() <= request.n_prompt;
  if (in_prompt) request.n_run += share.n_rows;
  if (sequence.pending() != 0) return;
  if (in_prompt) sequence.kv.keep_windows();
  if (request.n_logits != 0) return end(request, FinishReason::none, {});
  try {
    const Result<Token> token = choose(request);
    if (!token) return end(request, FinishReason::none, token.error());
    const FinishReason reason = request.accept(*token);
    if (reason != FinishReason::none) end(request, reason, {});
  } catch (...) {
    end(request, FinishReason::none, current_exception_error());
  }
}

Result<Token> Engine::choose(Request& request) {
  const std::span<const Token> history = request.sequence->tokens;
  const GenerateOptions& options = request.options;
  if (options.process_logits != nullptr) {
    bool going_on = false;
    try {
      going_on = options.process_logits(options.process_logits_user, history, request.logits);
    } catch (...) {
      return make_error(ErrorCode::callback_failed, "process_logits threw an exception");
    }
    if (!going_on) return make_error(ErrorCode::callback_failed, "process_logits ended the reply");
  }
  const FloatMode mode;  // the callback may have left another
  // Padding behind the tokenizer's last id may stand in a prompt but is never chosen.
  std::fill(request.logits.begin() + static_cast<std::ptrdiff_t>(sampled_width_),
            request.logits.end(), -std::numeric_limits<float>::infinity());
  return sample_token(options.sampler, request.logits, history, request.seed, history.size(),
                      workspace_);
}

void Engine::end(Request& request, FinishReason reason, Error error) noexcept {
  const auto at = std::find_if(active_.begin(), active_.end(),
                               [&](const auto& active) { return active.get() == &request; });
  Requests ended;
  ended.splice(ended.end(), active_, at);
  request.finish(reason, std::move(error));
}

}  // namespace decant::detail
