// 128 bits that tell models apart: what a file's header says, and samples of its tensors.
#pragma once

#include "base/hash.hpp"
#include "format/gguf.hpp"

namespace decant::detail {

/// Metadata, names, types and shapes of all tensors, and of each tensor's data sixteen pieces of
/// 4 KiB, its first and last bytes among them: other weights differ in all of them, and a model of
/// any size is told in a moment. The same however the file is loaded. Errors: io, callback_failed.
Result<Hash128> model_fingerprint(const Gguf& file);

}  // namespace decant::detail
