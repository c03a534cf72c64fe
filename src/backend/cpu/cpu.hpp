// The CPU backend: packed weights, int8 activations, one table of kernels for each instruction set.
// The same bits whatever the set, the threads and the chunks; how: docs/architecture.md.
#pragma once

#include <memory>

#include "backend/cpu/kernels.hpp"

namespace decant::detail {

/// `spec` and `weights` (packed) must outlive the backend; types and shapes are read here, numbers
/// may come later. All memory is taken here: std::bad_alloc.
std::unique_ptr<Backend> make_cpu_backend(const ModelSpec& spec, const ModelWeights& weights,
                                          const BackendLimits& limits, const CpuKernels& kernels);

}  // namespace decant::detail
