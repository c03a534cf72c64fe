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

  std::size_t capacity;
  std::vector<Token> tokens;  // never reallocates
  std::size_t computed = 0;   // keys and values of tokens [0, computed) lie in pages
  KvSequence kv;

  std::size_t pending() const { return tokens.size() - computed; }

  /// Forgets the tokens from `n` on.
  void truncate(std::size_t n) {
    tokens.resize(n);
    uncompute(n);
  }
  /// Forgets keys and values from `n` on.
  void uncompute(std::size_t n) {
    computed = std::min(computed, n);
    kv.truncate(computed);
  }
};

}  // namespace decant::detail
