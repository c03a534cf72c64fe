// Fuzz target for chat templates: the input is a template, or a template, a zero byte and a context
// in JSON. What is rendered twice must be the same, and the parts must be as they are promised.
// Limits are low, so that every input ends soon.
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "text/jinja/template.hpp"

using namespace decant::detail;

static void template_require(bool condition) {
  if (!condition) __builtin_trap();
}

static nlohmann::ordered_json template_context(std::string_view json) {
  static constexpr const char* kDefault = R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Hi \u00e9 <|im_end|>\n"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "c1",
                  "function": {"name": "f", "arguments": {"q": [1, 2.5, null], "w": "x"}}}]},
                 {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    "tools": [{"type": "function", "function": {"name": "get", "parameters":
               {"type": "object", "properties": {"a": {"type": "string"}}}}}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true,
    "s": "  Hello, W\u00f6rld  ", "n": 7, "f": 2.5, "items": ["b", "a", "C"], "nil": null,
    "big": 18446744073709551615, "user": {"name": "Ann", "age": 31}})";
  auto parsed = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!parsed.is_object()) parsed = nlohmann::ordered_json::parse(kDefault);
  return parsed;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const std::string_view json = zero < size ? input.substr(zero + 1) : std::string_view();
  ChatTemplateLimits limits;
  limits.source_bytes = 1 << 16;
  limits.output_bytes = 1 << 20;
  limits.memory_bytes = 1 << 24;
  limits.steps = 200'000;
  const auto compiled = ChatTemplate::compile(source, limits);
  if (!compiled) {
    template_require(compiled.error().code() != decant::ErrorCode::internal);
    return 0;
  }
  const auto context = template_context(json);
  ChatRenderOptions options;
  options.now = ChatTime{2025, 7, 4, 9, 5, 3};
  const auto first = compiled->render(context, options);
  const auto second = compiled->render(context, options);
  template_require(static_cast<bool>(first) == static_cast<bool>(second));
  if (!first) {
    template_require(first.error().code() != decant::ErrorCode::internal);
    template_require(first.error().message() == second.error().message());
    return 0;
  }
  template_require(first->size() == second->size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < first->size(); ++i) {
    const TextPart& part = (*first)[i];
    template_require(part.text == (*second)[i].text && !part.text.empty());
    template_require(!part.special || part.message == -1);
    if (i > 0) {
      const TextPart& before = (*first)[i - 1];
      template_require(before.special != part.special || before.message != part.message);
    }
    bytes += part.text.size();
  }
  template_require(bytes <= limits.output_bytes);
  return 0;
}
