#include "bench_table.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace cli {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string padded(const std::string& text, int width) {
  const auto n = static_cast<std::size_t>(width < 0 ? -width : width);
  const std::string space(n - std::min(n, text.size()), ' ');
  return width < 0 ? text + space : space + text;
}

static std::string bar(double share) {
  constexpr int kWidth = 20;
  const int n = std::clamp(static_cast<int>(share * kWidth + 0.5), 0, kWidth);
  return std::string(static_cast<std::size_t>(n), '#') +
         std::string(static_cast<std::size_t>(kWidth - n), '.');
}

static std::string percent(double share) { return padded(fixed(100 * share, 0), 3) + " %"; }

std::string BenchRow::title() const {
  if (kind == "batch") return "batch of " + std::to_string(batch);
  const std::string text = kind + " " + std::to_string(tokens);
  return depth == 0 ? text : text + " at " + std::to_string(depth);
}

nlohmann::json BenchRow::json() const {
  nlohmann::json out = {{"kind", kind},
                        {"threads", threads},
                        {"tokens", tokens},
                        {"depth", depth},
                        {"batch", batch},
                        {"tokens_per_second", tokens_per_second},
                        {"bytes_per_token", bytes_per_token},
                        {"bandwidth_share", bandwidth_share},
                        {"peak_share", peak_share},
                        {"peak", peak},
                        {"read_bandwidth_before_gbs", bandwidth_before},
                        {"read_bandwidth_after_gbs", bandwidth_after},
                        {"samples", samples}};
  for (const Operation& op : operations)
    out["operations"].push_back(
        {{"name", op.name}, {"seconds", op.nanoseconds / 1e9}, {"calls", op.calls}});
  return out;
}

std::string bench_table(const std::vector<BenchRow>& rows) {
  std::string out = padded("", -22) + "threads  tokens/s  MB/token      GB/s  " +
                    padded("of read bandwidth", -26) + "  of peak\n";
  for (const BenchRow& r : rows) {
    out += padded(r.title(), -22) + padded(std::to_string(r.threads), 7) +
           padded(fixed(r.tokens_per_second, 1), 10) +
           padded(fixed(r.bytes_per_token / 1e6, 2), 10) +
           padded(fixed(r.tokens_per_second * r.bytes_per_token / 1e9, 1), 10) + "  " +
           bar(r.bandwidth_share) + " " + percent(r.bandwidth_share) + "  " + bar(r.peak_share) +
           " " + percent(r.peak_share) + " " + r.peak + "\n";
  }
  return out;
}

std::string profile_table(const std::vector<BenchRow>& rows) {
  if (rows.empty()) return "";
  const auto width = [](const BenchRow::Operation& op) {
    return static_cast<int>(std::max<std::size_t>(op.name.size(), 6)) + 2;
  };
  std::string out = padded("us per token", -22) + "threads";
  for (const auto& op : rows[0].operations) out += padded(op.name, width(op));
  out += "\n";
  for (const BenchRow& r : rows) {
    const double tokens = static_cast<double>(r.tokens) * static_cast<double>(r.samples.size());
    out += padded(r.title(), -22) + padded(std::to_string(r.threads), 7);
    for (const auto& op : r.operations)
      out += padded(fixed(op.nanoseconds / 1000 / tokens, 1), width(op));
    out += "\n";
  }
  return out;
}

}  // namespace cli
