// Samplers to test with.
#pragma once

#include <decant/decant.hpp>

#include <vector>

namespace decant_test {

/// The ready-made samplers, the default one, and this with each of the changes.
template <class... Change>
std::vector<decant::Sampler> samplers_with(Change... change) {
  using decant::Sampler;
  std::vector<Sampler> all = {Sampler::greedy(), Sampler::precise(), Sampler::balanced(),
                              Sampler::creative(), Sampler()};
  (change(all.emplace_back()), ...);
  return all;
}

}  // namespace decant_test
