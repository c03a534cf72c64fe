// Who runs in the next step, and with how many rows. Numbers in, numbers out: no model, no clock.
//
// Sequences that decode (one token to go) come first, a row each; prompts share the rest. While
// some decode, a prompt gets only as many rows as keep their pace. Prompts never wait for ever: a
// part of each step is theirs, and whoever has waited longest goes first.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace decant::detail {

/// Where a request stands in line.
struct Turn {
  bool decoding = false;
  int priority = 0;          // higher ones first
  std::uint64_t since = 0;   // the step in which it had rows last, or came in
  std::uint64_t number = 0;  // in the order of submission
};
/// Rows of a step: decoding ones, then prompts; of each, by priority, and of equals who has waited
/// longest.
bool goes_before(const Turn& a, const Turn& b);
/// Into the batch: by priority, then in the order of submission. The last one is the first to be
/// preempted.
bool comes_before(const Turn& a, const Turn& b);

/// Deals out the rows of one step.
class RowBudget {
 public:
  /// `prompt_rows`: most of them for prompts. `step` counts steps: with one row a step, prompts and
  /// decoding sequences take turns.
  RowBudget(std::size_t max_rows, std::size_t prompt_rows, std::size_t n_decoding,
            std::size_t n_prompts, std::uint64_t step);
  /// Rows for a request with `wanted` tokens to run; to be asked in the order of goes_before.
  std::size_t take(bool decoding, std::size_t wanted);
  std::size_t prompt_rows_left() const { return prompts_; }
  /// Takes back what was dealt out and not used.
  void give_back(bool decoding, std::size_t n) { (decoding ? decoding_ : prompts_) += n; }

 private:
  std::size_t decoding_, prompts_;  // rows left
};

/// What rows cost, as measured: passes in which all sequences decode, and each row of a prompt on
/// top of them.
class Pace {
 public:
  using Duration = std::chrono::nanoseconds;
  /// A pass took so long.
  void note(std::size_t n_decoding, std::size_t prompt_rows, Duration passed);
  /// Most rows of prompts in a pass. While others decode, prompts together get as much time as
  /// those, so that the pass takes twice as long, and more where they are many. `wanted` is how
  /// long it should take, or 0 for any time.
  std::size_t prompt_rows(std::size_t n_decoding, std::size_t n_prompts, Duration wanted) const;

 private:
  double decode_ = 0, row_ = 0;  // nanoseconds; 0: not known
};

}  // namespace decant::detail
