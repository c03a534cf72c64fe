// The reference backend: every operation in double precision with Eigen, written to be read. It is
// the oracle that fast backends are compared with. It dequantises at most 64 weight rows at a time
// and applies them to each token of the pass in turn, so its bits depend neither on chunks nor on
// threads.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace decant::detail {

/// `spec` and `weights` must outlive the backend; types and shapes are read here, numbers may come
/// later. All memory is taken here: std::bad_alloc.
std::unique_ptr<Backend> make_reference_backend(const ModelSpec& spec, const ModelWeights& weights,
                                                const BackendLimits& limits);

}  // namespace decant::detail
