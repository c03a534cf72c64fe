// decant logits, decant sample: numbers for those who check the library or sample themselves.

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "args.hpp"
#include "npy.hpp"

namespace cli {

static std::vector<decant::Token> token_flags(const Args& args) {
  if (args.has("tokens") == args.has("tokens-file"))
    throw UsageError("give --tokens or --tokens-file");
  if (args.has("tokens")) return parse_tokens("--tokens", args.text("tokens"));
  return parse_tokens(args.text("tokens-file"), read_file(args.text("tokens-file")));
}

int logits(int argc, char** argv) {
  const Args args(
      argc, argv,
      kModelFlags + std::vector<std::string_view>{"tokens", "tokens-file", "output", "last"}, {});
  const std::vector<decant::Token> tokens = token_flags(args);
  const std::string output = args.required("output");
  if (tokens.empty()) throw UsageError("there are no tokens");
  const std::size_t last = args.number("last", tokens.size());
  if (last < 1 || last > tokens.size())
    throw UsageError("--last must be 1 to the number of tokens, " + std::to_string(tokens.size()));
  decant::ModelOptions options = model_options(args);
  if (options.context == 0) options.context = tokens.size();
  auto model = decant::Model::load(args.required("model"), options).value();
  auto session = model.session().value();

  // Positions before the last N only go into the cache; then as many rows at a time as a pass
  // takes.
  const std::size_t n_vocab = model.info().n_vocab;
  NpyWriter file(output, last, n_vocab);
  std::vector<float> rows;
  for (std::size_t at = 0; at < tokens.size();) {
    const bool quiet = at < tokens.size() - last;
    const std::size_t n =
        quiet ? tokens.size() - last : std::min(options.chunk, tokens.size() - at);
    session.append(std::span(tokens).subspan(at, n)).value();
    at += n;
    if (quiet) continue;
    rows.resize(n * n_vocab);
    session.logits(std::span(rows)).value();
    file.write(rows.data(), rows.size());
  }
  file.close();
  return 0;
}

int sample(int argc, char** argv) {
  const Args args(argc, argv, kSamplerFlags + std::vector<std::string_view>{"logits", "history"},
                  {"probabilities"});
  const decant::Sampler chosen = sampler(args, {});
  const std::vector<decant::Token> history = parse_tokens("--history", args.text("history"));
  const std::vector<float> values = read_npy(args.required("logits"));
  if (args.has("probabilities"))
    std::cout << nlohmann::json(chosen.probabilities(values, history).value()).dump() << "\n";
  else
    std::cout << chosen.sample(values, history, history.size()).value() << "\n";
  return 0;
}

}  // namespace cli
