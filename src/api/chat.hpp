// A conversation as a model's prompt: by the chat template of its file, or by a built-in format for
// files without one.
#pragma once

#include "api/state.hpp"

namespace decant::detail {

/// Errors: invalid_argument (no role, or a `json` that is no object or is too deep or too wide).
Status check_message(const Message& message);

/// Errors: unsupported (the model has no chat format), invalid_argument (also what the template
/// itself raises; a message whose `json` is no object).
Result<std::vector<TextPart>> render_conversation(const ModelState& model,
                                                  std::span<const Message> messages,
                                                  bool add_generation_prompt);

}  // namespace decant::detail
