// From a file's metadata to a ModelSpec. A new architecture is an entry of the table in
// architecture.cpp, and names of tensors in weights.cpp where they differ.
#pragma once

#include "backend/backend.hpp"
#include "format/gguf.hpp"

namespace decant::detail {

/// Errors: unsupported (an architecture or a feature that this build does not run), invalid_file
/// (missing or contradicting metadata, by key).
Result<ModelSpec> read_model_spec(const Gguf& file);

}  // namespace decant::detail
