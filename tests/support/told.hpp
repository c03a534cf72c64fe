// All that a prompt leaves behind and all that a reply does, for tests that compare two runs bit by
// bit.
#pragma once

#include "support/tiny_model.hpp"

namespace decant_test {

struct Left {
  std::vector<float> logits;        // after the last tokens
  std::vector<std::byte> snapshot;  // with the pages; unused slots are zeros
  bool operator==(const Left& o) const {
    return same_bits(logits, o.logits) && snapshot == o.snapshot;
  }
};

struct Told {
  std::vector<float> logits;  // of all new tokens
  std::vector<decant::Token> tokens;
  decant::ReplyStats stats;
  decant::FinishReason reason = decant::FinishReason::none;
  bool operator==(const Told& o) const { return tokens == o.tokens && same_bits(logits, o.logits); }
};

inline Told tell(decant::Session& session, decant::GenerateOptions options) {
  Told told;
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
  told.reason = reply.finish_reason();
  return told;
}
inline Told tell(decant::Session& session, std::size_t n) { return tell(session, exactly(n, 5)); }

}  // namespace decant_test
