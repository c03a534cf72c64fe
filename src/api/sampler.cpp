// The public Sampler: presets, checks, advice, and its use on any span of logits.
#include "base/fp_contract.hpp"

#include "sample/sampler.hpp"

#include <algorithm>

#include "base/float_mode.hpp"
#include "base/result.hpp"

namespace decant {

Sampler Sampler::greedy() {
  Sampler sampler;
  sampler.temperature = 0.0f;
  return sampler;
}

Sampler Sampler::precise() {
  Sampler sampler;
  sampler.temperature = 0.3f;
  sampler.top_k = 40;
  sampler.top_p = 0.9f;
  return sampler;
}

Sampler Sampler::balanced() {
  Sampler sampler;
  sampler.temperature = 0.7f;
  sampler.top_k = 64;
  sampler.top_p = 0.95f;
  sampler.min_p = 0.05f;
  return sampler;
}

/// min_p scales with the model's certainty and so bears a high temperature better than top_p does
/// (Nguyen et al., Turning up the heat, 2024).
Sampler Sampler::creative() {
  Sampler sampler;
  sampler.temperature = 1.1f;
  sampler.min_p = 0.05f;
  sampler.repetition_penalty = 1.05f;
  sampler.penalty_last = 256;
  return sampler;
}

Status Sampler::validate() const {
  try {
    const detail::FloatMode mode;
    return detail::sampler_validate(*this);
  } catch (...) {
    return detail::current_exception_error();
  }
}

static void sampler_review(const Sampler& s, std::vector<std::string>& warnings) {
  const auto warn = [&](bool when, const char* text) {
    if (when) warnings.emplace_back(text);
  };
  if (const Status valid = detail::sampler_validate(s); !valid) {
    warnings.emplace_back(valid.error().message());
    return;
  }
  const auto missing = [&](SamplerStep step) {
    return std::find(s.order.begin(), s.order.end(), step) == s.order.end();
  };
  const bool penalises =
      s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
  const bool top_k = s.top_k > 0;
  const bool top_p = s.top_p < 1.0f;
  const bool min_p = s.min_p > 0.0f;
  const bool typical = s.typical_p < 1.0f;
  const bool greedy = s.temperature == 0.0f;

  warn(penalises && missing(SamplerStep::penalties),
       "penalties are set, but order leaves them out: they do not happen");
  warn(s.temperature != 1.0f && missing(SamplerStep::temperature),
       "temperature is set, but order leaves it out: it does not happen");
  warn(top_k && missing(SamplerStep::top_k),
       "top_k is set, but order leaves it out: it does not happen");
  warn(top_p && missing(SamplerStep::top_p),
       "top_p is set, but order leaves it out: it does not happen");
  warn(min_p && missing(SamplerStep::min_p),
       "min_p is set, but order leaves it out: it does not happen");
  warn(typical && missing(SamplerStep::typical),
       "typical_p is set, but order leaves it out: it does not happen");
  warn(penalises && !missing(SamplerStep::penalties) && *s.order.begin() != SamplerStep::penalties,
       "penalties come after another step: tokens that were dropped before cannot come back");

  warn(greedy && typical,
       "typical_p may drop the most likely token before temperature 0 takes the best of the rest");
  warn(greedy && (top_k || top_p || min_p),
       "temperature 0 always takes the most likely token: top_k, top_p and min_p change nothing");
  warn(s.top_k == 1 && !greedy && (s.temperature != 1.0f || top_p || min_p),
       "top_k 1 always takes the most likely token: temperature, top_p and min_p change nothing");
  warn(!greedy && s.temperature < 0.4f && top_p && s.top_p < 0.6f,
       "a low temperature and a low top_p together are nearly greedy: choose one of them");
  warn(s.temperature > 1.2f && !top_k && !top_p && !min_p && !typical,
       "a high temperature without a limit reaches far-fetched tokens: add min_p 0.05");
  warn(s.temperature > 1.2f && top_p && s.top_p < 0.5f,
       "a high temperature and a low top_p work against each other: choose one of them");
  warn(s.temperature > 2.0f, "a temperature above 2 seldom gives readable text");
  warn(top_p && s.top_p < 0.05f, "top_p near 0 takes the most likely token: set temperature 0");
  warn(s.min_p > 0.5f, "min_p above 0.5 is nearly greedy; usual values are 0.02 to 0.1");
  warn(top_p && min_p && typical,
       "top_p, min_p and typical_p all cut the same tail: one of them is easier to tune");

  warn(penalises && s.penalty_last == 0, "penalty_last 0 leaves the penalties nothing to look at");
  warn(s.repetition_penalty > 1.5f,
       "a repetition_penalty above 1.5 suppresses common words; usual values are 1.05 to 1.2");
  warn(s.repetition_penalty < 1.0f, "a repetition_penalty below 1 rewards repetition");
  warn(s.frequency_penalty < 0.0f || s.presence_penalty < 0.0f,
       "a negative frequency or presence penalty rewards repetition");
  warn(s.frequency_penalty > 2.0f || s.presence_penalty > 2.0f,
       "a frequency or presence penalty above 2 suppresses common words");
  warn(s.repetition_penalty > 1.1f && (s.frequency_penalty > 0.0f || s.presence_penalty > 0.0f),
       "repetition_penalty and frequency or presence penalties punish the same tokens twice");
}

std::vector<std::string> Sampler::review() const {
  std::vector<std::string> warnings;
  try {
    const detail::FloatMode mode;
    sampler_review(*this, warnings);
  } catch (...) {
    // Out of memory: what was said so far must do.
  }
  return warnings;
}

Result<std::vector<double>> Sampler::probabilities(std::span<const float> logits,
                                                   std::span<const Token> history) const {
  try {
    const detail::FloatMode mode;
    detail::SamplerWorkspace workspace;
    std::vector<double> probabilities(logits.size());
    DECANT_TRY(detail::sampler_distribution(*this, logits, history, workspace, probabilities));
    return probabilities;
  } catch (...) {
    return detail::current_exception_error();
  }
}

Result<Token> Sampler::sample(std::span<const float> logits, std::span<const Token> history,
                              std::uint64_t position) const {
  try {
    const detail::FloatMode mode;
    detail::SamplerWorkspace workspace;
    return detail::sample_token(*this, logits, history, seed.value_or(0), position, workspace);
  } catch (...) {
    return detail::current_exception_error();
  }
}

}  // namespace decant
