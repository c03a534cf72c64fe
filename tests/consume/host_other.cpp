// The other translation unit of the host; in the one-header idiom it holds the library's body.
#ifdef DECANT_DIST
#include "decant.hpp"
#else
#include <decant/decant.hpp>
#endif

decant::Token other_greedy(std::span<const float> logits) {
  const auto token = decant::Sampler::greedy().sample(logits);
  return token ? *token : -1;
}
