// The two halves of a chat template's life: compiling once, rendering often.
#include "text/jinja/template.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "text/jinja/run.hpp"

namespace decant::detail {

struct ChatTemplate::Compiled {
  explicit Compiled(const ChatTemplateLimits& limits) : program(limits) {}
  jinja::Program program;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}

Result<ChatTemplate> ChatTemplate::compile(std::string_view source,
                                           const ChatTemplateLimits& limits) {
  if (source.size() > limits.source_bytes) {
    return make_error(ErrorCode::invalid_argument,
                      "the chat template has {} bytes, more than the limit of {}", source.size(),
                      limits.source_bytes);
  }
  auto compiled = std::make_shared<Compiled>(limits);
  compiled->program.source = jinja::normalize_newlines(source);
  jinja::parse_template(compiled->program);
  if (compiled->program.heap.failed()) return compiled->program.heap.error();
  return ChatTemplate(std::move(compiled));
}

static void jinja_add_part(std::vector<TextPart>& parts, const jinja::Span& span) {
  const bool special = span.origin == jinja::kFromTemplate;
  const int message = span.origin >= 0 ? span.origin : -1;
  if (parts.empty() || parts.back().special != special || parts.back().message != message) {
    parts.push_back({{}, special, message});
  }
  parts.back().text.append(span.data, span.size);
}

Result<std::vector<TextPart>> ChatTemplate::render(const nlohmann::ordered_json& context,
                                                   const ChatRenderOptions& options) const {
  static constexpr std::string_view kSpecial[] = {
      "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"};
  const auto special = options.special_variables.empty()
                           ? std::span<const std::string_view>(kSpecial)
                           : options.special_variables;
  const jinja::Program& program = compiled_->program;
  if (!context.is_object()) {
    return make_error(ErrorCode::invalid_argument, "the variables of a template are an object");
  }
  jinja::Run run(program, program.heap.limits(),
                 options.now ? *options.now : jinja::current_time());
  for (const auto& [name, value] : *context.get_ptr<const nlohmann::ordered_json::object_t*>()) {
    jinja::Value* variable = run.variable(name);
    if (variable == nullptr) continue;  // the template does not ask
    const bool is_special = std::find(special.begin(), special.end(), name) != special.end();
    *variable = name == "messages" ? from_messages(run, value)
                : is_special       ? from_json(run, value, jinja::kFromTemplate)
                                   : from_json(run, value, jinja::kFromContent);
  }
  jinja::Text out(run);
  if (!run.failed()) run.render(out);
  if (run.failed()) return run.error();
  std::vector<TextPart> parts;
  for (const jinja::Span& span : out.spans()) jinja_add_part(parts, span);
  return parts;
}

}  // namespace decant::detail
