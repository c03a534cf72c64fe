// decant bench: how fast a model runs here, and how near that is to what the machine can do.
//
// The tokens are random (from a fixed seed: each run computes the same), end tokens are ignored.
//   prefill  N tokens appended to an empty session, and the logits after the last one
//   decode   tokens after the first of a greedy reply, to a session of D tokens
//   batch    greedy replies to B sessions of one token, in flight at once; all their tokens
// Each figure is the median of --repeat runs after one that is not counted. The bandwidth is
// measured before and after each of them.
//
// With --load instead: requests that arrive over time (bench_load.cpp).

#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench_common.hpp"
#include "bench_rulers.hpp"
#include "bench_table.hpp"

namespace cli {

namespace {

struct BenchOptions {
  std::vector<std::size_t> threads, depths, batches;
  std::size_t prompt, generate, repeat;
  bool profile;
};

BenchOptions bench_options(const Args& args) {
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  constexpr std::size_t kMost = std::size_t{1} << 24;
  const auto list = [&](const char* flag, std::vector<std::size_t> fallback) {
    return parse_list(args, flag, std::move(fallback), kMost);
  };
  BenchOptions o;
  o.threads = list("threads", {1});
  if (!args.has("threads") && processors != 1) o.threads.push_back(processors);
  o.depths = list("depth", {0, 1024});
  o.batches = list("batch", {1, 4, 16});
  o.prompt = args.number<std::size_t>("prompt", 512);
  o.generate = args.number<std::size_t>("generate", 128);
  o.repeat = args.number<std::size_t>("repeat", 5);
  o.profile = args.has("profile");
  if (o.repeat == 0) throw UsageError("--repeat 0: at least 1");
  if (o.prompt > (1U << 24) || o.generate > (1U << 24))
    throw UsageError("--prompt and --generate: at most 2^24");
  for (const std::size_t n : o.threads)
    if (n < 1 || n > 64) throw UsageError("--threads: 1 to 64, or several as 1,2,4");
  return o;
}

/// Bytes of keys and values that the token at `position` reads, a mean over [first, first + n).
double kv_bytes(const decant::ModelInfo& info, std::size_t first, std::size_t n) {
  double sum = 0;
  for (const auto& group : info.kv_groups)
    for (std::size_t p = first; p < first + n; ++p)
      sum += static_cast<double>(group.bytes_per_token) *
             static_cast<double>(group.window == 0 ? p + 1 : std::min(p + 1, group.window));
  return sum / static_cast<double>(n);
}

/// Whether most of the layers' weights are floats, which the f32 peak limits.
bool float_weights(const std::string& path) {
  const decant::FileInfo file = decant::Model::inspect(path).value();
  double floats = 0, all = 0;
  for (const auto& tensor : file.tensors) {
    if (tensor.shape.size() < 2 || tensor.name.rfind("blk.", 0) != 0) continue;
    double n = 1;
    for (const std::uint64_t d : tensor.shape) n *= static_cast<double>(d);
    all += n;
    if (tensor.type == "F32" || tensor.type == "F16" || tensor.type == "BF16") floats += n;
  }
  return 2 * floats > all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// A loaded model with a number of threads.
class Bench {
 public:
  Bench(const Args& args, const BenchOptions& o, std::size_t threads, Rulers& rulers,
        bool float_peak)
      : options_(o), threads_(threads), rulers_(rulers), float_peak_(float_peak) {
    decant::ModelOptions options = model_options_but_threads(args);
    options.threads = static_cast<int>(threads);
    options.profile = o.profile;
    const std::size_t deepest =
        o.depths.empty() ? 0 : *std::max_element(o.depths.begin(), o.depths.end());
    const std::size_t widest =
        o.batches.empty() ? 0 : *std::max_element(o.batches.begin(), o.batches.end());
    const std::size_t reply = std::max<std::size_t>(deepest, 1) + o.generate + 1;
    const std::size_t context = std::max({o.prompt, reply, std::size_t{16}});
    if (!args.has("context")) options.context = context;
    if (options.context < context)
      throw UsageError("--context " + args.text("context") + ": these runs need " +
                       std::to_string(context));
    options.prefix_cache = false;  // each run computes all it times
    // Room in the pool for the widest batch, which is seldom as long as the longest session.
    constexpr std::size_t kPage = 16;
    const std::size_t batch_tokens = widest * ((o.generate + 1 + kPage) / kPage * kPage);
    options.sessions = (batch_tokens + context - 1) / context + 1;
    chunk_ = options.chunk;
    std::cerr << "decant: loading with " << threads << " thread" << (threads == 1 ? "" : "s")
              << std::endl;
    const auto start = Clock::now();
    model_.emplace(decant::Model::load(args.required("model"), options).value());
    load_ms_ = 1000 * seconds_since(start);
    int8_peak_ = rulers_.int8_peak(static_cast<int>(threads_));
    f32_peak_ = rulers_.f32_peak(static_cast<int>(threads_));
    bandwidth_ = rulers_.read_bandwidth(static_cast<int>(threads_));
  }

  const decant::ModelInfo& info() const { return model_->info(); }

  void run(std::vector<BenchRow>& rows) {
    if (options_.prompt != 0) rows.push_back(prefill());
    if (options_.generate == 0) return;
    for (const std::size_t depth : options_.depths) rows.push_back(decode(depth));
    for (const std::size_t batch : options_.batches)
      if (batch != 0) rows.push_back(batched(batch));
  }

  nlohmann::json rulers_json() const {
    return {{"threads", threads_},
            {"read_bandwidth_gbs", bandwidth_},
            {"int8_peak_gmacs", int8_peak_},
            {"f32_peak_gmacs", f32_peak_},
            {"load_ms", load_ms_}};
  }
  double bandwidth() const { return bandwidth_; }
  double int8_peak() const { return int8_peak_; }

 private:
  double layer_products() const { return static_cast<double>(info().layer_parameters); }
  double all_products() const {
    return layer_products() +
           static_cast<double>(info().n_vocab) * static_cast<double>(info().n_embd);
  }

  BenchRow prefill() {
    const std::size_t n = options_.prompt, passes = (n + chunk_ - 1) / chunk_;
    BenchRow row{.kind = "prefill", .tokens = n};
    row.bytes_per_token =
        static_cast<double>(passes * info().layer_weight_bytes + info().head_weight_bytes) /
            static_cast<double>(n) +
        kv_bytes(info(), 0, n) / static_cast<double>(std::min(n, chunk_));
    row.products_per_token = layer_products();
    auto session = model_->session().value();
    RandomTokens random(info().n_vocab);
    measure(row, [&] {
      session.rewind(0).value();
      session.append(random.draw(n)).value();
      const auto start = Clock::now();
      session.logits().value();
      return static_cast<double>(n) / seconds_since(start);
    });
    return row;
  }

  BenchRow decode(std::size_t depth) {
    const std::size_t n = options_.generate, held = std::max<std::size_t>(depth, 1);
    BenchRow row{.kind = "decode", .tokens = n, .depth = depth};
    row.bytes_per_token =
        static_cast<double>(info().layer_weight_bytes + info().head_weight_bytes) +
        kv_bytes(info(), held, n);
    row.products_per_token = all_products();
    auto session = model_->session().value();
    RandomTokens random(info().n_vocab);
    session.append(random.draw(held)).value();
    session.logits().value();
    measure(row, [&] {
      session.rewind(held).value();
      auto reply = session.generate(greedy(n + 1)).value();
      reply.wait().value();
      return reply.stats().tokens_per_second;
    });
    return row;
  }

  BenchRow batched(std::size_t batch) {
    const std::size_t n = options_.generate;
    BenchRow row{.kind = "batch", .tokens = n * batch, .batch = batch};
    row.bytes_per_token =
        static_cast<double>(info().layer_weight_bytes + info().head_weight_bytes) /
            static_cast<double>(batch) +
        kv_bytes(info(), 0, n);
    row.products_per_token = all_products();
    RandomTokens random(info().n_vocab);
    std::vector<decant::Session> sessions;
    for (std::size_t i = 0; i < batch; ++i) sessions.push_back(model_->session().value());
    measure(row, [&] {
      for (decant::Session& session : sessions) {
        session.rewind(0).value();
        session.append(random.draw(1)).value();
      }
      const auto start = Clock::now();
      std::vector<decant::Reply> replies;
      for (decant::Session& session : sessions)
        replies.push_back(session.generate(greedy(n)).value());
      for (decant::Reply& reply : replies) reply.wait().value();
      return static_cast<double>(n * batch) / seconds_since(start);
    });
    return row;
  }

  /// `once` gives tokens per second.
  void measure(BenchRow& row, const std::function<double()>& once) {
    row.threads = threads_;
    std::cerr << "decant: " << row.title() << ", " << threads_ << " thread"
              << (threads_ == 1 ? "" : "s") << std::flush;
    once();
    const decant::ModelMetrics start = model_->metrics();
    row.bandwidth_before = bandwidth_;
    for (std::size_t i = 0; i < options_.repeat; ++i) {
      row.samples.push_back(once());
      std::cerr << "." << std::flush;
    }
    bandwidth_ = rulers_.read_bandwidth(static_cast<int>(threads_));
    row.bandwidth_after = bandwidth_;
    const decant::ModelMetrics end = model_->metrics();
    if (options_.profile)
      for (std::size_t i = 0; i < std::size(end.operations); ++i)
        row.operations.push_back(
            {end.operations[i].name,
             static_cast<double>(end.operations[i].nanoseconds - start.operations[i].nanoseconds),
             end.operations[i].calls - start.operations[i].calls});
    row.tokens_per_second = median(row.samples);
    std::cerr << " " << std::llround(row.tokens_per_second) << " tokens/s" << std::endl;
    row.peak = float_peak_ ? "f32" : "int8";
    row.bandwidth_share = row.tokens_per_second * row.bytes_per_token / 1e9 /
                          ((row.bandwidth_before + row.bandwidth_after) / 2);
    row.peak_share = row.tokens_per_second * row.products_per_token / 1e9 /
                     (float_peak_ ? f32_peak_ : int8_peak_);
  }

  const BenchOptions& options_;
  std::size_t threads_, chunk_ = 0;
  Rulers& rulers_;
  bool float_peak_;
  std::optional<decant::Model> model_;
  double load_ms_ = 0, int8_peak_ = 0, f32_peak_ = 0, bandwidth_ = 0;
};

int bench_rulers(const Args& args, const BenchOptions& o) {
  Rulers rulers(args.view("isa"));
  nlohmann::json list = nlohmann::json::array();
  for (const std::size_t threads : o.threads) {
    const int n = static_cast<int>(threads);
    list.push_back({{"threads", threads},
                    {"read_bandwidth_gbs", rulers.read_bandwidth(n)},
                    {"int8_peak_gmacs", rulers.int8_peak(n)},
                    {"f32_peak_gmacs", rulers.f32_peak(n)}});
  }
  if (args.has("json")) {
    std::cout << nlohmann::json{{"isa", rulers.isa()}, {"rulers", list}}.dump() << "\n";
    return 0;
  }
  std::cout << "isa " << rulers.isa() << "\n";
  for (const auto& r : list)
    std::cout << r["threads"] << (r["threads"] == 1 ? " thread:  " : " threads: ") << "read "
              << fixed(r["read_bandwidth_gbs"], 1) << " GB/s, int8 "
              << fixed(r["int8_peak_gmacs"], 0) << " GMAC/s, f32 " << fixed(r["f32_peak_gmacs"], 0)
              << " GMAC/s\n";
  return 0;
}

}  // namespace

int bench(int argc, char** argv) {
  for (int i = 0; i < argc; ++i)
    if (std::string_view(argv[i]) == "--load") return bench_load(argc, argv);
  const Args args(
      argc, argv,
      kModelFlags + std::vector<std::string_view>{"prompt", "generate", "depth", "batch", "repeat"},
      {"json", "profile", "rulers"});
  const BenchOptions options = bench_options(args);
  if (args.has("rulers")) return bench_rulers(args, options);
  const std::string path = args.required("model");
  model_options_but_threads(args);  // wrong flags are found before the long look at the file
  const bool float_peak = float_weights(path);

  std::unique_ptr<Rulers> rulers;
  std::vector<BenchRow> rows;
  nlohmann::json per_threads = nlohmann::json::array();
  decant::ModelInfo info;
  double bandwidth = 0, int8_peak = 0, load_ms = 0;
  for (const std::size_t threads : options.threads) {
    if (rulers == nullptr) rulers = std::make_unique<Rulers>(args.view("isa"));
    Bench bench(args, options, threads, *rulers, float_peak);
    bench.run(rows);
    info = bench.info();
    per_threads.push_back(bench.rulers_json());
    bandwidth = bench.bandwidth();
    int8_peak = bench.int8_peak();
    load_ms = per_threads.back()["load_ms"];
  }
  if (args.has("json")) {
    nlohmann::json results = nlohmann::json::array();
    for (const BenchRow& row : rows) results.push_back(row.json());
    const nlohmann::json out = {{"model", path},
                                {"name", info.name},
                                {"isa", info.isa},
                                {"backend", args.text("backend", "cpu")},
                                {"threads", options.threads},
                                {"read_bandwidth_gbs", bandwidth},
                                {"int8_peak_gmacs", int8_peak},
                                {"load_ms", load_ms},
                                {"layer_weight_bytes", info.layer_weight_bytes},
                                {"head_weight_bytes", info.head_weight_bytes},
                                {"kv_bytes_per_token", info.kv_bytes_per_token},
                                {"rulers", per_threads},
                                {"results", results}};
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return 0;
  }
  std::cout << "\n"
            << (info.name.empty() ? path : info.name) << " (" << info.architecture << "), "
            << fixed(static_cast<double>(info.parameters) / 1e6, 1) << " M parameters, "
            << (info.isa.empty() ? args.text("backend", "cpu") : info.isa) << "\n"
            << "a decoding step reads "
            << fixed(static_cast<double>(info.layer_weight_bytes + info.head_weight_bytes) / 1e6, 1)
            << " MB of weights and " << fixed(static_cast<double>(info.kv_bytes_per_token) / 1e3, 1)
            << " kB of keys and values for each earlier token\n";
  for (const auto& r : per_threads)
    std::cout << r["threads"] << (r["threads"] == 1 ? " thread:  " : " threads: ") << "loaded in "
              << fixed(r["load_ms"], 0) << " ms; read " << fixed(r["read_bandwidth_gbs"], 1)
              << " GB/s, int8 peak " << fixed(r["int8_peak_gmacs"], 0) << " GMAC/s, f32 peak "
              << fixed(r["f32_peak_gmacs"], 0) << " GMAC/s\n";
  std::cout << "\n" << bench_table(rows);
  if (options.profile) std::cout << "\n" << profile_table(rows);
  return 0;
}

}  // namespace cli
