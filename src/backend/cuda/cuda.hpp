// The CUDA backend as the rest of the library sees it. The backend itself is in cuda/, and part of
// builds with DECANT_CUDA. In builds with tests there is another one, which runs the same kernels
// on the processor (tests/cuda_host).
#pragma once

#include <memory>

#include "backend/cuda/pack.hpp"

namespace decant::detail {

struct CudaOptions {
  bool on_host = false;  // the one of the tests
  int device = 0;        // which GPU
  void* stream =
      nullptr;  // a cudaStream_t of the host's, which outlives the backend; null: its own
};

/// `spec` must outlive the backend. Of `weights` only shapes are read: their numbers come through
/// its weight_store(), packed by kCudaPacking. All other memory is taken here. Errors: unsupported
/// (a build without it, or a model whose shapes the kernels do not know), device_unavailable,
/// out_of_memory, device_lost.
Result<std::unique_ptr<Backend>> make_cuda_backend(const ModelSpec& spec,
                                                   const ModelWeights& weights,
                                                   const BackendLimits& limits,
                                                   const CudaOptions& options);

}  // namespace decant::detail
