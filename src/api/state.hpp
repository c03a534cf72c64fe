// What the public handles point to. Destruction in any order is safe: a reply keeps the model, a
// request keeps its sequence, and the last handle to go ends the worker.
#pragma once

#include "base/float_mode.hpp"
#include "kv/snapshot.hpp"
#include "schedule/engine.hpp"
#include "text/chat_builtin.hpp"
#include "text/jinja/template.hpp"

namespace decant::detail {

struct ModelState {
  ModelInfo info;
  MemoryPlan memory;
  SnapshotShape snapshot_shape;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: see tokenizer_error
  Error tokenizer_error;
  std::optional<ChatTemplate> chat_template;  // of the file
  Error chat_error;                           // why the file's template cannot be used
  bool gemma_chat = false;                    // for files without one
  std::string bos_text, eos_text;             // what templates see of these tokens
  std::vector<Token> end_tokens;              // ascending
  std::shared_ptr<Engine> engine;             // null: loaded with vocabulary_only
  const std::uint64_t process = process_id();
  std::mutex pins_mutex;
  std::vector<std::unique_ptr<KvSequence>> pins;  // prefixes that stay in the cache

  ModelState() = default;
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;
  ~ModelState() {
    if (engine != nullptr) engine->shutdown();
  }
  /// Whether this is a child that fork made: it has the handles but not the threads, and locks may
  /// be held for ever.
  bool is_forked() const noexcept { return process_id() != process; }
  Status need_engine() const {
    if (engine != nullptr) return {};
    return Error(ErrorCode::invalid_state,
                 "the model was loaded with vocabulary_only; load it whole for sessions");
  }
  Status need_tokenizer() const {
    if (tokenizer == nullptr) return tokenizer_error;
    return {};
  }
};

struct SessionState {
  enum class Kind : std::uint8_t { empty, text, chat };

  std::shared_ptr<ModelState> model;
  std::shared_ptr<Sequence> sequence;
  Kind kind = Kind::empty;
  std::vector<Message> messages;
  std::vector<std::vector<Token>> generated;  // [messages]: of replies, without the end token
  std::vector<float> logits;                  // [n_vocab]
  std::shared_ptr<Request> request;           // the last reply, until its outcome is taken in
  std::size_t n_seen = 0;  // tokens that stay whatever becomes of it: what tokens() shows meanwhile

  /// `busy` while a reply is in flight; takes in the outcome of one that ended. Waits for the step
  /// that ends a reply whose handle is gone.
  Status settle();
};

struct ReplyState {
  std::shared_ptr<ModelState> model;
  std::shared_ptr<Request> request;
  std::string piece;  // what next() returned last

  ~ReplyState() {
    if (request == nullptr) return;
    request->asked = Request::Asked::cancel;
    request->dropped = true;
  }
};

/// Runs the body of a public function in the library's floating-point mode; exceptions become an
/// Error.
template <class Body>
auto guarded(Body&& body) noexcept -> decltype(body()) {
  const FloatMode mode;
  try {
    return body();
  } catch (...) {
    return current_exception_error();
  }
}

/// The same for a model's handles, which are of no use in a child process.
template <class Body>
auto guarded(const ModelState& model, Body&& body) noexcept -> decltype(body()) {
  if (model.is_forked())
    return Error(ErrorCode::invalid_state,
                 "a model does not outlive fork; load one in the child process");
  return guarded(body);
}

/// Lets go of what a handle points to. In a child process it stays: to destroy it would wait for
/// threads that are not there.
template <class State>
void drop_state(std::shared_ptr<State>& state, const ModelState* model) noexcept {
  if (model != nullptr && model->is_forked()) {
    alignas(std::shared_ptr<State>) std::byte kept[sizeof state];
    new (kept) std::shared_ptr<State>(std::move(state));  // never destroyed
  }
  state.reset();
}

}  // namespace decant::detail
