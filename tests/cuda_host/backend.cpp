// The CUDA backend on the executor.
#include "base/fp_contract.hpp"

#include "cuda/backend.cuh"

namespace decant::detail {

Result<std::unique_ptr<Backend>> make_cuda_host_backend(const ModelSpec& spec,
                                                        const ModelWeights& weights,
                                                        const BackendLimits& limits,
                                                        const CudaOptions& options) {
  return cuda_host::make_backend(spec, weights, limits, options);
}

}  // namespace decant::detail
