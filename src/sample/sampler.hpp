// From logits to a token: the steps of decant::Sampler in double arithmetic, without allocating
// once a workspace has seen the vocabulary.
//
// With x the logits, p = softmax(x) over the candidates left and c the occurrences in the history:
//   penalties    x / r if x > 0 else x * r, then - f c - q, for each token with c > 0
//   temperature  x / T; the best candidate alone if T is 0 (or below the normal floats)
//   top_k        the k largest x
//   top_p        by x descending, the shortest prefix whose p sum to P or more
//   min_p        p >= m max(p)
//   typical      by |-ln p - H| ascending, H = -sum p ln p, the shortest prefix that sums to M
// Ties go to the lower id, every step keeps at least one candidate, and candidates stay in
// ascending order of their ids, so that all sums are taken in one order.
#pragma once

#include <decant/decant.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace decant::detail {

/// Reused from token to token, by one thread at a time. The arrays keep the size of the largest
/// vocabulary seen; only the first `count` entries are candidates.
struct SamplerWorkspace {
  std::size_t count = 0;
  std::vector<Token> ids;       // ascending
  std::vector<double> logits;   // finite
  std::vector<double> weights;  // exp(logit - max), valid while `weighed`
  double total = 0.0;           // sum of weights, the same
  bool weighed = false;
  std::vector<std::uint32_t> ranked;  // scratch: candidates by their place in the arrays above
  std::vector<std::uint32_t> occurs;  // [n_vocab] scratch, all 0 between calls

  /// Room for so many logits.
  void fit(std::size_t n_vocab) {
    if (ids.size() >= n_vocab) return;
    ids.resize(n_vocab);
    logits.resize(n_vocab);
    weights.resize(n_vocab);
    ranked.resize(n_vocab);
    occurs.resize(n_vocab);
  }
  static std::uint64_t bytes(std::size_t n_vocab) {
    return n_vocab * (sizeof(Token) + 2 * sizeof(double) + 2 * sizeof(std::uint32_t));
  }
};

/// Fields out of range, and orders that name a step twice, are invalid_argument.
Status sampler_validate(const Sampler& sampler);

/// Whether penalties change anything, if there is a history.
bool sampler_penalises(const Sampler& sampler);

/// What the outcome depends on, if it is no matter of chance: the largest logit, or the largest one
/// after penalties.
enum class SamplerGreedy : std::uint8_t { no, logits, penalised };
SamplerGreedy sampler_greedy(const Sampler& sampler);

/// The error of n logits none of which is above -inf.
Error no_valid_token(std::size_t n);

/// Chooses a token of `logits` [n_vocab]: with u in [0, 1) from (seed, sample_index, position), the
/// first candidate, ids ascending, at which the running sum of weights exceeds u * total.
/// PRECOND: FloatMode holds. std::bad_alloc passes; a failed call leaves the workspace usable.
/// Errors: invalid_argument (also for history ids outside [0, n_vocab)), no_valid_token.
Result<Token> sample_token(const Sampler& sampler, std::span<const float> logits,
                           std::span<const Token> history, std::uint64_t seed,
                           std::uint64_t position, SamplerWorkspace& workspace);

/// The distribution that sample_token draws from, exact 0 for dropped tokens; `probabilities` is
/// [n_vocab]. Otherwise the same.
Status sampler_distribution(const Sampler& sampler, std::span<const float> logits,
                            std::span<const Token> history, SamplerWorkspace& workspace,
                            std::span<double> probabilities);

}  // namespace decant::detail
