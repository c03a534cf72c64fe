// The weights of a model in memory: one arena with the tensors as the file stores them or packed
// for the CPU kernels, the backend's own memory, or the mapped file itself. Names, types and shapes
// are checked before anything is read.
#pragma once

#include "backend/backend.hpp"
#include "base/platform/platform.hpp"
#include "base/thread_pool.hpp"
#include "format/gguf.hpp"

namespace decant::detail {

struct WeightOptions {
  const Packing* packing = nullptr;  // by the threads of `pool`; null: as the file has them
  WeightStore* store = nullptr;      // of packed matrices (needs `packing`); null: the arena
  bool mapped = false;   // not packed: point into the file, which must then outlive the weights
  bool measure = false;  // read nothing, only say what it would take
  ThreadPool* pool = nullptr;
  bool (*progress)(void* user, float fraction) = nullptr;  // false gives up
  void* progress_user = nullptr;
};

class LoadedWeights {
 public:
  /// Errors: invalid_file (a missing tensor, a wrong shape: by name), unsupported (a type),
  /// out_of_memory, io, callback_failed, device_lost.
  static Result<LoadedWeights> load(const Gguf& file, const ModelSpec& spec,
                                    const WeightOptions& options);

  const ModelWeights& weights() const { return weights_; }
  std::uint64_t parameters() const { return parameters_; }
  /// What all of it takes in memory, the backend's own included.
  std::uint64_t memory_bytes() const { return memory_bytes_; }
  /// The matrices of all layers as they lie in memory, and their elements.
  std::uint64_t layer_bytes() const;
  std::uint64_t layer_elements() const;
  std::uint64_t head_bytes() const;

 private:
  friend class WeightLoader;
  PageMemory arena_;
  ModelWeights weights_;
  std::uint64_t parameters_ = 0, memory_bytes_ = 0;
};

}  // namespace decant::detail
