// The engine's decisions between passes: who ends, who comes into the batch, who gets rows, and who
// loses its pages when there are not enough.
#include <algorithm>

#include "schedule/engine.hpp"

namespace decant::detail {

// Rows in a pass that pages are kept for: with more rows at a time windows need more pages.
static constexpr std::size_t kRowsInWork = kPageTokens;

Status Engine::submit(Requests requests) noexcept {
  for (const auto& request : requests) {
    const KvSequence& kv = request->sequence->kv;
    std::size_t n_tokens = std::max(request->guaranteed, request->sequence->tokens.size());
    for (const auto& sample : request->samples) n_tokens = std::max(n_tokens, sample->guaranteed);
    for (int group = 0; group < kv_->n_groups(); ++group) {
      const auto g = static_cast<std::size_t>(group);
      if (kv.missing(g, n_tokens, kRowsInWork) + kv.held(g) > kv_->n_pages(group))
        return make_error(ErrorCode::out_of_memory,
                          "{} tokens can never have pages: the KV pool has {} of {} tokens; raise "
                          "ModelOptions::kv_memory or sessions, or ask for fewer tokens",
                          n_tokens, kv_->n_pages(group), kPageTokens);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    const std::size_t places = open_ ? options_.max_batch - n_running_ : 0;
    std::size_t n = 0;
    for (const auto& request : requests) n += 1 + request->samples.size();
    const std::size_t n_waiting = n_in_flight_ - n_running_ + n;
    if (n_waiting > places && n_waiting - places > options_.max_queue)
      return make_error(ErrorCode::queue_full,
                        "{} requests run and {} wait, more than ModelOptions::max_queue allows; "
                        "try again later",
                        n_running_, n_in_flight_ - n_running_);
    n_in_flight_ += n;
    for (const auto& request : requests) {
      request->turn.number = ++n_submitted_;
      for (const auto& sample : request->samples) sample->turn.number = ++n_submitted_;
    }
    incoming_.splice(incoming_.end(), requests);
  }
  wake_.notify_all();
  return {};
}

void Engine::take_incoming() noexcept {
  Requests incoming;
  {
    const std::lock_guard lock(mutex_);
    incoming.splice(incoming.end(), incoming_);
  }
  while (!incoming.empty()) put_in_line(incoming);
}

/// The first of `from` waits from now on.
void Engine::put_in_line(Requests& from) noexcept {
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return comes_before(from.front()->turn, other->turn);
  });
  waiting_.splice(place, from, from.begin());
}

/// Ends those that shall end.
void Engine::sweep() noexcept {
  const Clock::time_point now = Clock::now();
  for (Requests* list : {&active_, &waiting_})
    for (auto at = list->begin(); at != list->end();) {
      Request& request = **at++;  // ending a request takes it out of the list
      FinishReason reason = request.wants_to_end(now);
      if (request.is_prompt) {
        sweep_samples(request, now);
        if (request.samples.empty()) reason = FinishReason::cancelled;
      }
      if (reason != FinishReason::none && leave_pass(request)) end(request, reason, {});
    }
  if (phase_ == Phase::planning) return;
  for (const Share& share : shares_)
    if (share.left == nullptr) return;
  // Nobody is left in the pass.
  pool_->drop();
  shares_.clear();
  phase_ = Phase::planning;
}

/// Ends those of a prompt's samples that shall end before it was run.
void Engine::sweep_samples(Request& prompt, Clock::time_point now) noexcept {
  for (auto at = prompt.samples.begin(); at != prompt.samples.end();) {
    Request& sample = **at;
    const FinishReason reason = sample.wants_to_end(now);
    if (reason == FinishReason::none) {
      ++at;
      continue;
    }
    waiting_.splice(waiting_.end(), prompt.samples, at++);
    end(sample, reason, {});
  }
}

/// Out of a pass that was begun and not ended: what it writes goes into a sequence that is nobody's
/// any more. False if there is no memory for that.
bool Engine::leave_pass(Request& request) noexcept {
  if (phase_ == Phase::planning) return true;
  for (std::size_t i = phase_ == Phase::committing ? n_committed_ : 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    if (share.request.get() != &request || share.left != nullptr) continue;
    try {
      auto copy = std::make_shared<Sequence>(*request.sequence);
      share.left = std::exchange(request.sequence, std::move(copy));
    } catch (...) {
      return false;
    }
  }
  return true;
}

/// Where it stands in the list, which holds it.
static Requests::iterator find_request(Requests& list, const Request& request) {
  return std::find_if(list.begin(), list.end(),
                      [&](const auto& other) { return other.get() == &request; });
}

void Engine::end(Request& request, FinishReason reason, Error error) noexcept {
  Requests& list = request.active ? active_ : waiting_;
  Requests ended;
  ended.splice(ended.end(), list, find_request(list, request));
  // Samples whose prompt was not run end with it.
  while (!request.samples.empty()) {
    Request& sample = *request.samples.front();
    put_in_line(request.samples);
    end(sample, reason, error);
  }
  if (request.n_logits == 0 && !request.is_prompt)
    counts_.replies.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    --n_in_flight_;
    n_running_ = active_.size();
  }
  request.sequence->kv.forget_promise();
  request.sequence->kv.forget_swapped();
  request.finish(reason, std::move(error));
}

// ------------------------------------------------------------------------------------- admission

/// Lets requests into the batch, as many as there are places and pages for.
void Engine::admit() noexcept {
  const bool open = options_.batching == BatchPolicy::continuous || active_.empty();
  const Clock::time_point now = Clock::now();
  while (open && !waiting_.empty() && active_.size() < options_.max_batch) {
    Request& request = *waiting_.front();
    if (const Status found = find_pages(request); !found) {
      if (!active_.empty()) break;  // they give pages back when they end
      end(request, FinishReason::none, found.error());
      continue;
    }
    request.active = true;
    request.turn.since = step_;
    request.note_admission(now);
    active_.splice(active_.end(), waiting_, waiting_.begin());
  }
  const std::lock_guard lock(mutex_);
  n_running_ = active_.size();
  open_ = options_.batching == BatchPolicy::continuous || active_.empty();
}

/// Whether there are pages for a request, counting those that ones of lower priority would lose.
/// What it left in the swap space is back then.
Status Engine::find_pages(Request& request) noexcept {
  KvSequence& kv = request.sequence->kv;
  const auto gives_way = [&](const Request& other) {
    return other.turn.priority < request.turn.priority || active_.empty();
  };
  const auto take = [&](auto&& try_to_take) -> Status {
    while (true) {
      Status taken;
      try {
        taken = try_to_take();
      } catch (...) {
        taken = current_exception_error();
      }
      Request* const other = taken ? nullptr : last_in_line(request, gives_way);
      if (other == nullptr) return taken;
      preempt(*other);
    }
  };
  if (request.guaranteed != 0) {
    DECANT_TRY(take([&] { return kv.promise(request.guaranteed, kRowsInWork); }));
  } else if (!active_.empty()) {  // else it takes what it can get
    for (int group = 0; group < kv_->n_groups(); ++group) {
      const auto g = static_cast<std::size_t>(group);
      std::size_t within_reach = kv.available(g);
      for (const auto& other : active_)
        if (other->guaranteed == 0 && gives_way(*other))
          within_reach += other->sequence->kv.held(g);
      if (kv.missing(g, request.sequence->tokens.size() + 1, kRowsInWork) > within_reach)
        return Error(ErrorCode::out_of_memory, "no pages yet");
    }
  }
  const Status back = take([&] { return kv.swap_in(request.sequence->tokens); });
  if (back || !active_.empty()) return back;
  request.lose_pages();  // nobody runs who could give it pages: it runs again what it has them for
  return {};
}

/// Of the requests that hold pages and may lose them, the last one in line that satisfies the
/// condition; null if there is none.
template <class Condition>
Request* Engine::last_in_line(const Request& but, Condition condition) noexcept {
  Request* last = nullptr;
  for (const Requests* list : {&active_, &waiting_})
    for (const auto& other : *list) {
      const bool may_lose = !other->active || other->guaranteed == 0;
      if (other.get() == &but || !may_lose || other->sequence->kv.n_pages() == 0) continue;
      if (!condition(*other)) continue;
      if (last == nullptr || comes_before(last->turn, other->turn)) last = other.get();
    }
  return last;
}

/// Takes a request's pages. It gets them back from the swap space, or runs its tokens again, when
/// there are pages for them.
void Engine::preempt(Request& request) noexcept {
  if (!request.sequence->kv.swap_out()) request.lose_pages();
  std::erase_if(shares_, [&](const Share& share) { return share.request.get() == &request; });
  if (!request.active) return;
  counts_.preemptions.fetch_add(1, std::memory_order_relaxed);
  request.active = false;
  Requests preempted;
  preempted.splice(preempted.end(), active_, find_request(active_, request));
  put_in_line(preempted);
}

// ------------------------------------------------------------------------------------------ plan

/// Gives out the rows of the next pass, with pages to write into. `wanted`: how long it should
/// take, 0 for any time.
void Engine::plan(std::chrono::nanoseconds wanted) noexcept {
  order_.clear();
  std::size_t n_decoding = 0;
  for (const auto& request : active_) {
    request->turn.decoding = request->sequence->pending() <= 1;
    n_decoding += request->sequence->pending() == 1;
    order_.push_back(request.get());
  }
  std::sort(order_.begin(), order_.end(),
            [](const Request* a, const Request* b) { return goes_before(a->turn, b->turn); });
  const std::size_t n_prompts = active_.size() - n_decoding;
  RowBudget budget(max_rows_, pace_.prompt_rows(n_decoding, n_prompts, wanted), n_decoding,
                   n_prompts, ++step_);
  for (Request* const request : order_) {
    if (!request->active) continue;  // it has just lost its pages
    const bool decoding = request->turn.decoding;
    if (request->sequence->pending() == 0) {  // a sample whose prompt gave it logits
      add_share(*request, 0);
      continue;
    }
    // Nothing to be found in the tree for rows whose logits are asked for: they run in any case.
    if (!decoding && request->sequence->pending() > request->n_wanted()) {
      if (budget.prompt_rows_left() == 0) continue;
      request->resume();
      if (waits_for_prefix(*request)) continue;
    }
    const std::size_t n = budget.take(decoding, request->sequence->pending());
    const std::size_t got = n == 0 ? 0 : reserve(*request, n);
    budget.give_back(decoding, n - got);
  }
  rows_.clear();
  tables_.clear();
  n_decoding_ = 0;
  for (const Share& share : shares_)
    if (share.n_rows != 0) add_rows(share);
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
    if (active.get() == &request || active->turn.priority < request.turn.priority ||
        other.tokens.size() < end || !own.kv.same_path(other.kv) ||
        !std::equal(own.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                    own.tokens.begin() + static_cast<std::ptrdiff_t>(end),
                    other.tokens.begin() + static_cast<std::ptrdiff_t>(begin)))
      continue;
    if (other.computed() > own.computed() ||
        (other.computed() == own.computed() && active->turn.number < request.turn.number))
      return true;
  }
  return false;
}

/// Adds a share of up to n_rows rows that have pages, and returns how many. When pages run out, a
/// prompt takes fewer rows; then those behind it in line lose theirs, or all that were promised
/// none. 0: the request itself waits for pages, or has ended.
std::size_t Engine::reserve(Request& request, std::size_t n_rows) noexcept {
  Sequence& sequence = *request.sequence;
  const auto gives_way = [&](const Request& other) {
    return request.guaranteed != 0 || comes_before(request.turn, other.turn);
  };
  while (true) {
    const Status reserved = sequence.kv.reserve(sequence.computed() + n_rows);
    if (reserved) break;
    if (n_rows > kRowsInWork) {
      n_rows /= 2;
    } else if (sequence.computed() % kPageTokens != 0 && request.guaranteed != 0) {
      // Without its part of a page it needs no copy of it.
      sequence.kv.truncate(sequence.computed() / kPageTokens * kPageTokens);
    } else if (Request* const other = last_in_line(request, gives_way)) {
      preempt(*other);
    } else {
      const bool others = active_.size() > 1 ||
                          (!waiting_.empty() && comes_before(waiting_.front()->turn, request.turn));
      if (others)
        preempt(request);
      else
        end(request, FinishReason::none, reserved.error());
      return 0;
    }
  }
  add_share(request, n_rows);
  return n_rows;
}

void Engine::add_share(Request& request, std::size_t n_rows) {
  shares_.push_back({*find_request(active_, request), n_rows});
}

void Engine::add_rows(const Share& share) {
  Request& request = *share.request;
  Sequence& sequence = *request.sequence;
  request.turn.since = step_;
  n_decoding_ += request.turn.decoding;
  const std::size_t n_tokens = sequence.tokens.size(), n_wanted = request.n_wanted();
  float* const wanted = request.n_logits == 0 ? request.logits.data() : request.logits_out;
  const Sampler& sampler = request.options.sampler;
  // A sample's first token is the host's: its logits come from the prompt unless it lost its pages.
  const bool first_of_sample = request.is_sample && n_tokens == request.n_prompt;
  request.choice.reset();
  if (request.wants_only_sampling() && !first_of_sample && backend_->chooses(sampler, n_tokens))
    request.choice = {&sampler, sequence.tokens, request.seed};
  for (std::size_t i = 0; i < share.n_rows; ++i) {
    const std::size_t position = sequence.computed() + i;
    const bool asks = position + n_wanted >= n_tokens;
    Row row{static_cast<std::int32_t>(tables_.size()), static_cast<std::int32_t>(position),
            sequence.tokens[position], nullptr};
    if (asks && request.choice)
      row.choice = &*request.choice;
    else if (asks)
      row.logits =
          wanted + (position + n_wanted - n_tokens) * static_cast<std::size_t>(spec_.n_vocab);
    rows_.push_back(row);
  }
  tables_.push_back(sequence.kv.block_tables());
}

}  // namespace decant::detail
