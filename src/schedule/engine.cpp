#include "schedule/engine.hpp"

#include <algorithm>
#include <limits>

#include "backend/cpu/cpu.hpp"
#include "backend/reference/reference.hpp"
#include "base/float_mode.hpp"
#include "model/fingerprint.hpp"
#include "model/forward.hpp"

namespace decant::detail {

static Result<std::unique_ptr<Backend>> engine_backend(const ModelSpec& spec,
                                                       const LoadedWeights& weights, int n_workers,
                                                       const EngineOptions& options, bool measure) {
  BackendLimits limits;
  limits.max_rows = options.chunk;
  limits.max_positions = options.max_positions;
  limits.max_sequences = static_cast<int>(options.max_batch);
  limits.n_sampled = options.n_sampled;
  limits.n_workers = n_workers;
  limits.activations = options.activations;
  limits.measure = measure;
  if (options.cuda) return make_cuda_backend(spec, weights.weights(), limits, options.cuda_options);
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

int Engine::n_samplers(int n_workers, const EngineOptions& options) {
  constexpr std::size_t kMost = 8;  // a workspace is large
  if (options.cuda) return 1;       // most tokens are chosen on the device
  return static_cast<int>(
      std::min({static_cast<std::size_t>(n_workers), options.max_batch, kMost}));
}

Result<std::shared_ptr<Engine>> Engine::create(std::shared_ptr<const Gguf> file, ModelSpec spec,
                                               WeightOptions weights,
                                               std::unique_ptr<ThreadPool> pool,
                                               const EngineOptions& options) {
  const std::shared_ptr<Engine> engine(new Engine(options));
  engine->spec_ = std::move(spec);
  engine->pool_ = std::move(pool);
  engine->max_rows_ = static_cast<std::size_t>(options.chunk);
  // Shapes are enough to make the backend, which keeps the weights or knows where they will be.
  weights.measure = true;
  DECANT_ASSIGN(engine->weights_, LoadedWeights::load(*file, engine->spec_, weights));
  DECANT_ASSIGN(engine->backend_, engine_backend(engine->spec_, engine->weights_,
                                                 engine->pool_->n_workers(), options, false));
  KvConfig kv = options.kv;
  DECANT_ASSIGN(const std::uint64_t kv_bytes, KvCache::pool_bytes(engine->spec_.kv_groups, kv));
  DECANT_ASSIGN(kv.memory, engine->backend_->take_pages(kv_bytes));
  weights.measure = false;
  weights.pool = engine->pool_.get();
  weights.store = engine->backend_->weight_store();
  DECANT_ASSIGN(engine->weights_, LoadedWeights::load(*file, engine->spec_, weights));
  DECANT_ASSIGN(engine->fingerprint_, model_fingerprint(*file));
  for (const std::uint64_t word :
       {options.rounding, static_cast<std::uint64_t>(options.activations)})
    engine->fingerprint_ = hash_word(engine->fingerprint_, word);
  kv.salt = hash_word(hash_word(engine->fingerprint_, static_cast<std::uint64_t>(kv.keys)),
                      static_cast<std::uint64_t>(kv.values));
  if (weights.mapped) engine->file_ = std::move(file);
  DECANT_ASSIGN(engine->kv_, KvCache::create(engine->spec_.kv_groups, kv));
  engine->kv_->set_access(*engine->backend_);
  engine->overlaps_ = !options.manual && engine->backend_->runs_by_itself();
  if (options.profile) engine->profile_.enable();
  forward(static_cast<int>(engine->spec_.layers.size()),
          [&](Operation op, int layer) { engine->operations_.emplace_back(op, layer); });
  engine->rows_.reserve(engine->max_rows_);
  engine->tables_.reserve(engine->max_rows_);
  engine->shares_.reserve(engine->max_rows_ + options.max_batch);
  engine->order_.reserve(options.max_batch);
  engine->unpublished_.reserve(options.max_batch);
  engine->choices_.shares.reserve(options.max_batch);
  engine->workspaces_.resize(
      static_cast<std::size_t>(n_samplers(engine->pool_->n_workers(), options)));
  for (SamplerWorkspace& workspace : engine->workspaces_)
    workspace.fit(static_cast<std::size_t>(engine->spec_.n_vocab));
  // The worker keeps the engine alive until it ends.
  if (!options.manual) engine->worker_ = std::thread([engine] { engine->loop(); });
  return engine;
}

void Engine::shutdown() noexcept {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (options_.manual) {
    stepper_ = std::this_thread::get_id();
    end_all();
  } else if (is_stepping_here()) {
    worker_.detach();
  } else if (worker_.joinable()) {
    worker_.join();
  }
}

void Engine::end_all() noexcept {
  pool_->drop();
  shares_.clear();
  phase_ = Phase::planning;
  take_incoming();
  for (Requests* list : {&active_, &waiting_})
    while (!list->empty()) end(*list->front(), FinishReason::cancelled, {});
  unpublished_.clear();
}

// ------------------------------------------------------------------------------------ who steps

/// The right to step, if nobody else has it. Not inside a step.
class Engine::Stepping {
 public:
  explicit Stepping(Engine& engine) : engine_(engine), lock_(engine.step_mutex_, std::try_to_lock) {
    if (lock_) engine_.stepper_ = std::this_thread::get_id();
  }
  ~Stepping() {
    if (lock_) engine_.stepper_ = std::thread::id();
  }
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> lock_;
  const FloatMode mode_;
};

void Engine::loop() noexcept {
  const FloatMode mode;
  stepper_ = std::this_thread::get_id();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return quit_ || n_in_flight_ != 0; });
    }
    if (quit_) break;
    advance(kNoDeadline, {});
  }
  end_all();
}

// A budget must leave room for this before another pass is planned in it.
static constexpr std::chrono::microseconds kPlanTime{50};
// Calls of `step` that a pass with prompts should take at most.
static constexpr int kStepsOfPass = 10;
static constexpr std::chrono::nanoseconds kShortBudget = std::chrono::milliseconds(1),
                                          kLongBudget = std::chrono::seconds(1);

Result<bool> Engine::step(std::chrono::nanoseconds budget) noexcept {
  if (!options_.manual)
    return Error(ErrorCode::invalid_state,
                 "this model steps by itself; load it with ModelOptions::mode = manual");
  if (is_stepping_here())
    return Error(ErrorCode::would_block, "step inside a callback would step inside itself");
  const Stepping stepping(*this);
  if (!stepping)
    return Error(ErrorCode::busy, "another thread is stepping this model; one is enough");
  const Clock::time_point begin = Clock::now();
  budget = std::max(budget, std::chrono::nanoseconds(0));
  const Clock::time_point deadline = budget < kNoDeadline - begin ? begin + budget : kNoDeadline;
  // Short passes end soon and have short items; with a long budget neither matters.
  const auto wanted = budget > kLongBudget ? std::chrono::nanoseconds(0)
                                           : kStepsOfPass * std::max(budget, kShortBudget);
  while (advance(deadline, wanted) &&
         (deadline == kNoDeadline || Clock::now() + kPlanTime + pass_.item_time() < deadline)) {
  }
  const std::lock_guard lock(mutex_);
  return n_in_flight_ != 0;
}

void Engine::wait(const Request& request, bool for_text) noexcept {
  const auto ready = [&] {
    return request.shared.finished || (for_text && !request.shared.ready.empty());
  };
  std::unique_lock lock(request.mutex);
  if (!options_.manual) return request.changed.wait(lock, ready);
  while (!ready()) {
    lock.unlock();
    bool stepped = false;
    if (const Stepping stepping(*this); stepping) {
      advance(kNoDeadline, {});
      stepped = true;
    }
    lock.lock();
    // Someone else is stepping, and may stop at any time.
    if (!stepped) request.changed.wait_for(lock, std::chrono::milliseconds(1), ready);
  }
}

void Engine::settle(Request& request) noexcept {
  if (is_stepping_here()) return;
  if (!options_.manual) {
    if (request.is_dropped()) wait(request);
    return;
  }
  while (!request.is_finished()) {
    if (!request.is_prompt && request.wants_to_end(Clock::now()) == FinishReason::none) return;
    if (const Stepping stepping(*this); stepping) {
      take_incoming();
      sweep();
      return;
    }
    if (!request.is_dropped()) return;
    std::unique_lock lock(request.mutex);
    request.changed.wait_for(lock, std::chrono::milliseconds(1),
                             [&] { return request.shared.finished; });
  }
}

// ----------------------------------------------------------------------------------------- a step

/// A pass from plan to commit, or what of it fits before the deadline; goes on with one that was
/// left unfinished. True if it came to its end. `wanted`: see plan.
bool Engine::advance(Clock::time_point deadline, std::chrono::nanoseconds wanted) noexcept {
  profile_.resume();
  take_incoming();
  sweep();
  bool did_something = false;
  if (phase_ == Phase::planning) {
    profile_.start();
    admit();
    plan(wanted);
    if (rows_.empty()) publish();
    if (shares_.empty()) return false;
    n_committed_ = 0;
    if (rows_.empty()) {
      begin_choices();
    } else {
      backend_->begin({rows_, tables_, kv_->views()});
      pass_.begun = 0;
      pass_time_ = {};
      phase_ = Phase::running;
    }
  }
  if (phase_ == Phase::running) {
    const Clock::time_point begin = Clock::now();
    const bool finished = pool_->run(pass_, deadline);
    publish();
    did_something = true;
    if (!finished) {
      pass_time_ += Clock::now() - begin;
      profile_.stop();
      return false;
    }
    if (!pass_.complete()) {  // given up
      shares_.clear();
      phase_ = Phase::planning;
      return false;
    }
    const Status status = backend_->finish();
    if (overlaps_) sweep();  // before more tokens of replies that a callback has ended
    phase_ = Phase::planning;
    if (!status) {
      fail_pass(status.error());
      profile_.stop();
      return true;
    }
    pass_time_ += Clock::now() - begin;
    profile_.enter(Profile::kOther);
    pace_.note(n_decoding_, rows_.size() - n_decoding_, pass_time_);
    begin_choices();
  }
  if (phase_ == Phase::choosing) {
    const bool fits =
        !did_something || deadline == kNoDeadline || Clock::now() + choices_.item_time() < deadline;
    did_something = true;
    if (!fits || !pool_->run(choices_, deadline)) {
      profile_.stop();
      return false;
    }
    phase_ = Phase::committing;
  }
  const bool all = commit_shares(deadline, !did_something);
  if (all) {
    counts_.steps.fetch_add(rows_.empty() ? 0 : 1, std::memory_order_relaxed);
    counts_.rows.fetch_add(rows_.size(), std::memory_order_relaxed);
    counts_.sequences.fetch_add(tables_.size(), std::memory_order_relaxed);
    shares_.clear();
    phase_ = Phase::planning;
  }
  profile_.stop();
  return all;
}

/// Tokens that need nothing but the logits are chosen together, if there are several.
void Engine::begin_choices() noexcept {
  choices_.shares.clear();
  choices_.end = 0;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const Share& share = shares_[i];
    const Request& request = *share.request;
    if (share.left == nullptr && request.wants_only_sampling() && !request.choice &&
        request.sequence->pending() == share.n_rows)
      choices_.shares.push_back(i);
  }
  const bool together = choices_.shares.size() > 1 && workspaces_.size() > 1;
  phase_ = together ? Phase::choosing : Phase::committing;
}

std::size_t Engine::Choices::next() noexcept {
  begin = end;
  end = std::min(shares.size(), begin + engine.workspaces_.size());
  return end - begin;
}

/// What fails is left to the commit.
void Engine::Choices::run(std::size_t item, int) noexcept {
  const Share& share = engine.shares_[shares[begin + item]];
  if (share.left != nullptr) return;
  try {
    if (const Result<Token> token = engine.sample(*share.request, engine.workspaces_[item]))
      share.request->choice.emplace().token = *token;
  } catch (...) {
  }
}

/// False if the deadline came near before all were committed.
bool Engine::commit_shares(Clock::time_point deadline, bool at_least_one) noexcept {
  for (; n_committed_ < shares_.size(); at_least_one = false) {
    const Clock::time_point begin = deadline == kNoDeadline ? deadline : Clock::now();
    if (deadline != kNoDeadline && !at_least_one && begin + commit_time_ > deadline) return false;
    // Counted first: a request that ends here does not leave the pass.
    const Share& share = shares_[n_committed_++];
    if (share.left == nullptr) commit(share);
    if (deadline != kNoDeadline)
      commit_time_ = ThreadPool::about_longest(commit_time_, Clock::now() - begin);
  }
  return true;
}

/// Nothing of the pass counts: its sequences stay as they were, its requests end.
void Engine::fail_pass(const Error& error) noexcept {
  for (n_committed_ = 0; n_committed_ < shares_.size();) {
    const Share& share = shares_[n_committed_++];
    if (share.left == nullptr) end(*share.request, FinishReason::none, error);
  }
  shares_.clear();
}

std::size_t Engine::Pass::next() noexcept {
  // Without anybody who waits for its outcome, a pass is given up.
  bool wanted = false;
  for (const Share& share : engine.shares_)
    wanted = wanted || (share.left == nullptr && !share.request->is_cancelled());
  while (!complete() && wanted && !engine.quit_.load(std::memory_order_relaxed)) {
    const auto [op, layer] = engine.operations_[begun / 2];
    if (begun % 2 == 0) engine.profile_.enter(static_cast<std::size_t>(op));
    const std::size_t n = begun % 2 == 0 ? engine.backend_->count_prologue(op, layer)
                                         : engine.backend_->count(op, layer);
    ++begun;
    if (n != 0) return n;
  }
  return 0;
}

void Engine::Pass::run(std::size_t item, int worker) noexcept {
  const std::size_t stage = begun - 1;
  const auto [op, layer] = engine.operations_[stage / 2];
  if (stage % 2 == 0)
    engine.backend_->run_prologue(op, layer, item, worker);
  else
    engine.backend_->run(op, layer, item, worker);
}

void Engine::commit(const Share& share) noexcept {
  Request& request = *share.request;
  Sequence& sequence = *request.sequence;
  sequence.advance(share.n_rows);
  const bool in_prompt = sequence.tokens.size() <= request.n_prompt;
  if (in_prompt) request.n_run += share.n_rows;
  if (sequence.pending() != 0) return;
  if (in_prompt) sequence.kv.keep_windows();
  if (request.is_prompt) return branch(request);
  if (request.n_logits != 0) return end(request, FinishReason::none, {});
  if (in_prompt) {
    counts_.prompt_tokens.fetch_add(request.n_prompt, std::memory_order_relaxed);
    counts_.cached_tokens.fetch_add(request.n_prompt - std::min(request.n_prompt, request.n_run),
                                    std::memory_order_relaxed);
  }
  try {
    const Result<Token> token = choose(request);
    if (!token) return end(request, FinishReason::none, token.error());
    counts_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
    FinishReason reason = request.accept(*token);
    if (reason == FinishReason::none && overlaps_ && request.options.process_logits == nullptr)
      return unpublished_.push_back(share.request);
    request.publish();
    if (request.has_failed()) reason = FinishReason::stopped;  // becomes an error at the end
    if (reason != FinishReason::none) end(request, reason, {});
  } catch (...) {
    end(request, FinishReason::none, current_exception_error());
  }
}

/// What the last pass left to publish. Those that have ended since were published then.
void Engine::publish() noexcept {
  for (const auto& request : unpublished_) request->publish();
  unpublished_.clear();
}

/// The prompt of several replies was run: each goes on from there as a request of its own.
void Engine::branch(Request& prompt) noexcept {
  for (bool first = true; !prompt.samples.empty(); first = false) {
    Request& sample = *prompt.samples.front();
    Error error;
    try {
      sample.go_on_from(prompt, first);
    } catch (...) {
      error = current_exception_error();
    }
    put_in_line(prompt.samples);
    if (error) end(sample, FinishReason::none, std::move(error));
  }
  end(prompt, FinishReason::none, {});
}

Result<Token> Engine::choose(Request& request) {
  if (const auto choice = std::exchange(request.choice, {})) {
    if (choice->token < 0) return no_valid_token(static_cast<std::size_t>(spec_.n_vocab));
    return choice->token;
  }
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
  return sample(request, workspaces_[0]);
}

Result<Token> Engine::sample(Request& request, SamplerWorkspace& workspace) {
  // Padding behind the tokenizer's last id may stand in a prompt but is never chosen.
  std::fill(request.logits.begin() + options_.n_sampled, request.logits.end(),
            -std::numeric_limits<float>::infinity());
  const std::span<const Token> history = request.sequence->tokens;
  return sample_token(request.options.sampler, request.logits, history, request.seed,
                      history.size(), workspace);
}

void Engine::read_metrics(ModelMetrics& m) const noexcept {
  profile_.read(m);
  const auto of = [](const auto& count) { return count.load(std::memory_order_relaxed); };
  m.steps = of(counts_.steps);
  m.step_rows = of(counts_.rows);
  m.step_sequences = of(counts_.sequences);
  m.prompt_tokens = of(counts_.prompt_tokens);
  m.cached_tokens = of(counts_.cached_tokens);
  m.generated_tokens = of(counts_.generated_tokens);
  m.replies = of(counts_.replies);
  m.preemptions = of(counts_.preemptions);
  const std::lock_guard lock(mutex_);
  m.running = n_running_;
  m.waiting = n_in_flight_ - n_running_;
}

}  // namespace decant::detail
