// Gemma's chat format without a template engine, for files of Gemma 3 that carry no template.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "text/text_part.hpp"
#include "text/vocabulary.hpp"

namespace decant::detail {

/// The model is a Gemma 3 with the tokens of turns, and its file has no template.
bool wants_gemma_chat(const Vocabulary& vocabulary, std::string_view architecture);

/// The conversation without a begin token. All parts together are the prompt.
/// Errors: invalid_argument (no messages; roles that do not alternate), unsupported (a message with
/// `json`).
Result<std::vector<TextPart>> render_gemma_chat(std::span<const Message> messages,
                                                bool add_generation_prompt);

}  // namespace decant::detail
