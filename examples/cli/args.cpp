#include "args.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace cli {

Args::Args(int argc, char** argv, std::vector<std::string_view> values,
           std::vector<std::string_view> switches) {
  const auto contains = [](const std::vector<std::string_view>& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.size() < 3 || word.substr(0, 2) != "--")
      throw UsageError("'" + std::string(word) + "' is no flag; flags begin with --");
    const std::string_view name = word.substr(2, word.find('=') - 2);
    const bool inline_value = name.size() + 2 < word.size();
    if (contains(switches, name) && !inline_value) {
      given_[std::string(name)].push_back("");
    } else if (contains(values, name)) {
      if (!inline_value && i + 1 == argc) throw UsageError(std::string(word) + " needs a value");
      given_[std::string(name)].emplace_back(inline_value ? word.substr(name.size() + 3)
                                                          : argv[++i]);
    } else {
      throw UsageError("unknown flag " + std::string(word));
    }
  }
}

std::string Args::text(const std::string& flag, const std::string& fallback) const {
  const auto at = given_.find(flag);
  return at == given_.end() ? fallback : at->second.back();
}

std::string_view Args::view(const std::string& flag) const {
  const auto at = given_.find(flag);
  return at == given_.end() ? std::string_view() : std::string_view(at->second.back());
}

std::string Args::required(const std::string& flag) const {
  if (!has(flag)) throw UsageError("--" + flag + " is missing");
  return text(flag);
}

std::vector<std::string> Args::all(const std::string& flag) const {
  const auto at = given_.find(flag);
  return at == given_.end() ? std::vector<std::string>() : at->second;
}

std::string read_file(const std::string& path) {
  const std::filesystem::path name(std::u8string(path.begin(), path.end()));
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) throw std::runtime_error(path + " is a folder");
  std::ifstream file(name, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  try {
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {
    throw std::runtime_error("cannot read " + path);
  }
}

std::vector<decant::Token> parse_tokens(const std::string& what, std::string_view text) {
  std::vector<decant::Token> tokens;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    tokens.push_back(Args::parse<decant::Token>(what, text.substr(at, comma - at)));
    at = comma + 1;
  }
  return tokens;
}

static decant::KvType kv_type(const std::string& name) {
  if (name == "f32") return decant::KvType::f32;
  if (name == "f16") return decant::KvType::f16;
  if (name == "bf16") return decant::KvType::bf16;
  if (name == "int8") return decant::KvType::int8;
  throw UsageError("--kv-type " + name + ": f32, f16, bf16 or int8, or a pair K,V of them");
}

decant::ModelOptions model_options_but_threads(const Args& args) {
  decant::ModelOptions options;
  const std::string backend = args.text("backend", "cpu");
  if (backend == "reference") {
    options.backend = decant::Backend::reference;
  } else if (backend == "cuda") {
    options.backend = decant::Backend::cuda;
  } else if (backend == "cuda-host") {
    options.backend = decant::Backend::cuda_host;
  } else if (backend != "cpu") {
    throw decant::Exception(
        {decant::ErrorCode::unsupported, "--backend " + backend + ": cpu, reference or cuda"});
  }
  options.device = args.number("device", options.device);
  options.isa = args.view("isa");
  if (args.has("kv-type")) {
    const std::string type = args.text("kv-type");
    const std::size_t comma = type.find(',');
    options.kv_keys = kv_type(type.substr(0, comma));
    options.kv_values =
        comma == std::string::npos ? options.kv_keys : kv_type(type.substr(comma + 1));
  }
  if (const std::string act = args.text("activations", "int8"); act == "int16")
    options.activations = decant::Activations::int16;
  else if (act != "int8")
    throw UsageError("--activations " + act + ": int8 or int16");
  options.context = args.number("context", options.context);
  options.chunk = args.number("chunk", options.chunk);
  return options;
}

decant::ModelOptions model_options(const Args& args) {
  decant::ModelOptions options = model_options_but_threads(args);
  options.threads = args.number("threads", options.threads);
  return options;
}

static decant::SamplerOrder order(std::string_view text) {
  using decant::SamplerStep;
  static const std::map<std::string_view, SamplerStep> steps = {
      {"penalties", SamplerStep::penalties}, {"top_k", SamplerStep::top_k},
      {"typical", SamplerStep::typical},     {"top_p", SamplerStep::top_p},
      {"min_p", SamplerStep::min_p},         {"temperature", SamplerStep::temperature}};
  decant::SamplerOrder order;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const auto step = steps.find(text.substr(at, comma - at));
    if (step == steps.end())
      throw UsageError("--order: '" + std::string(text.substr(at, comma - at)) + "' is no step");
    order.push_back(step->second);
    at = comma + 1;
  }
  return order;
}

decant::Sampler sampler(const Args& args, decant::Sampler base) {
  if (args.has("preset")) {
    const std::string preset = args.text("preset");
    if (preset == "greedy")
      base = decant::Sampler::greedy();
    else if (preset == "precise")
      base = decant::Sampler::precise();
    else if (preset == "balanced")
      base = decant::Sampler::balanced();
    else if (preset == "creative")
      base = decant::Sampler::creative();
    else
      throw UsageError("--preset " + preset + ": greedy, precise, balanced or creative");
  }
  base.temperature = args.number("temperature", base.temperature);
  base.top_k = args.number("top-k", base.top_k);
  base.top_p = args.number("top-p", base.top_p);
  base.min_p = args.number("min-p", base.min_p);
  base.typical_p = args.number("typical-p", base.typical_p);
  base.repetition_penalty = args.number("repetition-penalty", base.repetition_penalty);
  base.frequency_penalty = args.number("frequency-penalty", base.frequency_penalty);
  base.presence_penalty = args.number("presence-penalty", base.presence_penalty);
  base.penalty_last = args.number("penalty-last", base.penalty_last);
  base.sample_index = args.number("sample-index", base.sample_index);
  if (args.has("seed")) base.seed = args.number<std::uint64_t>("seed", 0);
  if (args.has("order")) base.order = order(args.text("order"));
  base.validate().value();  // before a model is loaded for it
  return base;
}

std::vector<std::string_view> operator+(std::vector<std::string_view> a,
                                        const std::vector<std::string_view>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace cli
