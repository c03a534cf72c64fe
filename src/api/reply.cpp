#include "api/state.hpp"

namespace decant {

using namespace detail;

Reply::Reply(std::shared_ptr<ReplyState> state) noexcept : state_(std::move(state)) {}
Reply::Reply(Reply&&) noexcept = default;
Reply& Reply::operator=(Reply&& other) noexcept {
  Reply old(std::move(other));
  std::swap(state_, old.state_);
  return *this;
}
Reply::~Reply() { drop_state(state_, state_ == nullptr ? nullptr : state_->model.get()); }

static Status reply_status(const ReplyState& s) {
  const std::lock_guard lock(s.request->mutex);
  if (s.request->shared.error) return s.request->shared.error;
  return {};
}

/// Takes the text that is ready; empty if there is none.
static std::optional<std::string_view> take_ready(ReplyState& s) {
  if (s.request->shared.ready.empty()) return std::nullopt;
  s.piece.clear();
  std::swap(s.piece, s.request->shared.ready);
  return s.piece;
}

std::optional<std::string_view> Reply::next() {
  if (state_->model->is_forked()) return std::nullopt;
  // A callback may drop this Reply while it steps the model.
  const std::shared_ptr<ReplyState> state = state_;
  if (state->model->engine->is_stepping_here()) return std::nullopt;
  state->model->engine->wait(*state->request, true);
  if (state.use_count() == 1) return std::nullopt;
  const std::lock_guard lock(state->request->mutex);
  return take_ready(*state);
}

std::optional<std::string_view> Reply::try_next() {
  if (state_->model->is_forked()) return std::nullopt;
  const std::lock_guard lock(state_->request->mutex);
  return take_ready(*state_);
}

Status Reply::wait() {
  return guarded(*state_->model, [&]() -> Status {
    const std::shared_ptr<ReplyState> state = state_;  // a callback may drop this Reply
    if (state->model->engine->is_stepping_here() && !finished())
      return make_error(ErrorCode::would_block,
                        "wait waits for the model; not inside one of its callbacks");
    state->model->engine->wait(*state->request);
    return reply_status(*state);
  });
}

void Reply::stop() noexcept { state_->request->ask_to_stop(); }

void Reply::cancel() noexcept { state_->request->asked = Request::Asked::cancel; }

bool Reply::finished() const noexcept {
  return state_->model->is_forked() || state_->request->is_finished();
}

Status Reply::status() const {
  return guarded(*state_->model, [&] { return reply_status(*state_); });
}

FinishReason Reply::finish_reason() const noexcept {
  if (state_->model->is_forked()) return FinishReason::none;
  const std::lock_guard lock(state_->request->mutex);
  return state_->request->shared.reason;
}

ReplyStats Reply::stats() const {
  if (state_->model->is_forked()) return {};
  const std::lock_guard lock(state_->request->mutex);
  return state_->request->shared.stats;
}

std::vector<Token> Reply::tokens() const {
  if (state_->model->is_forked()) return {};
  try {
    const std::lock_guard lock(state_->request->mutex);
    return state_->request->shared.tokens;
  } catch (...) {
    return {};
  }
}

const char* finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::end_token: return "end_token";
    case FinishReason::stop_string: return "stop_string";
    case FinishReason::max_tokens: return "max_tokens";
    case FinishReason::context_full: return "context_full";
    case FinishReason::stopped: return "stopped";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::timeout: return "timeout";
  }
  return "unknown";
}

}  // namespace decant
