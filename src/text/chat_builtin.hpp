// The prompts of two chat formats without a template engine: ChatML with SmolLM2's default system
// message, and Gemma's turns.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "text/text_part.hpp"
#include "text/vocabulary.hpp"

namespace decant::detail {

enum class ChatFormat { chatml_smollm, gemma };

/// Empty if neither format fits the model.
std::optional<ChatFormat> detect_chat_format(const Vocabulary& vocabulary,
                                             std::string_view architecture);

/// The conversation without a begin token. All parts together are the prompt.
/// Errors: invalid_argument (no messages; Gemma: roles that do not alternate), unsupported (a
/// message with `json`).
Result<std::vector<TextPart>> render_chat(ChatFormat format, std::span<const Message> messages,
                                          bool add_generation_prompt);

}  // namespace decant::detail
