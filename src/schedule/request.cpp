#include "schedule/request.hpp"

namespace decant::detail {

FinishReason Request::wants_to_end(Clock::time_point now) const {
  switch (asked.load(std::memory_order_relaxed)) {
    case Asked::cancel: return FinishReason::cancelled;
    case Asked::stop: return FinishReason::stopped;
    default: return now >= deadline ? FinishReason::timeout : FinishReason::none;
  }
}

void Request::start() {
  started_ = Clock::now();
  if (options.timeout.count() > 0 && options.timeout < Clock::time_point::max() - started_)
    deadline = started_ + std::chrono::duration_cast<Clock::duration>(options.timeout);
  n_prompt = sequence->tokens.size();
  shared.stats.prompt_tokens = n_prompt;
  shared.stats.seed = seed;
  if (is_sample) return;  // its pages will be the prompt's
  shared.stats.recomputed = sequence->resume(1);
  shared.stats.cached_tokens = sequence->computed();
}

void Request::go_on_from(const Request& prompt, bool first) {
  sequence = std::make_shared<Sequence>(*prompt.sequence);
  logits = prompt.logits;
  // The first one is who paid for it.
  n_run = first ? prompt.n_run : 0;
  const std::lock_guard lock(mutex);
  shared.stats.recomputed = first ? prompt.shared.stats.recomputed : 0;
  shared.stats.cached_tokens = n_prompt - n_run;
  shared.stats.dropped = prompt.shared.stats.dropped;
}

void Request::note_admission(Clock::time_point now) {
  if (std::exchange(admitted_, true)) return;
  const std::lock_guard lock(mutex);
  shared.stats.queue_ms = std::chrono::duration<double, std::milli>(now - started_).count();
}

void Request::resume() {
  sequence->resume(n_wanted());
  if (sequence->tokens.size() > n_prompt) return;
  const std::lock_guard lock(mutex);
  shared.stats.cached_tokens = sequence->computed() - n_run;
}

void Request::roll() {
  const std::size_t keep = *options.keep_first;
  if (undo_prefix > keep) {
    const auto begin = sequence->tokens.begin();
    undo_suffix.insert(undo_suffix.begin(), begin + static_cast<std::ptrdiff_t>(keep),
                       begin + static_cast<std::ptrdiff_t>(undo_prefix));
    undo_prefix = keep;
  }
  n_prompt = std::min(n_prompt, keep);
  const std::size_t n = Sequence::excess(sequence->tokens.size(), sequence->capacity, keep);
  sequence->remove(keep, n);
  const std::lock_guard lock(mutex);
  shared.stats.dropped += n;
}

void Request::lose_pages() {
  sequence->kv.forget_swapped();
  sequence->kv.truncate(0);
  if (sequence->tokens.size() <= n_prompt) n_run = 0;
}

FinishReason Request::accept(Token token) {
  last_token_ = Clock::now();
  sequence->tokens.push_back(token);
  const std::size_t n = ends_.size() + 1;
  if (n == 1) first_token_ = last_token_;

  FinishReason reason = FinishReason::none;
  std::string passed, text;
  if (std::binary_search(end_tokens.begin(), end_tokens.end(), token) && !options.ignore_end) {
    reason = FinishReason::end_token;
  } else if (tokenizer != nullptr) {
    const std::string_view piece = tokenizer->piece_bytes(token);
    bytes_ += piece;
    if (stops.push(piece, passed)) reason = FinishReason::stop_string;
    passed_ += passed.size();
    utf8_.push(passed, text);
  }
  ends_.push_back(bytes_.size());
  token_ = token;
  text_ = std::move(text);
  if (reason != FinishReason::none) return reason;
  if (n >= options.max_tokens) return FinishReason::max_tokens;
  if (sequence->tokens.size() < sequence->capacity) return FinishReason::none;
  if (!options.keep_first) return FinishReason::context_full;
  roll();
  return FinishReason::none;
}

void Request::publish() noexcept {
  if (!token_ && text_.empty()) return;
  try {
    show();
    if (options.on_text == nullptr)
      changed.notify_all();
    else if (!text_.empty())
      tell({text_});
  } catch (...) {
    fail(current_exception_error());
  }
  token_.reset();
  text_.clear();
}

void Request::show() {
  const std::lock_guard lock(mutex);
  if (options.on_text == nullptr) shared.ready += text_;
  if (!token_) return;
  shared.tokens.push_back(*token_);
  ReplyStats& stats = shared.stats;
  const auto ms = [](Clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  stats.tokens = shared.tokens.size();
  stats.ttft_ms = ms(first_token_ - started_);
  if (stats.tokens > 1) {
    stats.tpot_ms = ms(last_token_ - first_token_) / static_cast<double>(stats.tokens - 1);
    stats.tokens_per_second = stats.tpot_ms > 0 ? 1000.0 / stats.tpot_ms : 0.0;
  }
}

/// Calls the host. What it throws ends the reply, once that can be said.
void Request::tell(const ReplyText& piece) noexcept {
  try {
    if (!options.on_text(options.on_text_user, piece)) ask_to_stop();
  } catch (...) {
    fail(Error(ErrorCode::callback_failed, "on_text threw an exception"));
  }
}

void Request::fail(Error error) noexcept {
  failure_ = std::move(error);
  ask_to_stop();
}

void Request::ask_to_stop() noexcept {
  Asked nothing = Asked::nothing;
  asked.compare_exchange_strong(nothing, Asked::stop);
}

/// A text in tokens that say nothing else, where the tokenizer would put a space in front of it: at
/// each place the longest piece that fits. Empty if the vocabulary cannot write it.
static std::vector<Token> request_spell(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<Token> tokens;
  while (!text.empty()) {
    Token best = -1;
    std::size_t length = 0;
    for (Token t = 0; static_cast<std::size_t>(t) < tokenizer.size(); ++t) {
      const std::string_view piece = tokenizer.piece_bytes(t);
      if (piece.size() <= length || !text.starts_with(piece)) continue;
      best = t;
      length = piece.size();
    }
    if (length == 0) return {};
    tokens.push_back(best);
    text.remove_prefix(length);
  }
  return tokens;
}

/// After a stop string: tokens and text agree again. Tokens behind the text that is kept go; a
/// token that the cut goes through is replaced by the tokens of its first part.
void Request::keep_text_only() {
  std::size_t whole = 0;
  while (whole < ends_.size() && ends_[whole] <= passed_) ++whole;
  const std::size_t whole_bytes = whole == 0 ? 0 : ends_[whole - 1];
  std::vector<Token> rest;
  if (whole_bytes < passed_) {
    const std::string_view part =
        std::string_view(bytes_).substr(whole_bytes, passed_ - whole_bytes);
    const TextSpan span{part, false};
    std::string written;
    const Status status = tokenizer->tokenize({&span, 1}, rest);
    for (const Token token : rest) written += tokenizer->piece_bytes(token);
    if (!status || written != part) rest = request_spell(*tokenizer, part);
  }
  // A window that rolled may hold fewer tokens of the reply than must go.
  const std::size_t n = sequence->tokens.size();
  sequence->truncate(n - std::min(ends_.size() - whole, n - n_prompt));
  if (sequence->tokens.size() + rest.size() > sequence->capacity) rest.clear();
  sequence->tokens.insert(sequence->tokens.end(), rest.begin(), rest.end());
  const std::lock_guard lock(mutex);
  shared.tokens.resize(whole);
  shared.tokens.insert(shared.tokens.end(), rest.begin(), rest.end());
  shared.stats.tokens = shared.tokens.size();
}

/// Lets out what was held back; the reason, which may now be a stop string.
FinishReason Request::flush(FinishReason reason) {
  std::string rest;
  if (reason != FinishReason::stop_string && stops.finish(rest)) reason = FinishReason::stop_string;
  passed_ += rest.size();
  utf8_.push(rest, text_);
  utf8_.finish(text_);
  publish();
  if (reason == FinishReason::stop_string) keep_text_only();
  return reason;
}

void Request::undo() {
  sequence->truncate(undo_prefix);
  sequence->tokens.insert(sequence->tokens.end(), undo_suffix.begin(), undo_suffix.end());
}

void Request::finish(FinishReason reason, Error error) noexcept {
  publish();
  if (n_logits == 0 && !error && reason != FinishReason::cancelled) {
    try {
      reason = flush(reason);
    } catch (...) {
      error = current_exception_error();
    }
  }
  if (has_failed() && !error && reason != FinishReason::cancelled) error = failure_;
  if (n_logits == 0 && (error || reason == FinishReason::cancelled)) undo();
  sequence->kv.keep_windows();
  bytes_.resize(passed_);
  if (error) reason = FinishReason::none;
  if (options.on_text != nullptr) tell({{}, true, reason, error});
  {
    const std::lock_guard lock(mutex);
    shared.text = std::move(bytes_);
    shared.reason = reason;
    shared.error = std::move(error);
    shared.finished = true;
  }
  changed.notify_all();
}

}  // namespace decant::detail
