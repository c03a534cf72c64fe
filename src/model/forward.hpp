// The forward pass of every model. What differs between architectures is data in LayerSpec.
#pragma once

#include "backend/backend.hpp"

namespace decant::detail {

/// `run(operation, layer)` performs all items of an operation and returns false to give the pass
/// up. True when the pass is complete: K and V of all rows lie in their pages, logits in their
/// rows.
template <class Run>
bool forward(int n_layers, Run&& run) {
  if (!run(Operation::embed, 0)) return false;
  for (int layer = 0; layer < n_layers; ++layer) {
    if (!run(Operation::qkv, layer)) return false;
    if (!run(Operation::attend, layer)) return false;
    if (!run(Operation::attention_output, layer)) return false;
    if (!run(Operation::gate_up, layer)) return false;
    if (!run(Operation::down, layer)) return false;
  }
  return run(Operation::logits, 0);
}

}  // namespace decant::detail
