#include "api/state.hpp"

namespace decant {

using namespace detail;

Reply::Reply(std::shared_ptr<ReplyState> state) noexcept : state_(std::move(state)) {}
Reply::Reply(Reply&&) noexcept = default;
Reply& Reply::operator=(Reply&&) noexcept = default;
Reply::~Reply() = default;

/// Takes the text that is ready; empty if there is none.
static std::optional<std::string_view> take_ready(ReplyState& s) {
  if (s.request->shared.ready.empty()) return std::nullopt;
  s.piece.clear();
  std::swap(s.piece, s.request->shared.ready);
  return s.piece;
}

std::optional<std::string_view> Reply::next() {
  if (state_->model->engine->on_worker()) return std::nullopt;
  Request& request = *state_->request;
  std::unique_lock lock(request.mutex);
  request.changed.wait(lock,
                       [&] { return request.shared.finished || !request.shared.ready.empty(); });
  return take_ready(*state_);
}

std::optional<std::string_view> Reply::try_next() {
  const std::lock_guard lock(state_->request->mutex);
  return take_ready(*state_);
}

Status Reply::wait() {
  return guarded([&]() -> Status {
    if (state_->model->engine->on_worker() && !finished())
      return make_error(ErrorCode::would_block,
                        "wait waits for the model; not inside one of its callbacks");
    state_->request->wait();
    return status();
  });
}

void Reply::stop() noexcept {
  // A cancel that came first stands.
  Request::Asked nothing = Request::Asked::nothing;
  state_->request->asked.compare_exchange_strong(nothing, Request::Asked::stop);
}

void Reply::cancel() noexcept { state_->request->asked = Request::Asked::cancel; }

bool Reply::finished() const noexcept { return state_->request->is_finished(); }

Status Reply::status() const {
  const std::lock_guard lock(state_->request->mutex);
  if (state_->request->shared.error) return state_->request->shared.error;
  return {};
}

FinishReason Reply::finish_reason() const noexcept {
  const std::lock_guard lock(state_->request->mutex);
  return state_->request->shared.reason;
}

ReplyStats Reply::stats() const {
  const std::lock_guard lock(state_->request->mutex);
  return state_->request->shared.stats;
}

std::vector<Token> Reply::tokens() const {
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
  }
  return "unknown";
}

}  // namespace decant
