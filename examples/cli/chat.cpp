// decant chat, decant render: conversations and what they look like to the model.

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "args.hpp"

namespace cli {

int chat(int argc, char** argv) {
  const Args args(argc, argv, kModelFlags + kSamplerFlags + std::vector<std::string_view>{"system"},
                  {});
  decant::GenerateOptions options;
  options.sampler = sampler(args, decant::Sampler::balanced());
  auto model = decant::Model::load(args.required("model"), model_options(args)).value();
  auto session = model.session().value();
  if (args.has("system")) session.append(decant::Message{"system", args.text("system")}).value();
  std::string line;
  while (std::cerr << "> " << std::flush, std::getline(std::cin, line) && !line.empty()) {
    session.append(decant::Message{"user", line}).value();
    auto reply = session.generate(options).value();
    while (const auto piece = reply.next()) std::cout << *piece << std::flush;
    std::cout << std::endl;
    reply.status().value();
  }
  return 0;
}

/// The text of the token whose id the metadata gives, or nothing.
static std::string token_text(const decant::Model& model, const decant::FileInfo& info,
                              std::string_view key) {
  for (const auto& [name, value] : info.metadata)
    if (name == key) {
      const auto id = Args::parse<decant::Token>(name, value);
      return model.detokenize(std::span(&id, 1)).value();
    }
  return "";
}

int render(int argc, char** argv) {
  const Args args(argc, argv, {"model", "template", "messages", "context"}, {});
  if (args.has("model") == args.has("template")) throw UsageError("give --model or --template");
  if (args.has("messages") == args.has("context")) throw UsageError("give --messages or --context");
  const std::string path = args.text(args.has("messages") ? "messages" : "context");
  std::string variables = read_file(path);
  const std::size_t begin = std::min(variables.find_first_not_of(" \t\r\n"), variables.size());
  if (begin == variables.size() || variables[begin] != '{')
    throw std::runtime_error(path + " holds no JSON object");
  // The library parses it, within its limits. Of equal members the last counts: defaults go first.
  const auto set_default = [&](const char* name, const nlohmann::json& value) {
    const std::size_t next = variables.find_first_not_of(" \t\r\n", begin + 1);
    const bool alone = next != std::string::npos && variables[next] == '}';
    const std::string shown = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    variables.insert(begin + 1, "\"" + std::string(name) + "\":" + shown + (alone ? "" : ","));
  };
  std::string source;
  if (args.has("template")) {
    source = read_file(args.text("template"));
  } else {
    const decant::FileInfo info = decant::Model::inspect(args.text("model")).value();
    if (info.chat_template.empty()) throw std::runtime_error("the model has no chat template");
    decant::ModelOptions options;
    options.vocabulary_only = true;
    const auto model = decant::Model::load(args.text("model"), options).value();
    source = info.chat_template;
    set_default("bos_token", token_text(model, info, "tokenizer.ggml.bos_token_id"));
    set_default("eos_token", token_text(model, info, "tokenizer.ggml.eos_token_id"));
  }
  if (args.has("messages")) {
    set_default("tools", nullptr);
    set_default("documents", nullptr);
    set_default("add_generation_prompt", false);
  }
  std::cout << decant::render_template(source, variables).value();
  return 0;
}

}  // namespace cli
