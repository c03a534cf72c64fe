// What `decant bench --load` runs on a model, with the times of all tokens. Each throws what goes
// wrong, when nothing is in flight any more.
#pragma once

#include <decant/decant.hpp>

#include <cstdint>
#include <vector>

namespace cli {

/// Both ends included.
struct Range {
  std::size_t low, high;
};

/// A request that is to come.
struct Arrival {
  double time;                   // at a mean rate of one a second
  std::size_t prompt, generate;  // tokens
};

/// How long replies are. `skewed`: even on a scale of logarithms, so that most are short and a few
/// long. `bimodal`: nine of ten as short as any, the tenth as long as any.
enum class Lengths { even, skewed, bimodal };

/// A Poisson process, prompts drawn evenly and replies as `lengths` says, the same for each
/// seed.
std::vector<Arrival> draw_arrivals(std::size_t n, std::uint64_t seed, Range prompt, Range generate,
                                   Lengths lengths);

struct ArrivalsResult {
  double seconds = 0;      // from the first arrival to the last token
  double mean_batch = 0;   // sequences in a step
  std::size_t tokens = 0;  // generated
  std::uint64_t preemptions = 0;
  std::vector<double> ttft_ms;  // of each reply: from when it was due to its first token
  std::vector<double> tpot_ms;  // of each reply: the mean time between its tokens
};
/// `rate`: arrivals a second; 0: all of them come at once.
ArrivalsResult run_arrivals(decant::Model& model, const std::vector<Arrival>& arrivals,
                            double rate);

struct TogetherResult {
  double step_ms = 0;                  // a step in which all of them decode; the median
  double tokens_per_second = 0;        // in such steps
  double whole_tokens_per_second = 0;  // generated, by the time from nothing to the last one
};
/// `n` sessions with prompts and replies of such lengths, first with the prompts run before, then
/// all at once from nothing.
TogetherResult run_together(decant::Model& model, std::size_t n, std::size_t prompt,
                            std::size_t generate);

struct LongPromptResult {
  std::vector<double> during_ms, without_ms;  // times between tokens of those that decode
  double ttft_ms = 0;                         // of the long prompt
};
/// `decoding` replies run; after some tokens of each, a long prompt comes. Then the same number of
/// replies without it: the same tokens of each, because a reply slows down as it grows.
LongPromptResult run_long_prompt(decant::Model& model, std::size_t decoding, std::size_t prompt);

/// The value that a share of all values (0..1) does not pass: nearest rank.
double percentile(std::vector<double> values, double share);

}  // namespace cli
