// Renders templates for the tests of the template engine.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/jinja/template.hpp"

namespace decant_test {

using Json = nlohmann::ordered_json;

/// The moment that all expected values were made at.
inline constexpr decant::detail::ChatTime kNow{2025, 7, 4, 9, 5, 3};

inline decant::Result<std::vector<decant::detail::TextPart>> render_parts(
    std::string_view source, const Json& context,
    const decant::detail::ChatTemplateLimits& limits = {}) {
  auto compiled = decant::detail::ChatTemplate::compile(source, limits);
  if (!compiled) return compiled.error();
  decant::detail::ChatRenderOptions options;
  options.now = kNow;
  return compiled->render(context, options);
}

inline decant::Result<std::string> render_text(
    std::string_view source, const Json& context,
    const decant::detail::ChatTemplateLimits& limits = {}) {
  auto parts = render_parts(source, context, limits);
  if (!parts) return parts.error();
  std::string text;
  for (const auto& part : *parts) text += part.text;
  return text;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace decant_test
