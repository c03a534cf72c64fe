#include "api/chat.hpp"

namespace decant {

namespace detail {

Status SessionState::settle() {
  if (request == nullptr) return {};
  model->engine->settle(*request);
  std::string text;
  FinishReason reason;
  std::vector<Token> tokens;
  {
    const std::lock_guard lock(request->mutex);
    if (!request->shared.finished)
      return make_error(ErrorCode::busy,
                        "a reply is in flight on this session; wait for it, stop or cancel it");
    sequence = request->sequence;  // another one if it left a pass or is a sample
    reason = request->shared.reason;
    if (kind == Kind::chat && reason != FinishReason::none && reason != FinishReason::cancelled) {
      text = request->shared.text;
      tokens = request->shared.tokens;
    }
  }
  if (kind == Kind::chat && reason != FinishReason::none && reason != FinishReason::cancelled) {
    if (reason == FinishReason::end_token) tokens.pop_back();  // the template writes it
    messages.reserve(messages.size() + 1);
    generated.reserve(messages.size() + 1);
    messages.push_back({"assistant", std::move(text)});
    generated.resize(messages.size() - 1);
    generated.push_back(std::move(tokens));
  }
  request.reset();
  return {};
}

/// The tokens of the whole conversation and the beginning of a reply. Replies of this session are
/// taken as the tokens that were generated, which need not be those their text would give.
static Result<std::vector<Token>> chat_tokens(const SessionState& s) {
  const ModelState& model = *s.model;
  DECANT_ASSIGN(const std::vector<TextPart> parts, render_conversation(model, s.messages, true));
  std::vector<Token> tokens;
  // A template decides alone whether the prompt begins with the begin token.
  if (!model.chat_template && model.tokenizer->add_bos()) tokens.push_back(*model.tokenizer->bos());
  std::vector<TextSpan> spans;
  for (const TextPart& part : parts) {
    const auto i = static_cast<std::size_t>(part.message);
    const bool is_reply = part.message >= 0 && i < s.generated.size() && !s.generated[i].empty() &&
                          part.text == s.messages[i].content;
    if (!is_reply) {
      spans.push_back({part.text, part.special});
      continue;
    }
    DECANT_TRY(model.tokenizer->tokenize(spans, tokens));
    spans.clear();
    tokens.insert(tokens.end(), s.generated[i].begin(), s.generated[i].end());
  }
  DECANT_TRY(model.tokenizer->tokenize(spans, tokens));
  return tokens;
}

static Error context_full_error(std::size_t wanted, std::size_t capacity) {
  return make_error(
      ErrorCode::context_full,
      "{} tokens do not fit a session of {}; raise ModelOptions::context or shorten the text",
      wanted, capacity);
}

static Status append_tokens(SessionState& s, std::span<const Token> tokens) {
  Sequence& sequence = *s.sequence;
  if (tokens.size() > sequence.capacity - sequence.tokens.size())
    return context_full_error(sequence.tokens.size() + tokens.size(), sequence.capacity);
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  if (!tokens.empty()) s.kind = SessionState::Kind::text;
  return {};
}

static Status need_kind(const SessionState& s, SessionState::Kind kind) {
  if (s.kind == SessionState::Kind::empty || s.kind == kind) return {};
  if (kind == SessionState::Kind::chat)
    return make_error(ErrorCode::invalid_state,
                      "this session holds raw text; messages need a session of their own");
  return make_error(ErrorCode::invalid_state,
                    "this session holds messages; raw text and tokens need a session of their own");
}

static Result<std::shared_ptr<Request>> make_reply(SessionState& s,
                                                   const GenerateOptions& options) {
  const ModelState& model = *s.model;
  DECANT_TRY(options.sampler.validate());
  const std::size_t capacity = s.sequence->capacity;
  if (options.keep_first && (capacity < 2 || *options.keep_first > capacity - 2))
    return make_error(
        ErrorCode::invalid_argument,
        "GenerateOptions::keep_first is {}, but of a session of {} tokens two must be "
        "free",
        *options.keep_first, capacity);
  auto request = std::make_shared<Request>();
  request->sequence = s.sequence;
  request->tokenizer = model.tokenizer;
  request->options = options;
  request->end_tokens = model.end_tokens;
  DECANT_ASSIGN(request->stops, StopStrings::create(options.stop));
  if (!options.stop.empty()) DECANT_TRY(model.need_tokenizer());
  if (options.timeout.count() < 0)
    return make_error(ErrorCode::invalid_argument, "GenerateOptions::timeout must not be negative");
  request->turn.priority = options.priority;
  request->seed = options.sampler.seed ? *options.sampler.seed : random_seed();
  request->logits.resize(model.info.n_vocab);
  return request;
}

/// The tokens that a request continues, with what it takes to undo that.
static Status set_prompt(SessionState& s, Request& request) {
  Sequence& sequence = *s.sequence;
  const std::optional<std::size_t>& keep = request.options.keep_first;
  request.undo_prefix = sequence.tokens.size();
  if (s.kind == SessionState::Kind::chat) {
    DECANT_ASSIGN(std::vector<Token> tokens, chat_tokens(s));
    if (keep && tokens.size() >= sequence.capacity) {
      const std::size_t n = Sequence::excess(tokens.size(), sequence.capacity, *keep);
      const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(*keep);
      tokens.erase(at, at + static_cast<std::ptrdiff_t>(n));
      request.shared.stats.dropped = n;
    }
    if (tokens.size() > sequence.capacity)
      return context_full_error(tokens.size(), sequence.capacity);
    const auto [same, held] =
        std::mismatch(tokens.begin(), tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    request.undo_prefix = static_cast<std::size_t>(same - tokens.begin());
    request.undo_suffix.assign(held, sequence.tokens.end());
    sequence.truncate(request.undo_prefix);
    sequence.tokens.insert(sequence.tokens.end(), same, tokens.end());
  }
  if (sequence.tokens.empty())
    return make_error(ErrorCode::invalid_state,
                      "there is nothing to continue: append a message, text or tokens first");
  const bool is_full = sequence.tokens.size() == sequence.capacity;
  if (is_full && keep && request.options.max_tokens != 0) request.roll();
  s.n_seen = std::min(request.undo_prefix, keep.value_or(SIZE_MAX));
  return {};
}

static void start_reply(const SessionState& s, Request& request) {
  request.start();
  if (request.options.admission == Admission::guaranteed)
    request.guaranteed = request.n_prompt + std::min(request.options.max_tokens,
                                                     s.sequence->capacity - request.n_prompt);
}

/// Whether the reply has no room for a token.
static bool finish_at_once(Request& request) {
  if (request.options.max_tokens == 0)
    request.finish(FinishReason::max_tokens, {});
  else if (request.n_prompt == request.sequence->capacity)
    request.finish(FinishReason::context_full, {});
  else
    return false;
  return true;
}

static constexpr std::size_t kMaxSamples = 1024;

/// A session that holds the same conversation in a sequence of its own.
static std::shared_ptr<SessionState> copied_session(const SessionState& s,
                                                    std::shared_ptr<Sequence> sequence) {
  auto copy = std::make_shared<SessionState>();
  copy->model = s.model;
  copy->sequence = std::move(sequence);
  copy->kind = s.kind;
  copy->messages = s.messages;
  copy->generated = s.generated;
  return copy;
}

struct SampleHandles {
  std::shared_ptr<SessionState> session;
  std::shared_ptr<ReplyState> reply;
};

/// A session that continues the prompt, which `s` holds, with a request of its own.
static SampleHandles make_sample(const SessionState& s, const std::shared_ptr<Request>& request) {
  auto sequence = std::make_shared<Sequence>(s.model->engine->kv(), s.sequence->capacity);
  sequence->tokens = s.sequence->tokens;
  SampleHandles sample{copied_session(s, std::move(sequence)), std::make_shared<ReplyState>()};
  SessionState& session = *sample.session;
  sample.reply->model = s.model;
  request->is_sample = true;
  request->sequence = session.sequence;
  request->undo_prefix = session.sequence->tokens.size();
  session.n_seen = std::min(request->undo_prefix, request->options.keep_first.value_or(SIZE_MAX));
  start_reply(session, *request);
  session.request = sample.reply->request = request;
  return sample;
}

}  // namespace detail

using namespace detail;

Session::Session(std::shared_ptr<SessionState> state) noexcept : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  Session old(std::move(other));
  std::swap(state_, old.state_);
  return *this;
}
Session::~Session() { drop_state(state_, state_ == nullptr ? nullptr : state_->model.get()); }

Status Session::append(const Message& message) {
  return guarded(*state_->model, [&]() -> Status {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    DECANT_TRY(need_kind(s, SessionState::Kind::chat));
    DECANT_TRY(check_message(message));
    DECANT_TRY(s.model->need_tokenizer());
    s.messages.push_back(message);
    s.kind = SessionState::Kind::chat;
    return {};
  });
}

Status Session::append(std::string_view text, const TextOptions& options) {
  return guarded(*state_->model, [&]() -> Status {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    DECANT_TRY(need_kind(s, SessionState::Kind::text));
    DECANT_TRY(s.model->need_tokenizer());
    const Tokenizer& tokenizer = *s.model->tokenizer;
    std::vector<Token> tokens;
    if (options.add_bos && s.sequence->tokens.empty() && tokenizer.add_bos())
      tokens.push_back(*tokenizer.bos());
    const TextSpan span{text, options.special};
    DECANT_TRY(tokenizer.tokenize({&span, 1}, tokens));
    return append_tokens(s, tokens);
  });
}

Status Session::append(std::span<const Token> tokens) {
  return guarded(*state_->model, [&]() -> Status {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    DECANT_TRY(need_kind(s, SessionState::Kind::text));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= s.model->info.n_vocab)
        return make_error(ErrorCode::invalid_argument,
                          "token {} at index {} is outside the vocabulary of {}", tokens[i], i,
                          s.model->info.n_vocab);
    return append_tokens(s, tokens);
  });
}

Result<Reply> Session::generate(const GenerateOptions& options) {
  return guarded(*state_->model, [&]() -> Result<Reply> {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    DECANT_ASSIGN(const std::shared_ptr<Request> request, make_reply(s, options));
    const auto reply = std::make_shared<ReplyState>();
    reply->model = s.model;
    Requests submission{request};  // the last thing to allocate: what follows cannot fail
    DECANT_TRY(set_prompt(s, *request));
    start_reply(s, *request);
    if (!finish_at_once(*request))
      if (const Status taken = s.model->engine->submit(std::move(submission)); !taken) {
        request->undo();
        return taken.error();
      }
    s.request = request;
    reply->request = request;
    return Reply(reply);
  });
}

Result<std::vector<Sample>> Session::generate_n(std::size_t n, const GenerateOptions& options) {
  return guarded(*state_->model, [&]() -> Result<std::vector<Sample>> {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    if (n < 1 || n > kMaxSamples)
      return make_error(ErrorCode::invalid_argument, "{} samples wanted; 1 to {} are possible", n,
                        kMaxSamples);
    GenerateOptions o = options;
    if (!o.sampler.seed) o.sampler.seed = random_seed();
    DECANT_ASSIGN(const std::shared_ptr<Request> prompt, make_reply(s, o));
    prompt->options.on_text = nullptr;
    prompt->is_prompt = true;
    Requests submission{prompt};
    DECANT_TRY(set_prompt(s, *prompt));
    Result<std::vector<Sample>> samples = guarded([&]() -> Result<std::vector<Sample>> {
      std::vector<Sample> made;
      made.reserve(n);
      for (std::size_t i = 0; i < n; ++i, ++o.sampler.sample_index) {
        DECANT_ASSIGN(const std::shared_ptr<Request> request, make_reply(s, o));
        SampleHandles handles = make_sample(s, request);
        prompt->samples.push_back(request);
        made.push_back({Session(std::move(handles.session)), Reply(std::move(handles.reply))});
      }
      return made;
    });
    if (!samples) {
      prompt->undo();
      return samples.error();
    }
    const Requests& requests = prompt->samples;
    if (std::count_if(requests.begin(), requests.end(),
                      [](const auto& request) { return finish_at_once(*request); }) != 0)
      return samples;
    prompt->start();
    if (const Status taken = s.model->engine->submit(std::move(submission)); !taken) {
      prompt->undo();
      return taken.error();
    }
    s.request = prompt;
    return samples;
  });
}

Result<std::span<const float>> Session::logits() {
  return guarded(*state_->model, [&]() -> Result<std::span<const float>> {
    state_->logits.resize(state_->model->info.n_vocab);
    DECANT_TRY(logits(std::span(state_->logits)));
    return std::span<const float>(state_->logits);
  });
}

Status Session::logits(std::span<float> rows) {
  return guarded(*state_->model, [&]() -> Status {
    const std::shared_ptr<SessionState> state = state_;  // a callback may drop this Session
    SessionState& s = *state;
    DECANT_TRY(s.settle());
    if (s.model->engine->is_stepping_here())
      return make_error(ErrorCode::would_block,
                        "logits waits for the model; not inside one of its callbacks");
    const std::size_t n = rows.size() / s.model->info.n_vocab;
    if (n == 0 || n * s.model->info.n_vocab != rows.size())
      return make_error(ErrorCode::invalid_argument, "{} floats are not rows of {} logits",
                        rows.size(), s.model->info.n_vocab);
    if (n > s.sequence->tokens.size())
      return make_error(
          s.sequence->tokens.empty() ? ErrorCode::invalid_state : ErrorCode::invalid_argument,
          "{} rows of logits wanted, but the session holds {} tokens", n,
          s.sequence->tokens.size());
    auto request = std::make_shared<Request>();
    request->sequence = s.sequence;
    request->n_logits = n;
    request->logits_out = rows.data();
    request->resume();
    DECANT_TRY(s.model->engine->submit({request}));
    s.model->engine->wait(*request);
    const std::lock_guard lock(request->mutex);
    if (request->shared.error) return request->shared.error;
    return {};
  });
}

Result<Session> Session::fork(std::size_t n_tokens) {
  return guarded(*state_->model, [&]() -> Result<Session> {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    const std::size_t n = s.sequence->tokens.size();
    if (n_tokens != SIZE_MAX && n_tokens > n)
      return make_error(ErrorCode::invalid_argument,
                        "cannot fork at {} tokens: the session holds {}", n_tokens, n);
    if (s.kind == SessionState::Kind::chat && n_tokens < n)
      return make_error(ErrorCode::invalid_state, "a session of messages can only be forked whole");
    auto forked = copied_session(s, std::make_shared<Sequence>(*s.sequence));
    if (n_tokens < n) forked->sequence->truncate(n_tokens);
    const bool is_raw = s.kind == SessionState::Kind::text;
    if (is_raw && n_tokens == 0) forked->kind = SessionState::Kind::empty;
    return Session(std::move(forked));
  });
}

Status Session::pin_prefix(std::size_t n_tokens) {
  return guarded(*state_->model, [&]() -> Status {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    ModelState& model = *s.model;
    if (!model.engine->kv()->has_tree())
      return make_error(ErrorCode::invalid_state,
                        "there is no prefix cache to pin in: ModelOptions::prefix_cache is off");
    const std::size_t n = std::min(n_tokens, s.sequence->computed());
    if (n_tokens != SIZE_MAX && n < n_tokens)
      return make_error(
          ErrorCode::invalid_state,
          "{} tokens cannot be pinned, only {} were run: call logits or generate first", n_tokens,
          n);
    const std::size_t wanted = n / kPageTokens * kPageTokens;
    auto pin = std::make_unique<KvSequence>(s.sequence->kv);
    pin->truncate(wanted);
    if (pin->length() != wanted || pin->published() != wanted)
      return make_error(ErrorCode::invalid_state,
                        "{} tokens cannot be pinned: the prefix cache does not have all of them; "
                        "pin a prefix when it is all that was run, and not of a snapshot",
                        wanted);
    if (wanted == 0) return {};
    const std::lock_guard lock(model.pins_mutex);
    model.pins.push_back(std::move(pin));
    return {};
  });
}

Status Session::rewind(std::size_t n_tokens) {
  return guarded(*state_->model, [&]() -> Status {
    SessionState& s = *state_;
    DECANT_TRY(s.settle());
    if (n_tokens > s.sequence->tokens.size())
      return make_error(ErrorCode::invalid_argument,
                        "cannot rewind to {} tokens: the session holds {}", n_tokens,
                        s.sequence->tokens.size());
    if (s.kind == SessionState::Kind::chat && n_tokens != 0)
      return make_error(ErrorCode::invalid_state, "a session of messages can only be rewound to 0");
    s.sequence->truncate(n_tokens);
    if (n_tokens == 0) {
      s.messages.clear();
      s.generated.clear();
      s.kind = SessionState::Kind::empty;
    }
    return {};
  });
}

std::span<const Token> Session::tokens() const noexcept {
  if (state_->model->is_forked()) return {};
  const Status settled = guarded([&] { return state_->settle(); });
  const std::vector<Token>& tokens = state_->sequence->tokens;
  if (!settled) return {tokens.data(), state_->n_seen};
  return tokens;
}

std::span<const Message> Session::messages() const noexcept {
  if (state_->model->is_forked()) return {};
  (void)guarded([&] { return state_->settle(); });
  return state_->messages;
}

}  // namespace decant
