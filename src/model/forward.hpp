// The forward pass of every model. What differs between architectures is data in LayerSpec.
#pragma once

#include "backend/backend.hpp"

namespace decant::detail {

/// `run(operation, layer)` for all operations of a pass in their order. When their items are done,
/// K and V of all rows lie in their pages, logits in their rows.
template <class Run>
void forward(int n_layers, Run&& run) {
  run(Operation::embed, 0);
  for (int layer = 0; layer < n_layers; ++layer) {
    run(Operation::qkv, layer);
    run(Operation::attend, layer);
    run(Operation::attention_output, layer);
    run(Operation::gate_up, layer);
    run(Operation::down, layer);
  }
  run(Operation::logits, 0);
}

}  // namespace decant::detail
