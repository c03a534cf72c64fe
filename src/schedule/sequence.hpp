// The tokens of a session and what of them lies in the KV cache.
#pragma once

#include <algorithm>

#include "kv/kv_cache.hpp"

namespace decant::detail {

struct Sequence {
  Sequence(std::shared_ptr<KvCache> cache, std::size_t max_tokens)
      : capacity(max_tokens), kv(std::move(cache), max_tokens) {
    tokens.reserve(max_tokens);
  }

  /// A fork: the same tokens in the same pages.
  Sequence(const Sequence& other) : capacity(other.capacity), known(other.known), kv(other.kv) {
    tokens.reserve(capacity);
    tokens = other.tokens;
  }
  Sequence& operator=(const Sequence&) = delete;

  std::size_t capacity;
  std::vector<Token> tokens;  // never reallocates
  std::size_t known = 0;      // of the tokens, the first that were run once
  KvSequence kv;

  /// Keys and values of the tokens before this one lie in pages.
  std::size_t computed() const { return kv.length(); }
  std::size_t pending() const { return tokens.size() - computed(); }

  /// Forgets the tokens from `n` on.
  void truncate(std::size_t n) {
    tokens.resize(n);
    known = std::min(known, n);
    kv.truncate(n);
  }
  /// Brings in what the prefix tree holds of the tokens, but leaves the last `n_left` to run.
  /// Returns how many tokens must be run again because windows lost their pages.
  std::size_t resume(std::size_t n_left) {
    const std::size_t limit = tokens.size() - n_left;
    const KvSequence::Found found = kv.seek(tokens, limit);
    return std::max(found.matched, std::min(known, limit)) - found.length;
  }
  /// How many of `n` tokens must go so that one more fits a sequence whose first `keep` tokens
  /// stay: halves of the others, so that it depends on n alone how the rest begins.
  static std::size_t excess(std::size_t n, std::size_t capacity, std::size_t keep) {
    const std::size_t half = (capacity - keep) / 2;
    return n < capacity ? 0 : ((n - capacity) / half + 1) * half;
  }
  /// Takes `n` tokens out behind the first `keep`. Those behind them are to be run again.
  void remove(std::size_t keep, std::size_t n) {
    known = std::min(known, keep);
    kv.truncate(keep);
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(keep);
    tokens.erase(at, at + static_cast<std::ptrdiff_t>(n));
  }
  /// The next `n` tokens were run.
  void advance(std::size_t n) {
    kv.advance(tokens, computed() + n);
    known = std::max(known, computed());
  }
};

}  // namespace decant::detail
