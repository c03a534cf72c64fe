// decant plan: what a model takes of memory, before it is loaded.

#include <cstdio>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "args.hpp"

namespace cli {

static std::string size_text(std::uint64_t bytes) {
  char text[32];
  if (bytes >= std::uint64_t{1} << 30)
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  else if (bytes >= 1 << 20)
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  else
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / (1 << 10));
  return text;
}

static std::uint64_t total(const std::string& model, decant::ModelOptions options,
                           std::size_t sessions) {
  options.sessions = sessions;
  return decant::Model::plan(model, options).value().total_bytes;
}

/// The most sessions whose plan stays within `bytes`; 0: not even one.
static std::size_t sessions_within(const std::string& model, const decant::ModelOptions& options,
                                   std::uint64_t bytes) {
  // Every session adds the same, but for rounding.
  const std::uint64_t one = total(model, options, 1), two = total(model, options, 2);
  if (one > bytes || two <= one) return 0;
  return std::min<std::size_t>(static_cast<std::size_t>((bytes - one) / (two - one)) + 1, 65536);
}

int plan(int argc, char** argv) {
  const Args args(
      argc, argv,
      kModelFlags + std::vector<std::string_view>{"sessions", "kv-memory", "swap-memory"},
      {"json"});
  const std::string model = args.required("model");
  decant::ModelOptions options = model_options(args);
  options.sessions = args.number("sessions", options.sessions);
  options.kv_memory = args.number("kv-memory", options.kv_memory);
  options.swap_memory = args.number("swap-memory", options.swap_memory);
  const decant::MemoryPlan p = decant::Model::plan(model, options).value();
  if (args.has("json")) {
    nlohmann::json groups = nlohmann::json::array();
    for (const auto& g : p.groups)
      groups.push_back({{"layers", g.layers},
                        {"window", g.window},
                        {"bytes_per_token", g.bytes_per_token},
                        {"pages", g.pages}});
    const nlohmann::json out = {{"weights_bytes", p.weights_bytes},
                                {"tokenizer_bytes", p.tokenizer_bytes},
                                {"kv_bytes_per_token", p.kv_bytes_per_token},
                                {"page_tokens", p.page_tokens},
                                {"groups", groups},
                                {"kv_bytes", p.kv_bytes},
                                {"swap_bytes", p.swap_bytes},
                                {"workspace_bytes", p.workspace_bytes},
                                {"total_bytes", p.total_bytes},
                                {"notes", p.notes}};
    std::cout << out.dump() << "\n";
    return 0;
  }
  const auto line = [](const char* what, std::uint64_t bytes, const std::string& more = "") {
    std::cout << "  " << std::left << std::setw(12) << what << std::right << std::setw(11)
              << size_text(bytes) << (more.empty() ? "" : "   ") << more << "\n";
  };
  line("weights", p.weights_bytes);
  line("tokenizer", p.tokenizer_bytes);
  line("KV cache", p.kv_bytes,
       std::to_string(options.sessions) + (options.sessions == 1 ? " session, " : " sessions, ") +
           std::to_string(p.kv_bytes_per_token) + " bytes a token");
  for (const auto& g : p.groups)
    std::cout << "      " << g.layers << " layers, "
              << (g.window == 0 ? "all positions" : "a window of " + std::to_string(g.window))
              << ": " << g.pages << " pages of " << p.page_tokens << " tokens, "
              << size_text(g.pages * p.page_tokens * g.bytes_per_token) << "\n";
  if (p.swap_bytes != 0) line("swap space", p.swap_bytes, "for preempted replies");
  line("workspace", p.workspace_bytes);
  line("total", p.total_bytes);
  if (options.kv_memory == 0) {
    decant::ModelOptions int8 = options;
    int8.kv_keys = int8.kv_values = decant::KvType::int8;
    std::cout << "\nsessions that fit in       as asked      with int8 KV\n";
    for (const std::uint64_t gib : {1, 2, 4, 8, 16, 32})
      std::cout << "  " << std::setw(2) << gib << " GiB" << std::setw(24)
                << sessions_within(model, options, gib << 30) << std::setw(18)
                << sessions_within(model, int8, gib << 30) << "\n";
    if (options.sessions > 1) line("\none session", total(model, options, 1), "in total");
    line(options.sessions > 1 ? "int8 KV" : "\nint8 KV", total(model, int8, options.sessions),
         "in total");
  }
  for (const std::string& note : p.notes) std::cout << "note: " << note << "\n";
  return 0;
}

}  // namespace cli
