// One call that runs on the engine: a reply in the making, or logits of given positions.
//
// While in flight, the request and its sequence belong to whoever steps the engine, except for the
// `shared` part, which the waiting side reads under its mutex, and `asked`, which any thread sets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>

#include "backend/backend.hpp"
#include "schedule/planner.hpp"
#include "schedule/sequence.hpp"
#include "text/stream.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

class Request;
using Requests = std::list<std::shared_ptr<Request>>;

class Request {
 public:
  enum class Asked : std::uint8_t { nothing, stop, cancel };
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<Sequence> sequence;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: no text
  std::atomic<Asked> asked{Asked::nothing};
  std::atomic<bool> dropped{false};  // its Reply is gone: nobody else can wait for the end

  // A request for logits: those after each of the last `n_logits` tokens go to logits_out, row by
  // row. 0: a reply.
  std::size_t n_logits = 0;
  float* logits_out = nullptr;  // [n_logits][n_vocab]

  // A reply.
  GenerateOptions options;
  StopStrings stops;
  std::vector<Token> end_tokens;  // ascending
  std::uint64_t seed = 0;
  std::vector<float> logits;     // [n_vocab], of the next token
  std::optional<Choice> choice;  // of the next token, if it is made before the commit
  Clock::time_point deadline = Clock::time_point::max();
  std::size_t guaranteed = 0;  // tokens that pages are set aside for; 0: it may be preempted
  Turn turn;
  bool active = false;       // in the batch
  std::size_t n_prompt = 0;  // tokens of the sequence before the reply, of those that always stay
  std::size_t n_run = 0;     // tokens that were run before the first new one
  // The prompt of several replies, which go on with its pages and logits when it was run. It ends
  // with them, or when all of them have ended before.
  Requests samples;
  bool is_prompt = false, is_sample = false;
  // To undo: the tokens were the first undo_prefix of today's, then undo_suffix.
  std::size_t undo_prefix = 0;
  std::vector<Token> undo_suffix;

  /// What the waiting side sees. Guarded by `mutex`; `changed` tells of news.
  struct Shared {
    bool finished = false;
    FinishReason reason = FinishReason::none;
    Error error;
    std::string ready;          // text that was not taken yet
    std::vector<Token> tokens;  // of the reply
    std::string text;           // of the reply, once finished
    ReplyStats stats;
  };
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  Shared shared;

  /// Whether it shall end, and how: cancelled, stopped, or timeout.
  FinishReason wants_to_end(Clock::time_point now) const;
  bool is_cancelled() const { return asked.load(std::memory_order_relaxed) == Asked::cancel; }
  bool is_dropped() const { return dropped.load(); }
  void ask_to_stop() noexcept;  // a cancel that came first stands

  // For whoever steps, and before the request is submitted.
  void start();
  /// One of the samples when the prompt was run: takes over its pages and logits.
  void go_on_from(const Request& prompt, bool first);
  void note_admission(Clock::time_point now);
  /// How many of the last tokens are run in any case: their logits are asked for.
  std::size_t n_wanted() const { return n_logits == 0 ? 1 : n_logits; }
  /// Whether its next token takes the sampler alone, no callback.
  bool wants_only_sampling() const {
    return n_logits == 0 && !is_prompt && options.process_logits == nullptr;
  }
  /// Takes pages of the prefix tree in place of running tokens, before the first new token.
  void resume();
  /// Makes room in a sequence that is full (GenerateOptions::keep_first).
  void roll();
  /// Its pages are gone, also those in the swap space; its tokens are still to come or to be run
  /// again.
  void lose_pages();
  /// Takes in the next token of the reply; the reason if the reply ends with it, else none. Nobody
  /// sees the token before it is published.
  FinishReason accept(Token token);
  /// Shows waiters, or the host, the token that was accepted and its text. If that fails, the
  /// reply has failed and asks to be stopped.
  void publish() noexcept;
  bool has_failed() const { return static_cast<bool>(failure_); }
  /// The sequence as it was before the call.
  void undo();
  /// Ends the request; on cancel and on errors the sequence is as it was before the call.
  void finish(FinishReason reason, Error error) noexcept;

  bool is_finished() const {
    const std::lock_guard lock(mutex);
    return shared.finished;
  }

 private:
  FinishReason flush(FinishReason reason);
  void keep_text_only();
  void show();
  void tell(const ReplyText& piece) noexcept;
  void fail(Error error) noexcept;

  std::string bytes_;              // of all tokens of the reply
  std::vector<std::size_t> ends_;  // where each token ends in bytes_
  std::size_t passed_ = 0;         // bytes that went past the stop strings
  Utf8Stream utf8_;
  std::optional<Token> token_;  // that is not published yet
  std::string text_;            // the same
  Error failure_;               // of publishing; the reply's, once it ends
  bool admitted_ = false;
  Clock::time_point started_, first_token_, last_token_;
};

}  // namespace decant::detail
