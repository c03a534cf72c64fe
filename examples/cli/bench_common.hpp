// What the modes of `decant bench` share.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

#include "args.hpp"

namespace cli {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// "1,2,4" to numbers of at most `most`.
template <class Number>
std::vector<Number> parse_list(const Args& args, const std::string& flag,
                               std::vector<Number> fallback, Number most) {
  if (!args.has(flag)) return fallback;
  std::vector<Number> list;
  const std::string_view text = args.view(flag);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    list.push_back(Args::parse<Number>("--" + flag, text.substr(at, comma - at)));
    if (list.back() > most) throw UsageError("--" + flag + " is too large");
    at = comma + 1;
  }
  return list;
}

/// The tokens of a run: the same each time.
class RandomTokens {
 public:
  explicit RandomTokens(std::size_t n_vocab) : n_vocab_(n_vocab) {}
  std::vector<decant::Token> draw(std::size_t n) {
    std::vector<decant::Token> tokens(n);
    for (decant::Token& token : tokens) token = static_cast<decant::Token>(engine_() % n_vocab_);
    return tokens;
  }

 private:
  std::mt19937_64 engine_{42};
  std::size_t n_vocab_;
};

/// A reply of exactly n tokens.
inline decant::GenerateOptions greedy(std::size_t n) {
  decant::GenerateOptions options;
  options.max_tokens = n;
  options.sampler = decant::Sampler::greedy();
  options.ignore_end = true;
  return options;
}

/// Requests that arrive over time: `decant bench --load`.
int bench_load(int argc, char** argv);

}  // namespace cli
