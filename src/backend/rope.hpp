// The frequencies of rotary position embedding, in double precision for every backend.
#pragma once

#include <vector>

#include "backend/backend.hpp"
#include "base/math.hpp"

namespace decant::detail {

/// [dims / 2]: by how much a pair of coordinates turns from one position to the next.
/// Caller: FloatMode must hold; the file that includes this includes base/fp_contract.hpp first.
inline std::vector<double> rope_frequencies(const RopeSpec& rope) {
  std::vector<double> frequencies(static_cast<std::size_t>(rope.dims / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = pow_d(rope.base, -2.0 * static_cast<double>(i) / rope.dims);
    frequencies[i] *= rope.position_scale;
    if (!rope.factors.empty()) frequencies[i] /= static_cast<double>(rope.factors[i]);
  }
  return frequencies;
}

}  // namespace decant::detail
