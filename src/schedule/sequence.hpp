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
  /// The next `n` tokens were run.
  void advance(std::size_t n) {
    kv.advance(tokens, computed() + n);
    known = std::max(known, computed());
  }
};

}  // namespace decant::detail
