// The C ABI over the C++ API: handles are boxes around Model and Session, nothing is thrown out.
#include <decant/decant.h>

#include <algorithm>
#include <cstring>

#include "api/state.hpp"

struct decant_model {
  decant::Model model;
};
struct decant_session {
  decant::Session session;
};
struct decant_reply {
  decant::Reply reply;
};

namespace decant::detail {

static_assert(DECANT_QUEUE_FULL == static_cast<int>(ErrorCode::queue_full));
static_assert(DECANT_DEVICE_LOST == static_cast<int>(ErrorCode::device_lost));
static_assert(sizeof(decant_error::message) > kMaxErrorText);

/// Fills the caller's error; the status to return.
static int c_status(const Error& from, decant_error* to) noexcept {
  if (to != nullptr) {
    to->status = static_cast<int>(from.code());
    const std::string_view text = from.message();
    std::memcpy(to->message, text.data(), text.size());
    to->message[text.size()] = '\0';
  }
  return static_cast<int>(from.code());
}

static int c_missing(const char* name, decant_error* error) noexcept {
  return c_status(
      guarded([&] {
        return Status(make_error(ErrorCode::invalid_argument, "{} must not be NULL", name));
      }).error(),
      error);
}

/// The caller's struct, which may be older or newer than ours, over our defaults.
template <class Struct>
static Status c_read_struct(const Struct* from, Struct& to) {
  if (from == nullptr) return {};
  if (from->size < sizeof(std::size_t) || from->size > 4096)
    return make_error(ErrorCode::invalid_argument,
                      "a struct says its size is {}; begin with its _default function", from->size);
  std::memcpy(&to, from, std::min(from->size, sizeof(Struct)));
  return {};
}

template <class Body>
static int c_call(decant_error* error, Body&& body) noexcept {
  return c_status(guarded(body).error(), error);
}

static void c_write_stats(const Reply& reply, decant_stats* to) {
  if (to == nullptr) return;
  const ReplyStats from = reply.stats();
  const decant_stats stats{to->size,           from.prompt_tokens,
                           from.cached_tokens, from.tokens,
                           from.ttft_ms,       from.tpot_ms,
                           from.seed,          finish_reason_name(reply.finish_reason()),
                           from.recomputed};
  std::memcpy(to, &stats, std::min(to->size, sizeof stats));
}

static std::chrono::nanoseconds c_nanoseconds(std::uint64_t n) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(n, INT64_MAX)));
}

static Result<GenerateOptions> c_generate_options(const decant_generate_options* options) {
  decant_generate_options c = decant_generate_options_default();
  DECANT_TRY(c_read_struct(options, c));
  if (c.stop == nullptr && c.n_stop != 0)
    return make_error(ErrorCode::invalid_argument, "stop must not be NULL when n_stop is {}",
                      c.n_stop);
  GenerateOptions o;
  o.max_tokens = c.max_tokens;
  o.sampler.temperature = c.temperature;
  o.sampler.top_k = c.top_k;
  o.sampler.top_p = c.top_p;
  o.sampler.min_p = c.min_p;
  if (c.has_seed != 0) o.sampler.seed = c.seed;
  for (std::size_t i = 0; i < c.n_stop; ++i) {
    if (c.stop[i] == nullptr)
      return make_error(ErrorCode::invalid_argument, "stop[{}] must not be NULL", i);
    o.stop.emplace_back(c.stop[i]);
  }
  o.priority = c.priority;
  o.timeout = c_nanoseconds(c.timeout_ns);
  if (c.has_keep_first != 0) o.keep_first = c.keep_first;
  return o;
}

// Functions with C linkage are the header's, whatever namespace they are written in.
extern "C" {

const char* decant_status_string(int status) {
  return status == DECANT_OK ? "ok" : error_code_name(static_cast<ErrorCode>(status));
}

#define DECANT_TEXT_(x) #x
#define DECANT_TEXT(x) DECANT_TEXT_(x)
const char* decant_version(void) {
  return DECANT_TEXT(DECANT_VERSION_MAJOR) "." DECANT_TEXT(DECANT_VERSION_MINOR) "." DECANT_TEXT(
      DECANT_VERSION_PATCH);
}

decant_model_options decant_model_options_default(void) {
  decant_model_options options{};
  options.size = sizeof options;
  options.sessions = 1;
  options.max_batch = ModelOptions().max_batch;
  options.max_queue = SIZE_MAX;
  return options;
}

decant_generate_options decant_generate_options_default(void) {
  decant_generate_options options{};
  options.size = sizeof options;
  options.max_tokens = SIZE_MAX;
  options.temperature = 1.0f;
  options.top_p = 1.0f;
  return options;
}

int decant_model_load(const char* path, const decant_model_options* options, decant_model** model,
                      decant_error* error) {
  if (path == nullptr) return c_missing("path", error);
  if (model == nullptr) return c_missing("model", error);
  return c_call(error, [&]() -> Status {
    decant_model_options c = decant_model_options_default();
    DECANT_TRY(c_read_struct(options, c));
    ModelOptions o;
    if (c.use_reference != 0) o.backend = decant::Backend::reference;
    if (c.use_cuda != 0) {
      o.backend = decant::Backend::cuda;
      o.device = c.use_cuda - 1;
      o.stream = c.stream;
    }
    o.threads = c.threads;
    o.context = c.context;
    o.sessions = c.sessions;
    o.mapped = c.mapped != 0;
    o.prefix_cache = c.no_prefix_cache == 0;
    if (c.manual != 0) o.mode = RunMode::manual;
    o.max_batch = c.max_batch;
    o.max_queue = c.max_queue;
    o.swap_memory = c.swap_memory;
    if (c.progress != nullptr) {
      o.progress = [](void* user, float fraction) {
        const auto& host = *static_cast<const decant_model_options*>(user);
        return host.progress(host.progress_user, fraction) == 0;
      };
      o.progress_user = &c;
    }
    DECANT_ASSIGN(Model loaded, Model::load(std::string_view(path), o));
    *model = new decant_model{std::move(loaded)};
    return {};
  });
}

void decant_model_free(decant_model* model) { delete model; }

int decant_model_step(decant_model* model, uint64_t budget_ns, int* more, decant_error* error) {
  if (model == nullptr) return c_missing("model", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(const bool left, model->model.step(c_nanoseconds(budget_ns)));
    if (more != nullptr) *more = left ? 1 : 0;
    return {};
  });
}

int decant_session_create(decant_model* model, decant_session** session, decant_error* error) {
  if (model == nullptr) return c_missing("model", error);
  if (session == nullptr) return c_missing("session", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(Session created, model->model.session());
    *session = new decant_session{std::move(created)};
    return {};
  });
}

void decant_session_free(decant_session* session) { delete session; }

int decant_session_fork(decant_session* session, size_t n_tokens, decant_session** forked,
                        decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (forked == nullptr) return c_missing("forked", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(Session created, session->session.fork(n_tokens));
    *forked = new decant_session{std::move(created)};
    return {};
  });
}

int decant_session_rewind(decant_session* session, size_t n_tokens, decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  return c_call(error, [&] { return session->session.rewind(n_tokens); });
}

int decant_session_save(decant_session* session, const char* path, decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (path == nullptr) return c_missing("path", error);
  return c_call(error, [&] { return session->session.save(std::string_view(path)); });
}

int decant_session_restore(decant_session* session, const char* path, decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (path == nullptr) return c_missing("path", error);
  return c_call(error, [&] { return session->session.restore(std::string_view(path)); });
}

int decant_sessions_save(const decant_session* const* sessions, size_t n, const char* path,
                         decant_error* error) {
  if (sessions == nullptr && n != 0) return c_missing("sessions", error);
  if (path == nullptr) return c_missing("path", error);
  return c_call(error, [&] {
    std::vector<const Session*> all;
    for (size_t i = 0; i < n; ++i)
      all.push_back(sessions[i] == nullptr ? nullptr : &sessions[i]->session);
    return Session::save_all(all, std::string_view(path));
  });
}

int decant_sessions_restore(decant_model* model, const char* path, decant_session** sessions,
                            size_t* n, decant_error* error) {
  if (model == nullptr) return c_missing("model", error);
  if (path == nullptr) return c_missing("path", error);
  if (n == nullptr) return c_missing("n", error);
  if (sessions == nullptr && *n != 0) return c_missing("sessions", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(auto restored, Session::restore_all(model->model, std::string_view(path)));
    if (restored.size() > *n)
      return make_error(ErrorCode::invalid_argument, "{} sessions were saved, there is room for {}",
                        restored.size(), *n);
    std::vector<std::unique_ptr<decant_session>> boxes;
    for (Session& session : restored)
      boxes.push_back(std::make_unique<decant_session>(decant_session{std::move(session)}));
    *n = boxes.size();
    for (size_t i = 0; i < boxes.size(); ++i) sessions[i] = boxes[i].release();
    return {};
  });
}

int decant_session_append_message(decant_session* session, const char* role, const char* content,
                                  decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (role == nullptr) return c_missing("role", error);
  if (content == nullptr) return c_missing("content", error);
  return c_call(error, [&] { return session->session.append(Message{role, content}); });
}

int decant_session_append_text(decant_session* session, const char* text, size_t n,
                               decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (text == nullptr && n != 0) return c_missing("text", error);
  return c_call(error, [&] { return session->session.append(std::string_view(text, n)); });
}

int decant_session_generate(decant_session* session, const decant_generate_options* options,
                            decant_text_callback on_text, void* user, decant_stats* stats,
                            decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(const GenerateOptions o, c_generate_options(options));
    DECANT_ASSIGN(Reply reply, session->session.generate(o));
    while (const auto piece = reply.next()) {
      if (on_text == nullptr) continue;
      int stop = 0;
      try {
        stop = on_text(user, piece->data(), piece->size());
      } catch (...) {
        reply.stop();
        (void)reply.wait();
        return make_error(ErrorCode::callback_failed,
                          "on_text threw an exception; the reply was stopped");
      }
      if (stop == 0) continue;
      reply.stop();
      break;
    }
    DECANT_TRY(reply.wait());
    c_write_stats(reply, stats);
    return {};
  });
}

int decant_session_start(decant_session* session, const decant_generate_options* options,
                         decant_reply** reply, decant_error* error) {
  if (session == nullptr) return c_missing("session", error);
  if (reply == nullptr) return c_missing("reply", error);
  return c_call(error, [&]() -> Status {
    DECANT_ASSIGN(const GenerateOptions o, c_generate_options(options));
    DECANT_ASSIGN(Reply started, session->session.generate(o));
    *reply = new decant_reply{std::move(started)};
    return {};
  });
}

void decant_reply_free(decant_reply* reply) { delete reply; }

int decant_reply_try_next(decant_reply* reply, const char** text, size_t* n, int* finished,
                          decant_error* error) {
  if (reply == nullptr) return c_missing("reply", error);
  if (text == nullptr) return c_missing("text", error);
  if (n == nullptr) return c_missing("n", error);
  if (finished == nullptr) return c_missing("finished", error);
  return c_call(error, [&]() -> Status {
    // In this order: what came before the end is taken before the end is told.
    const bool ended = reply->reply.finished();
    const std::string_view piece = reply->reply.try_next().value_or(std::string_view());
    *text = piece.data();
    *n = piece.size();
    *finished = ended && piece.empty() ? 1 : 0;
    return *finished != 0 ? reply->reply.status() : Status();
  });
}

void decant_reply_stop(decant_reply* reply) {
  if (reply != nullptr) reply->reply.stop();
}
void decant_reply_cancel(decant_reply* reply) {
  if (reply != nullptr) reply->reply.cancel();
}
void decant_reply_stats(const decant_reply* reply, decant_stats* stats) {
  if (reply != nullptr) c_write_stats(reply->reply, stats);
}

}  // extern "C"

}  // namespace decant::detail
