// decant inspect: what a file says about itself.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "args.hpp"

namespace cli {

static std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (const std::uint64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

int inspect(int argc, char** argv) {
  const Args args(argc, argv, {"model"}, {"json"});
  const decant::FileInfo info = decant::Model::inspect(args.required("model")).value();
  if (args.has("json")) {
    nlohmann::json tensors = nlohmann::json::array(), metadata = nlohmann::json::object();
    for (const auto& t : info.tensors)
      tensors.push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}});
    for (const auto& [key, value] : info.metadata) metadata[key] = value;
    const nlohmann::json out = {
        {"format", info.format},         {"architecture", info.architecture},
        {"parameters", info.parameters}, {"tensors", tensors},
        {"tokenizer", info.tokenizer},   {"chat_template", info.chat_template},
        {"metadata", metadata}};
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return 0;
  }
  std::cout << info.format << ", architecture " << info.architecture << ", " << info.parameters
            << " parameters, tokenizer " << info.tokenizer << "\n\n";
  for (const auto& [key, value] : info.metadata) {
    constexpr std::size_t kShown = 80;
    const std::string line = value.substr(0, value.find('\n'));
    std::cout << "  " << key << " = " << line.substr(0, kShown)
              << (value.size() > std::min(kShown, line.size()) ? " ..." : "") << "\n";
  }
  std::cout << "\n";
  for (const auto& t : info.tensors)
    std::cout << "  " << std::left << std::setw(36) << t.name << " " << std::setw(6) << t.type
              << " " << shape_text(t.shape) << "\n";
  return 0;
}

}  // namespace cli
