#include "backend/cuda/cuda.hpp"

namespace decant::detail {

#ifdef DECANT_CUDA
/// cuda/backend.cu
Result<std::unique_ptr<Backend>> make_cuda_device_backend(const ModelSpec& spec,
                                                          const ModelWeights& weights,
                                                          const BackendLimits& limits,
                                                          const CudaOptions& options);
#endif
#ifdef DECANT_CUDA_HOST
/// tests/cuda_host/backend.cpp, in those programs that are linked with it.
[[gnu::weak]] Result<std::unique_ptr<Backend>> make_cuda_host_backend(const ModelSpec& spec,
                                                                      const ModelWeights& weights,
                                                                      const BackendLimits& limits,
                                                                      const CudaOptions& options);
#endif

Result<std::unique_ptr<Backend>> make_cuda_backend([[maybe_unused]] const ModelSpec& spec,
                                                   [[maybe_unused]] const ModelWeights& weights,
                                                   [[maybe_unused]] const BackendLimits& limits,
                                                   const CudaOptions& options) {
  if (options.on_host) {
#ifdef DECANT_CUDA_HOST
    if (make_cuda_host_backend != nullptr)
      return make_cuda_host_backend(spec, weights, limits, options);
#endif
    return make_error(ErrorCode::unsupported,
                      "the backend cuda_host is only in programs that are built with the tests");
  }
#ifdef DECANT_CUDA
  return make_cuda_device_backend(spec, weights, limits, options);
#else
  return make_error(ErrorCode::unsupported,
                    "the CUDA backend is not part of this build; configure with DECANT_CUDA=ON");
#endif
}

}  // namespace decant::detail
