// The C interface, through decant.h alone (the models come from files that the helpers write).
#include <decant/decant.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "support/catch.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_model.hpp"

using namespace decant_test;

namespace {

struct CModel {
  decant_model* model = nullptr;
  decant_session* session = nullptr;
  decant_error error = {};

  explicit CModel(const TinyModel& tiny, const std::string& prompt = "Q") {
    const TempFolder folder;
    const std::string path = folder.write("tiny.gguf", tiny.file());
    decant_model_options options = decant_model_options_default();
    options.threads = 2;
    REQUIRE(decant_model_load(path.c_str(), &options, &model, &error) == DECANT_OK);
    REQUIRE(decant_session_create(model, &session, &error) == DECANT_OK);
    if (prompt.empty()) return;
    REQUIRE(decant_session_append_text(session, prompt.data(), prompt.size(), &error) == DECANT_OK);
  }
  ~CModel() {
    decant_session_free(session);
    decant_model_free(model);
  }
};

/// a -> b -> c -> ... -> z, then the end.
TinyModel alphabet() {
  return chain_model([](Token t) {
    if (t == byte_token('Q')) return byte_token('a');
    return t >= byte_token('a') && t < byte_token('z') ? t + 1 : kTinyEnd;
  });
}

decant_generate_options greedy() {
  decant_generate_options options = decant_generate_options_default();
  options.temperature = 0;
  return options;
}

struct Heard {
  std::string text;
  std::size_t stop_at = SIZE_MAX;
  bool throws = false;
  static int hear(void* self, const char* text, size_t n) {
    Heard& h = *static_cast<Heard*>(self);
    h.text.append(text, n);
    if (h.throws) throw 1;
    return h.text.size() >= h.stop_at ? 1 : 0;
  }
};

}  // namespace

TEST_CASE("C: a whole conversation with the defaults") {
  CModel c(alphabet());
  CHECK(c.error.status == DECANT_OK);
  CHECK(std::string(c.error.message).empty());
  Heard heard;
  decant_stats stats = {};
  stats.size = sizeof stats;
  const decant_generate_options options = greedy();
  REQUIRE(decant_session_generate(c.session, &options, Heard::hear, &heard, &stats, &c.error) ==
          DECANT_OK);
  CHECK(heard.text == "abcdefghijklmnopqrstuvwxyz");
  CHECK(stats.prompt_tokens == 1);
  CHECK(stats.cached_tokens == 0);
  CHECK(stats.tokens == 27);
  CHECK(stats.ttft_ms > 0);
  CHECK(stats.tpot_ms > 0);
  CHECK(std::string(stats.finish_reason) == "end_token");

  // Everything optional left out.
  REQUIRE(decant_session_append_text(c.session, "x", 1, nullptr) == DECANT_OK);
  CHECK(decant_session_generate(c.session, nullptr, nullptr, nullptr, nullptr, nullptr) ==
        DECANT_OK);
  REQUIRE(decant_session_append_text(c.session, nullptr, 0, nullptr) == DECANT_OK);
}

TEST_CASE("C: messages") {
  TinySpec spec;
  spec.architecture = "gemma3";
  CModel c(random_model(spec), "");
  REQUIRE(decant_session_append_message(c.session, "user", "hi", &c.error) == DECANT_OK);
  decant_generate_options options = decant_generate_options_default();
  options.max_tokens = 4;
  options.has_seed = 1;
  options.seed = 77;
  decant_stats stats = {};
  stats.size = sizeof stats;
  REQUIRE(decant_session_generate(c.session, &options, nullptr, nullptr, &stats, &c.error) == 0);
  CHECK(stats.seed == 77);
  CHECK(decant_session_append_text(c.session, "raw", 3, &c.error) == DECANT_INVALID_STATE);
  CHECK(std::string(c.error.message).find("messages") != std::string::npos);
}

TEST_CASE("C: a GPU, and a stream on it") {
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", alphabet().file());
  decant_model_options options = decant_model_options_default();
  CHECK(options.use_cuda == 0);
  CHECK(options.stream == nullptr);
  int stream = 0;
  options.stream = &stream;  // not looked at by the CPU
  decant_error error;
  decant_model* model = nullptr;
  REQUIRE(decant_model_load(path.c_str(), &options, &model, &error) == DECANT_OK);
  decant_model_free(model);
  options.use_cuda = 1000;  // no machine has so many
  const int status = decant_model_load(path.c_str(), &options, &model, &error);
  CHECK((status == DECANT_UNSUPPORTED || status == DECANT_DEVICE_UNAVAILABLE));
  options.use_cuda = -1;
  CHECK(decant_model_load(path.c_str(), &options, &model, &error) == DECANT_INVALID_ARGUMENT);
}

TEST_CASE("C: the caller steps the model and polls a reply") {
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", alphabet().file());
  decant_model_options model_options = decant_model_options_default();
  CHECK(model_options.max_batch == 64);
  CHECK(model_options.swap_memory == 0);
  model_options.threads = 1;
  model_options.manual = 1;
  model_options.max_batch = 1;
  model_options.max_queue = 0;
  model_options.swap_memory = 1;
  decant_error error;
  decant_model* model = nullptr;
  CHECK(decant_model_load(path.c_str(), &model_options, &model, &error) == DECANT_INVALID_ARGUMENT);
  CHECK(std::string(error.message).find("swap_memory") != std::string::npos);
  model_options.swap_memory = 1 << 20;
  REQUIRE(decant_model_load(path.c_str(), &model_options, &model, &error) == DECANT_OK);
  decant_session *session = nullptr, *other = nullptr;
  REQUIRE(decant_session_create(model, &session, &error) == DECANT_OK);
  REQUIRE(decant_session_create(model, &other, &error) == DECANT_OK);
  REQUIRE(decant_session_append_text(session, "Q", 1, &error) == DECANT_OK);
  REQUIRE(decant_session_append_text(other, "Q", 1, &error) == DECANT_OK);
  decant_generate_options options = greedy();
  options.priority = 3;
  options.timeout_ns = UINT64_MAX;
  decant_reply *reply = nullptr, *refused = nullptr;
  REQUIRE(decant_session_start(session, &options, &reply, &error) == DECANT_OK);
  CHECK(decant_session_start(other, &options, &refused, &error) == DECANT_QUEUE_FULL);
  CHECK(refused == nullptr);
  std::string text;
  int more = 1, finished = 0;
  while (finished == 0) {
    const char* piece = nullptr;
    size_t n = 0;
    REQUIRE(decant_model_step(model, 0, &more, &error) == DECANT_OK);
    REQUIRE(decant_reply_try_next(reply, &piece, &n, &finished, &error) == DECANT_OK);
    if (n != 0) text.append(piece, n);
  }
  CHECK(more == 0);
  CHECK(text == "abcdefghijklmnopqrstuvwxyz");
  decant_stats stats = {};
  stats.size = sizeof stats;
  decant_reply_stats(reply, &stats);
  CHECK(stats.tokens == 27);
  decant_reply_free(reply);

  // Stopped, cancelled, timed out.
  const auto reason = [&](auto&& end, std::uint64_t timeout_ns) {
    options.timeout_ns = timeout_ns;
    REQUIRE(decant_session_start(other, &options, &reply, &error) == DECANT_OK);
    for (int i = 0; i < 20; ++i) (void)decant_model_step(model, 0, nullptr, &error);
    end(reply);
    while (decant_model_step(model, 0, &more, &error) == DECANT_OK && more != 0) {
    }
    decant_reply_stats(reply, &stats);
    decant_reply_free(reply);
    REQUIRE(decant_session_rewind(other, 1, &error) == DECANT_OK);
    return std::string(stats.finish_reason);
  };
  CHECK(reason([](decant_reply* r) { decant_reply_stop(r); }, 0) == "stopped");
  CHECK(reason([](decant_reply* r) { decant_reply_cancel(r); }, 0) == "cancelled");
  CHECK(reason([](decant_reply*) {}, 1) == "timeout");
  decant_reply_stop(nullptr);
  decant_reply_cancel(nullptr);
  decant_reply_free(nullptr);
  decant_session_free(session);
  decant_session_free(other);
  decant_model_free(model);
}

TEST_CASE("C: sessions saved and restored together, and a window that rolls") {
  CModel c(alphabet(), "Qabc");
  const TempFolder folder;
  const std::string path = folder.file("sessions.kv");
  decant_session* fork = nullptr;
  REQUIRE(decant_session_fork(c.session, 1, &fork, &c.error) == DECANT_OK);
  const decant_session* both[] = {c.session, fork};
  REQUIRE(decant_sessions_save(both, 2, path.c_str(), &c.error) == DECANT_OK);
  CHECK(decant_sessions_save(both, 0, path.c_str(), &c.error) == DECANT_INVALID_ARGUMENT);
  both[1] = nullptr;
  CHECK(decant_sessions_save(both, 2, path.c_str(), &c.error) == DECANT_INVALID_ARGUMENT);
  decant_session* restored[3] = {};
  size_t n = 1;
  CHECK(decant_sessions_restore(c.model, path.c_str(), restored, &n, &c.error) ==
        DECANT_INVALID_ARGUMENT);
  CHECK(std::string(c.error.message).find("2 sessions") != std::string::npos);
  CHECK(n == 1);
  CHECK(restored[0] == nullptr);
  n = 3;
  REQUIRE(decant_sessions_restore(c.model, path.c_str(), restored, &n, &c.error) == DECANT_OK);
  REQUIRE(n == 2);
  CHECK(restored[2] == nullptr);
  decant_generate_options options = greedy();
  for (size_t i = 0; i < n; ++i) {
    Heard heard;
    REQUIRE(decant_session_generate(restored[i], &options, Heard::hear, &heard, nullptr,
                                    &c.error) == DECANT_OK);
    CHECK(heard.text == (i == 0 ? "defghijklmnopqrstuvwxyz" : "abcdefghijklmnopqrstuvwxyz"));
    decant_session_free(restored[i]);
  }

  // z is followed by a here: without a window the reply ends when the session is full.
  CModel circle(chain_model([](Token t) {
    return t >= byte_token('a') && t < byte_token('z') ? t + 1 : byte_token('a');
  }));
  decant_stats stats = {};
  stats.size = sizeof stats;
  options.max_tokens = 1000;
  options.has_keep_first = 1;
  options.keep_first = 1;
  REQUIRE(decant_session_generate(circle.session, &options, nullptr, nullptr, &stats,
                                  &circle.error) == DECANT_OK);
  CHECK(stats.tokens == 1000);
  options.has_keep_first = 0;
  REQUIRE(decant_session_generate(circle.session, &options, nullptr, nullptr, &stats,
                                  &circle.error) == DECANT_OK);
  CHECK(std::string(stats.finish_reason) == "context_full");
  decant_session_free(fork);
}

TEST_CASE("C: NULL where something must be is an error that names it") {
  CModel c(alphabet());
  decant_error error;
  decant_model* model = reinterpret_cast<decant_model*>(8);
  decant_session* session = reinterpret_cast<decant_session*>(8);
  const auto named = [&](int status, const char* name) {
    CHECK(status == DECANT_INVALID_ARGUMENT);
    CHECK(error.status == status);
    CHECK(std::string(error.message) == std::string(name) + " must not be NULL");
  };
  named(decant_model_load(nullptr, nullptr, &model, &error), "path");
  named(decant_model_load("x", nullptr, nullptr, &error), "model");
  named(decant_session_create(nullptr, &session, &error), "model");
  named(decant_session_create(c.model, nullptr, &error), "session");
  named(decant_session_append_message(nullptr, "user", "x", &error), "session");
  named(decant_session_append_message(c.session, nullptr, "x", &error), "role");
  named(decant_session_append_message(c.session, "user", nullptr, &error), "content");
  named(decant_session_append_text(nullptr, "x", 1, &error), "session");
  named(decant_session_append_text(c.session, nullptr, 1, &error), "text");
  named(decant_session_generate(nullptr, nullptr, nullptr, nullptr, nullptr, &error), "session");
  decant_reply* reply = nullptr;
  named(decant_model_step(nullptr, 0, nullptr, &error), "model");
  named(decant_session_start(nullptr, nullptr, &reply, &error), "session");
  named(decant_session_start(c.session, nullptr, nullptr, &error), "reply");
  named(decant_reply_try_next(nullptr, nullptr, nullptr, nullptr, &error), "reply");
  size_t n = 1;
  named(decant_sessions_save(nullptr, 1, "x", &error), "sessions");
  named(decant_sessions_save(nullptr, 0, nullptr, &error), "path");
  named(decant_sessions_restore(nullptr, "x", &session, &n, &error), "model");
  named(decant_sessions_restore(c.model, nullptr, &session, &n, &error), "path");
  named(decant_sessions_restore(c.model, "x", &session, nullptr, &error), "n");
  named(decant_sessions_restore(c.model, "x", nullptr, &n, &error), "sessions");
  CHECK(model == reinterpret_cast<decant_model*>(8));
  CHECK(session == reinterpret_cast<decant_session*>(8));
  CHECK(decant_model_load(nullptr, nullptr, nullptr, nullptr) == DECANT_INVALID_ARGUMENT);
  decant_model_free(nullptr);
  decant_session_free(nullptr);
  decant_generate_options options = greedy();
  options.n_stop = 1;
  CHECK(decant_session_generate(c.session, &options, nullptr, nullptr, nullptr, &error) ==
        DECANT_INVALID_ARGUMENT);
  const char* stops[] = {"x", nullptr};
  options.stop = stops;
  options.n_stop = 2;
  CHECK(decant_session_generate(c.session, &options, nullptr, nullptr, nullptr, &error) ==
        DECANT_INVALID_ARGUMENT);
  CHECK(std::string(error.message).find("stop[1]") != std::string::npos);
}

TEST_CASE("C: failed loads leave the handle as it was") {
  decant_model* model = nullptr;
  decant_error error;
  CHECK(decant_model_load("/no/such/file.gguf", nullptr, &model, &error) == DECANT_NOT_FOUND);
  CHECK(model == nullptr);
  CHECK(error.status == DECANT_NOT_FOUND);
  CHECK(std::string(error.message).find("/no/such/file.gguf") != std::string::npos);
  decant_model_options options = decant_model_options_default();
  options.threads = -1;
  CHECK(decant_model_load("/no/such/file.gguf", &options, &model, &error) ==
        DECANT_INVALID_ARGUMENT);
}

TEST_CASE("C: sizes of structs tell which fields the caller knows") {
  CModel c(alphabet());
  decant_error error;
  for (const size_t wrong : {size_t{0}, size_t{7}, size_t{4097}, SIZE_MAX}) {
    decant_generate_options options = greedy();
    options.size = wrong;
    CHECK(decant_session_generate(c.session, &options, nullptr, nullptr, nullptr, &error) ==
          DECANT_INVALID_ARGUMENT);
    CHECK(std::string(error.message).find("_default") != std::string::npos);
    decant_model_options load = decant_model_options_default();
    load.size = wrong;
    decant_model* model = nullptr;
    CHECK(decant_model_load("x", &load, &model, &error) == DECANT_INVALID_ARGUMENT);
  }
  // An older caller, whose struct ends behind temperature: the rest has its defaults.
  decant_generate_options older = greedy();
  older.max_tokens = 3;
  older.size = offsetof(decant_generate_options, top_k);
  older.top_p = 17;  // out of range, but not part of it
  Heard heard;
  CHECK(decant_session_generate(c.session, &older, Heard::hear, &heard, nullptr, &error) ==
        DECANT_OK);
  CHECK(heard.text == "abc");
  // A newer caller, whose struct goes on.
  struct {
    decant_generate_options options;
    char more[64];
  } newer = {greedy(), {}};
  std::memset(newer.more, 0x55, sizeof newer.more);
  newer.options.size = sizeof newer;
  newer.options.max_tokens = 1;
  CHECK(decant_session_generate(c.session, &newer.options, nullptr, nullptr, nullptr, &error) ==
        DECANT_OK);
  // Stats of any size: nothing is written behind it.
  for (const size_t size : {size_t{0}, sizeof(size_t), offsetof(decant_stats, tokens),
                            offsetof(decant_stats, seed), sizeof(decant_stats)}) {
    struct {
      decant_stats stats;
      char behind[16];
    } given;
    std::memset(&given, 0x55, sizeof given);
    given.stats.size = size;
    decant_generate_options one = greedy();
    one.max_tokens = 1;
    CHECK(decant_session_generate(c.session, &one, nullptr, nullptr, &given.stats, &error) ==
          DECANT_OK);
    CHECK(given.stats.size == size);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
    std::size_t touched = 0;
    for (std::size_t i = std::max(size, sizeof(size_t)); i < sizeof given; ++i)
      touched += bytes[i] != 0x55;
    CHECK(touched == 0);
    if (size > offsetof(decant_stats, seed)) CHECK(given.stats.tokens == 1);
  }
}

TEST_CASE("C: the callback may stop, or throw") {
  CModel c(alphabet());
  const decant_generate_options options = greedy();
  Heard heard;
  heard.throws = true;
  CHECK(decant_session_generate(c.session, &options, Heard::hear, &heard, nullptr, &c.error) ==
        DECANT_CALLBACK_FAILED);
  CHECK(std::string(c.error.message).find("on_text") != std::string::npos);
  REQUIRE(decant_session_append_text(c.session, "x", 1, &c.error) == DECANT_OK);
  // Stopped: what came is kept, and the session is usable at once.
  CHECK(heard.text.substr(0, 1) == "a");
  CModel fresh(alphabet());
  heard = Heard();
  heard.stop_at = 1;
  decant_stats stats = {};
  stats.size = sizeof stats;
  CHECK(decant_session_generate(fresh.session, &options, Heard::hear, &heard, &stats,
                                &fresh.error) == DECANT_OK);
  CHECK(heard.text.substr(0, 1) == "a");
  CHECK(stats.prompt_tokens == 1);
  const std::string reason = stats.finish_reason;
  CHECK((reason == "stopped" || reason == "end_token"));
  CHECK(stats.tokens >= heard.text.size());
}

TEST_CASE("C: stop strings, seeds and progress") {
  CModel c(alphabet());
  decant_generate_options options = greedy();
  const char* stops[] = {"zz", "ef"};
  options.stop = stops;
  options.n_stop = 2;
  Heard heard;
  decant_stats stats = {};
  stats.size = sizeof stats;
  REQUIRE(decant_session_generate(c.session, &options, Heard::hear, &heard, &stats, &c.error) == 0);
  CHECK(heard.text == "abcd");
  CHECK(std::string(stats.finish_reason) == "stop_string");
  CHECK(stats.tokens == 4);

  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", alphabet().file());
  struct Progress {
    std::vector<float> seen;
    std::size_t cancel_at = SIZE_MAX;
    static int report(void* self, float fraction) {
      auto& p = *static_cast<Progress*>(self);
      p.seen.push_back(fraction);
      return p.seen.size() > p.cancel_at;
    }
  } progress;
  decant_model_options load = decant_model_options_default();
  load.progress = Progress::report;
  load.progress_user = &progress;
  decant_model* model = nullptr;
  REQUIRE(decant_model_load(path.c_str(), &load, &model, nullptr) == DECANT_OK);
  decant_model_free(model);
  REQUIRE(progress.seen.size() > 3);
  CHECK(progress.seen.front() == 0.0f);
  CHECK(progress.seen.back() == 1.0f);
  CHECK(std::is_sorted(progress.seen.begin(), progress.seen.end()));
  model = nullptr;
  progress = Progress();
  progress.cancel_at = 2;
  CHECK(decant_model_load(path.c_str(), &load, &model, &c.error) == DECANT_CALLBACK_FAILED);
  CHECK(model == nullptr);
}

TEST_CASE("C: names and version") {
  CHECK(std::string(decant_status_string(DECANT_OK)) == "ok");
  CHECK(std::string(decant_status_string(DECANT_CONTEXT_FULL)) == "context_full");
  CHECK(decant_status_string(-5) != nullptr);
  CHECK(decant_status_string(12345) != nullptr);
  CHECK(std::string(decant_version()) == "0.1.0");
  for (int status = 1; status <= DECANT_INTERNAL; ++status)
    CHECK(std::string(decant_status_string(status)) ==
          decant::error_code_name(static_cast<decant::ErrorCode>(status)));
}
