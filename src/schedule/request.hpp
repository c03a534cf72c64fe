// One call that runs on the engine: a reply in the making, or logits of given positions.
//
// While in flight, the request and its sequence belong to the engine's worker, except for the
// `shared` part, which the waiting side reads under its mutex, and `asked`, which any thread sets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "schedule/sequence.hpp"
#include "text/stream.hpp"
#include "text/tokenizer.hpp"

namespace decant::detail {

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
  std::vector<float> logits;  // [n_vocab], of the next token
  std::uint64_t number = 0;   // in the order of submission
  std::size_t n_prompt = 0;   // tokens of the sequence before the reply, of those that always stay
  std::size_t n_run = 0;      // tokens that were run before the first new one
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

  // For the worker, and before the request is submitted.
  void start();
  /// How many of the last tokens are run in any case: their logits are asked for.
  std::size_t n_wanted() const { return n_logits == 0 ? 1 : n_logits; }
  /// Takes pages of the prefix tree in place of running tokens, before the first new token.
  void resume();
  /// Makes room in a sequence that is full (GenerateOptions::keep_first).
  void roll();
  /// Takes in the next token of the reply; the reason if the reply ends with it, else none.
  FinishReason accept(Token token);
  /// Ends the request; on cancel and on errors the sequence is as it was before the call.
  void finish(FinishReason reason, Error error) noexcept;

  bool is_finished() const {
    const std::lock_guard lock(mutex);
    return shared.finished;
  }
  void wait() const {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return shared.finished; });
  }

 private:
  FinishReason flush(FinishReason reason);
  void keep_text_only();
  void publish(std::string&& text, std::optional<Token> token);

  std::string bytes_;              // of all tokens of the reply
  std::vector<std::size_t> ends_;  // where each token ends in bytes_
  std::size_t passed_ = 0;         // bytes that went past the stop strings
  Utf8Stream utf8_;
  Clock::time_point started_, first_token_, last_token_;
};

}  // namespace decant::detail
