// The results of `decant bench` as JSON and as tables for people.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace cli {

/// One measured figure.
struct BenchRow {
  std::string kind = {};  // prefill, decode or batch
  std::size_t threads = 1, tokens = 0, depth = 0, batch = 1;
  double tokens_per_second = 0;  // the median of `samples`
  double bytes_per_token = 0;    // weights, keys and values
  double products_per_token = 0;
  double bandwidth_before = 0, bandwidth_after = 0;  // GB/s
  double bandwidth_share = 0;                        // of the mean of the two
  double peak_share = 0;                             // of the peak named by `peak`
  std::string peak = {};                             // int8 or f32
  std::vector<double> samples = {};                  // tokens per second

  struct Operation {
    std::string name;
    double nanoseconds;
    std::uint64_t calls;
  };
  std::vector<Operation> operations = {};  // of all counted runs; empty without --profile

  std::string title() const;  ///< "decode 128 at 1024"
  nlohmann::json json() const;
};

std::string bench_table(const std::vector<BenchRow>& rows);
std::string profile_table(const std::vector<BenchRow>& rows);

/// With so many digits behind the point.
std::string fixed(double value, int digits);
/// With spaces in front up to `width`, or behind up to -`width`.
std::string padded(const std::string& text, int width);

}  // namespace cli
