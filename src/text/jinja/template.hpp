// Chat templates: the Jinja language as transformers sets it up (jinja2's immutable sandbox with
// trim_blocks, lstrip_blocks, loop controls, `generation` blocks, tojson without HTML escapes,
// raise_exception and strftime_now; undefined values print as nothing).
//
// Text keeps its origin: what the template itself says is special, so that its control tokens
// count; what comes from messages, tools and variables is content and never is.
// Not there: include, import, extends, autoescape, integers beyond 64 bits, and the filters
// pprint, random, striptags, urlize and wordwrap; using them is an `unsupported` error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.hpp"
#include "text/text_part.hpp"

namespace decant::detail {

/// What strftime_now shows.
struct ChatTime {
  int year = 1970, month = 1, day = 1;  ///< month and day from 1
  int hour = 0, minute = 0, second = 0;
};

struct ChatTemplateLimits {
  std::size_t source_bytes = std::size_t{1} << 20;
  std::size_t output_bytes = std::size_t{64} << 20;  ///< also of every string on the way
  std::size_t memory_bytes = std::size_t{512} << 20;
  std::uint64_t steps = 50'000'000;  ///< roughly a few seconds
};

struct ChatRenderOptions {
  std::optional<ChatTime> now;  ///< empty: the system's clock, UTC
  /// Variables whose strings are template text: the names of tokens.
  std::span<const std::string_view> special_variables;
};

/// A compiled template. Cheap to copy, immutable, usable from any thread.
class ChatTemplate {
 public:
  /// Errors: invalid_argument (syntax, with the line; too long; nested too deeply), unsupported.
  static Result<ChatTemplate> compile(std::string_view source,
                                      const ChatTemplateLimits& limits = {});

  /// Renders with the variables of `context`, an object that must stay unchanged meanwhile. Strings
  /// of messages[i] are content of message i, except its role; other strings are content of none.
  /// Without `special_variables` those are bos_token, eos_token, unk_token, pad_token, sep_token,
  /// cls_token and mask_token. Neighbouring parts differ in what they are. Needs at most 200 KiB of
  /// stack in an optimised build.
  /// Errors: invalid_argument (raise_exception: exactly its text; else the template's line and
  /// what is wrong; limits), unsupported (what the template uses and Decant lacks).
  Result<std::vector<TextPart>> render(const nlohmann::ordered_json& context,
                                       const ChatRenderOptions& options = {}) const;

 private:
  struct Compiled;
  explicit ChatTemplate(std::shared_ptr<const Compiled> compiled);
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace decant::detail
