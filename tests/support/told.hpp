// All that a reply does, for tests that compare two runs bit by bit.
#pragma once

#include "support/tiny_model.hpp"

namespace decant_test {

struct Told {
  std::vector<float> logits;  // of all new tokens
  std::vector<decant::Token> tokens;
  decant::ReplyStats stats;
  bool operator==(const Told& o) const { return tokens == o.tokens && same_bits(logits, o.logits); }
};

inline Told tell(decant::Session& session, std::size_t n) {
  Told told;
  decant::GenerateOptions options;
  options.max_tokens = n;
  options.ignore_end = true;
  options.sampler.seed = 5;
  options.process_logits = [](void* to, std::span<const decant::Token>, std::span<float> logits) {
    auto& all = static_cast<Told*>(to)->logits;
    all.insert(all.end(), logits.begin(), logits.end());
    return true;
  };
  options.process_logits_user = &told;
  auto reply = session.generate(options).value();
  reply.wait().value();
  told.tokens = reply.tokens();
  told.stats = reply.stats();
  return told;
}

}  // namespace decant_test
