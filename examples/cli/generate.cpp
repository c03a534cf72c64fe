// decant generate: text from a prompt, streamed; figures on stderr at the end.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "args.hpp"

namespace cli {

static void print_json(const decant::Reply& reply, const std::string& text) {
  const decant::ReplyStats stats = reply.stats();
  const nlohmann::json out = {{"prompt_tokens", stats.prompt_tokens},
                              {"cached_tokens", stats.cached_tokens},
                              {"tokens", reply.tokens()},
                              {"text", text},
                              {"finish_reason", decant::finish_reason_name(reply.finish_reason())},
                              {"ttft_ms", stats.ttft_ms},
                              {"tpot_ms", stats.tpot_ms},
                              {"tokens_per_second", stats.tokens_per_second},
                              {"seed", stats.seed}};
  std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

static void print_figures(const decant::Reply& reply) {
  const decant::ReplyStats stats = reply.stats();
  std::cerr << std::fixed << std::setprecision(1) << "[" << stats.prompt_tokens
            << " prompt tokens, " << stats.tokens << " new; TTFT " << stats.ttft_ms << " ms, TPOT "
            << stats.tpot_ms << " ms, " << stats.tokens_per_second << " tokens per second; seed "
            << stats.seed << "; " << decant::finish_reason_name(reply.finish_reason()) << "]\n";
}

int generate(int argc, char** argv) {
  const Args args(argc, argv,
                  kModelFlags + kSamplerFlags +
                      std::vector<std::string_view>{"prompt", "max-tokens", "stop", "keep-first"},
                  {"json", "chat", "ignore-end"});
  const std::string prompt = args.required("prompt");
  decant::GenerateOptions options;
  options.max_tokens = args.number("max-tokens", options.max_tokens);
  options.sampler = sampler(args, decant::Sampler::balanced());
  options.stop = args.all("stop");
  options.ignore_end = args.has("ignore-end");
  if (args.has("keep-first")) options.keep_first = args.number("keep-first", 0);
  auto model = decant::Model::load(args.required("model"), model_options(args)).value();
  for (const std::string& warning : options.sampler.review())
    std::cerr << "decant: " << warning << "\n";

  auto session = model.session().value();
  if (args.has("chat"))
    session.append(decant::Message{"user", prompt}).value();
  else
    session.append(prompt).value();
  auto reply = session.generate(options).value();
  std::string text;
  while (const auto piece = reply.next()) {
    if (args.has("json"))
      text += *piece;
    else
      std::cout << *piece << std::flush;
  }
  reply.status().value();
  if (args.has("json")) {
    print_json(reply, text);
  } else {
    std::cout << std::endl;
    print_figures(reply);
  }
  return 0;
}

}  // namespace cli
