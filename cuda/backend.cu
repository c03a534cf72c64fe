// The CUDA backend on the GPU.
#include "base/fp_contract.hpp"

#include "cuda/backend.cuh"
#include "cuda/sample.cuh"

namespace decant::detail {

Result<std::unique_ptr<Backend>> make_cuda_device_backend(const ModelSpec& spec,
                                                          const ModelWeights& weights,
                                                          const BackendLimits& limits,
                                                          const CudaOptions& options) {
  return cuda_device::make_backend(spec, weights, limits, options);
}

}  // namespace decant::detail
