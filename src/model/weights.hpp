// The weights of a model in memory: one arena with the tensors as the file stores them, or the
// mapped file itself. Names, types and shapes are checked before anything is read.
#pragma once

#include "backend/backend.hpp"
#include "base/platform/platform.hpp"
#include "format/gguf.hpp"

namespace decant::detail {

class LoadedWeights {
 public:
  /// `progress(user, fraction)` returns false to give up. With `mapped`, weights point into `file`,
  /// which must then outlive this object. Errors: invalid_file (a missing tensor, a wrong shape: by
  /// name), unsupported (a type), out_of_memory, io, callback_failed.
  static Result<LoadedWeights> load(const Gguf& file, const ModelSpec& spec, bool mapped,
                                    bool (*progress)(void*, float), void* progress_user);

  const ModelWeights& weights() const { return weights_; }
  std::uint64_t parameters() const { return parameters_; }

 private:
  friend class WeightLoader;
  PageMemory arena_;
  ModelWeights weights_;
  std::uint64_t parameters_ = 0;
};

}  // namespace decant::detail
