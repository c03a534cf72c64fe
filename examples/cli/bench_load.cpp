// decant bench --load: how a model serves requests that come when they like.
//
//   arrivals     --requests replies arrive as a Poisson process, with prompts and replies of random
//                lengths, the same ones for each policy and each rate; first all at once
//   together     one session, then --together of them, 128 tokens in and 64 out
//   long prompt  one of --long-prompt tokens arrives while 8 replies are being generated
// Times of tokens are taken on the thread that steps the model. Random tokens, greedy, no prefix
// cache, end tokens ignored: each run computes the same.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench_common.hpp"
#include "bench_load_runs.hpp"
#include "bench_svg.hpp"
#include "bench_table.hpp"

namespace cli {

namespace {

const std::map<std::string, Lengths> kLengths = {
    {"even", Lengths::even}, {"skewed", Lengths::skewed}, {"bimodal", Lengths::bimodal}};
constexpr std::size_t kTogetherPrompt = 128, kTogetherReply = 64, kDecoding = 8;

struct LoadOptions {
  std::size_t requests, max_batch, together, long_prompt;
  std::size_t kv_memory, swap_memory;  // of arrivals
  std::uint64_t seed;
  Range prompt, generate;
  std::string lengths;        // of replies: a key of kLengths
  std::vector<double> rates;  // empty: shares of what is possible
  std::vector<std::string> policies;
};

Range parse_range(const Args& args, const std::string& flag, Range fallback) {
  if (!args.has(flag)) return fallback;
  const std::string text = args.text(flag), name = "--" + flag;
  const std::size_t dots = text.find("..");
  Range range;
  range.low = Args::parse<std::size_t>(name, text.substr(0, dots));
  range.high =
      dots == std::string::npos ? range.low : Args::parse<std::size_t>(name, text.substr(dots + 2));
  if (range.low < 1 || range.high < range.low || range.high > (1U << 20))
    throw UsageError(name + " " + text + ": 1 to 2^20, or a range as 8..256");
  return range;
}

LoadOptions load_options(const Args& args) {
  const auto number = [&](const char* flag, std::size_t fallback, std::size_t least,
                          std::size_t most) {
    const auto value = args.number<std::size_t>(flag, fallback);
    if (value < least || value > most)
      throw UsageError("--" + std::string(flag) + ": " + std::to_string(least) + " to " +
                       std::to_string(most));
    return value;
  };
  LoadOptions o;
  o.requests = number("requests", 128, 0, 100000);
  o.max_batch = number("max-batch", 16, 1, 1024);
  o.together = number("together", 16, 0, 1024);
  o.long_prompt = number("long-prompt", 4000, 0, 1U << 20);
  o.kv_memory = args.number<std::size_t>("kv-memory", 0);
  o.swap_memory = args.number<std::size_t>("swap-memory", 0);
  o.seed = args.number<std::uint64_t>("seed", 42);
  o.prompt = parse_range(args, "prompt", {16, 256});
  o.generate = parse_range(args, "generate", {8, 256});
  o.rates = parse_list<double>(args, "rate", {}, 1e6);
  for (const double rate : o.rates)
    if (!(rate >= 0.001)) throw UsageError("--rate: requests a second, at least 0.001");
  o.lengths = args.text("lengths", "even");
  if (kLengths.count(o.lengths) == 0)
    throw UsageError("--lengths " + o.lengths + ": even, skewed or bimodal");
  const std::string policy = args.text("policy", "both");
  if (policy != "both" && policy != "continuous" && policy != "fixed")
    throw UsageError("--policy " + policy + ": continuous, fixed or both");
  o.policies = policy == "both" ? std::vector<std::string>{"continuous", "fixed"}
                                : std::vector<std::string>{policy};
  return o;
}

/// Loads models as the flags say.
struct Loader {
  const Args& args;
  std::string isa = {};  // of the last one

  /// With room for `sessions` of `context` tokens.
  decant::Model load(std::size_t context, std::size_t sessions, std::size_t max_batch,
                     const std::string& policy = "continuous", std::size_t kv_memory = 0,
                     std::size_t swap_memory = 0) {
    decant::ModelOptions options = model_options(args);
    if (!args.has("context")) options.context = context;
    if (options.context < context)
      throw UsageError("--context " + args.text("context") + ": these runs need " +
                       std::to_string(context));
    options.sessions = sessions;
    options.kv_memory = kv_memory;
    options.swap_memory = swap_memory;
    options.prefix_cache = false;  // each run computes all it times
    options.max_batch = max_batch;
    if (policy == "fixed") options.batching = decant::BatchPolicy::fixed;
    decant::Model model = decant::Model::load(args.required("model"), options).value();
    isa = model.info().isa;
    return model;
  }
};

struct ArrivalsRow {
  std::string policy;
  double rate = 0;  // arrivals a second; 0: all at once
  std::size_t requests = 0;
  ArrivalsResult result;

  double tokens_per_second() const { return static_cast<double>(result.tokens) / result.seconds; }
  nlohmann::json json() const {
    const auto percentiles = [](const std::vector<double>& values) {
      return nlohmann::json{{"p50", percentile(values, 0.5)}, {"p99", percentile(values, 0.99)}};
    };
    return {{"kind", "arrivals"},
            {"policy", policy},
            {"rate", rate == 0 ? nlohmann::json() : nlohmann::json(rate)},
            {"requests", requests},
            {"tokens", result.tokens},
            {"seconds", result.seconds},
            {"tokens_per_second", tokens_per_second()},
            {"mean_batch", result.mean_batch},
            {"preemptions", result.preemptions},
            {"ttft_ms", percentiles(result.ttft_ms)},
            {"tpot_ms", percentiles(result.tpot_ms)}};
  }
};

/// The policies in turns at each rate, so that what else goes on meets them alike.
std::vector<ArrivalsRow> bench_arrivals(Loader& loader, const LoadOptions& o) {
  std::vector<decant::Model> models;
  // Those that have ended hold pages until this thread sees it, while a tiny model ends many.
  const std::size_t sessions = o.max_batch + std::min<std::size_t>(o.requests, 128) + 1;
  for (const std::string& policy : o.policies)
    models.push_back(loader.load(o.prompt.high + o.generate.high, sessions, o.max_batch, policy,
                                 o.kv_memory, o.swap_memory));
  const auto arrivals =
      draw_arrivals(o.requests, o.seed, o.prompt, o.generate, kLengths.at(o.lengths));
  const std::vector<Arrival> few(arrivals.begin(), arrivals.begin() + (o.requests < 4 ? 1 : 4));
  for (decant::Model& model : models) run_arrivals(model, few, 0);  // not counted
  std::vector<ArrivalsRow> rows;
  const auto run_all = [&](double rate) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      std::cerr << "decant: " << o.policies[i] << ", "
                << (rate == 0 ? "all at once" : fixed(rate, 2) + " requests/s") << std::flush;
      rows.push_back({o.policies[i], rate, o.requests, run_arrivals(models[i], arrivals, rate)});
      std::cerr << " " << std::llround(rows.back().tokens_per_second()) << " tokens/s" << std::endl;
    }
  };
  run_all(0);
  std::vector<double> rates = o.rates;
  const double possible = static_cast<double>(o.requests) / rows.front().result.seconds;
  if (rates.empty())
    for (const double share : {0.25, 0.5, 0.7, 0.85, 1.0, 1.5}) rates.push_back(share * possible);
  for (const double rate : rates) run_all(rate);
  return rows;
}

std::string load_svg(const std::vector<ArrivalsRow>& rows, const LoadOptions& o,
                     const std::string& name) {
  Chart first{name + ": time to the first token", "tokens/s generated", "p99, seconds", {}};
  Chart next{"Time between tokens", "tokens/s generated", "p99, milliseconds", {}};
  for (const std::string& policy : o.policies) {
    Chart::Series ttft{policy, {}}, tpot{policy, {}};
    for (const ArrivalsRow& row : rows) {
      if (row.policy != policy || row.rate == 0) continue;
      ttft.points.emplace_back(row.tokens_per_second(),
                               percentile(row.result.ttft_ms, 0.99) / 1000);
      tpot.points.emplace_back(row.tokens_per_second(), percentile(row.result.tpot_ms, 0.99));
    }
    first.series.push_back(ttft);
    next.series.push_back(tpot);
  }
  return svg({first, next});
}

std::string arrivals_table(const std::vector<ArrivalsRow>& rows) {
  std::string out = padded("requests/s", -12) + padded("policy", -12) +
                    "tokens/s  mean batch  TTFT ms: p50       p99  TPOT ms: p50       p99\n";
  for (const ArrivalsRow& row : rows) {
    const ArrivalsResult& r = row.result;
    out += padded(row.rate == 0 ? "all at once" : fixed(row.rate, 2), -12) +
           padded(row.policy, -12) + padded(fixed(row.tokens_per_second(), 1), 8) +
           padded(fixed(r.mean_batch, 1), 12) + padded(fixed(percentile(r.ttft_ms, 0.5), 0), 14) +
           padded(fixed(percentile(r.ttft_ms, 0.99), 0), 10) +
           padded(fixed(percentile(r.tpot_ms, 0.5), 1), 14) +
           padded(fixed(percentile(r.tpot_ms, 0.99), 1), 10) + "\n";
  }
  return out;
}

/// Medians of three runs after one that is not counted; one and many in turns.
nlohmann::json bench_together(Loader& loader, std::size_t n) {
  std::cerr << "decant: " << n << " together" << std::endl;
  decant::Model model = loader.load(kTogetherPrompt + kTogetherReply, n + 1, n + 1);
  std::vector<double> step_one, step, rate, whole, ratio;
  for (int i = 0; i < 4; ++i) {
    const TogetherResult one = run_together(model, 1, kTogetherPrompt, kTogetherReply);
    const TogetherResult all = run_together(model, n, kTogetherPrompt, kTogetherReply);
    if (i == 0) continue;
    step_one.push_back(one.step_ms);
    step.push_back(all.step_ms);
    rate.push_back(all.tokens_per_second);
    whole.push_back(all.whole_tokens_per_second);
    ratio.push_back(all.step_ms / one.step_ms);
  }
  return {{"kind", "together"},
          {"sessions", n},
          {"prompt", kTogetherPrompt},
          {"generate", kTogetherReply},
          {"step_of_one_ms", percentile(step_one, 0.5)},
          {"step_ms", percentile(step, 0.5)},
          {"step_ratio", percentile(ratio, 0.5)},
          {"tokens_per_second", percentile(rate, 0.5)},
          {"whole_tokens_per_second", percentile(whole, 0.5)}};
}

nlohmann::json bench_long_prompt(Loader& loader, std::size_t prompt) {
  std::cerr << "decant: a prompt of " << prompt << " tokens amid " << kDecoding << " replies"
            << std::endl;
  decant::Model model =
      loader.load(std::max<std::size_t>(prompt, 256) + 64, kDecoding + 1, kDecoding + 1);
  run_long_prompt(model, kDecoding, 16);  // not counted
  const LongPromptResult r = run_long_prompt(model, kDecoding, prompt);
  const auto percentiles = [](const std::vector<double>& ms) {
    return nlohmann::json{{"p50", percentile(ms, 0.5)}, {"p99", percentile(ms, 0.99)}};
  };
  return {{"kind", "long_prompt"},
          {"prompt", prompt},
          {"decoding", kDecoding},
          {"tokens", r.during_ms.size()},
          {"during_ms", percentiles(r.during_ms)},
          {"without_ms", percentiles(r.without_ms)},
          {"p99_ratio", percentile(r.during_ms, 0.99) / percentile(r.without_ms, 0.99)},
          {"ttft_ms", r.ttft_ms}};
}

}  // namespace

int bench_load(int argc, char** argv) {
  const Args args(
      argc, argv,
      kModelFlags + std::vector<std::string_view>{"rate", "requests", "prompt", "generate",
                                                  "lengths", "policy", "max-batch", "seed",
                                                  "together", "long-prompt", "svg", "kv-memory",
                                                  "swap-memory"},
      {"load", "json"});
  const LoadOptions o = load_options(args);
  const std::string path = args.required("model");
  const int asked = model_options(args).threads;
  const std::size_t threads = asked != 0 ? static_cast<std::size_t>(asked)
                                         : std::max(1U, std::thread::hardware_concurrency());
  Loader loader{args};
  std::ofstream svg_file;  // a wrong path is found before the long run
  if (args.has("svg")) {
    if (o.requests == 0) throw UsageError("--svg shows arrivals, and --requests is 0");
    const std::string name = args.text("svg");
    svg_file.open(std::filesystem::path(std::u8string(name.begin(), name.end())), std::ios::binary);
    if (!svg_file) throw std::runtime_error("cannot write " + name);
  }
  const decant::FileInfo file = decant::Model::inspect(path).value();

  std::vector<ArrivalsRow> rows;
  if (o.requests != 0) rows = bench_arrivals(loader, o);
  nlohmann::json results = nlohmann::json::array();
  for (const ArrivalsRow& row : rows) results.push_back(row.json());
  nlohmann::json together, long_prompt;
  if (o.together != 0) results.push_back(together = bench_together(loader, o.together));
  if (o.long_prompt != 0) results.push_back(long_prompt = bench_long_prompt(loader, o.long_prompt));
  if (svg_file.is_open()) {
    svg_file << load_svg(rows, o, std::filesystem::path(path).stem().string()) << std::flush;
    if (!svg_file) throw std::runtime_error("cannot write " + args.text("svg"));
  }
  if (args.has("json")) {
    const nlohmann::json out = {{"model", path},
                                {"isa", loader.isa},
                                {"threads", threads},
                                {"requests", o.requests},
                                {"max_batch", o.max_batch},
                                {"seed", o.seed},
                                {"prompt", {o.prompt.low, o.prompt.high}},
                                {"generate", {o.generate.low, o.generate.high}},
                                {"lengths", o.lengths},
                                {"results", results}};
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return 0;
  }
  std::cout << "\n";
  if (!rows.empty())
    std::cout << o.requests << " requests, prompts of " << o.prompt.low << " to " << o.prompt.high
              << " tokens, replies of " << o.generate.low << " to " << o.generate.high << " ("
              << o.lengths << "), at most " << o.max_batch << " at a time\n"
              << arrivals_table(rows) << "\n";
  const auto ms = [](const nlohmann::json& value) { return fixed(value, 2) + " ms"; };
  if (!together.is_null())
    std::cout << o.together << " sessions, " << kTogetherPrompt << " tokens in, " << kTogetherReply
              << " out: a step takes " << ms(together["step_ms"]) << ", "
              << fixed(together["step_ratio"], 2) << " x a step of one ("
              << ms(together["step_of_one_ms"]) << "); " << fixed(together["tokens_per_second"], 0)
              << " tokens/s, " << fixed(together["whole_tokens_per_second"], 0)
              << " with their prompts\n";
  if (!long_prompt.is_null())
    std::cout << "a prompt of " << o.long_prompt << " tokens amid " << kDecoding
              << " replies: their time between tokens (p99) is "
              << ms(long_prompt["during_ms"]["p99"]) << ", " << ms(long_prompt["without_ms"]["p99"])
              << " without it, " << fixed(long_prompt["p99_ratio"], 2) << " x; the prompt takes "
              << fixed(long_prompt["ttft_ms"], 0) << " ms\n";
  return 0;
}

}  // namespace cli
