// Compares the kernels on the GPU with the same source on the executor, whose results the tests in
// cuda_host compare with sums in double precision; and says how fast they are.
//
//   decant_cuda_device [cases|small|rates]   one JSON object; exit status 0, 1 (a case differs) or
//                                            77 (no GPU can be used); small: under a sanitizer
#include "cuda_device/device_test.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cuda_device/cases.hpp"

namespace decant_test {

/// The largest difference as a share of the largest value; infinite if one alone is not finite.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (!std::isfinite(x) || !std::isfinite(y)) return HUGE_VAL;  // no case leaves such
    largest = std::max(largest, std::abs(y));
    worst = std::max(worst, std::abs(x - y));
  }
  return worst == 0 ? 0 : worst / largest;
}

/// Appends what is wrong.
void compare(const std::vector<Outcome>& got, const std::vector<Outcome>& wanted,
             nlohmann::json& cases, bool& failed) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool there = i < got.size() && got[i].values.size() == wanted[i].values.size();
    const double difference = there ? apart(got[i].values, wanted[i].values) : HUGE_VAL;
    const bool good =
        there && difference <= wanted[i].tolerance && got[i].same_bits && wanted[i].same_bits;
    failed = failed || !good;
    cases.push_back({{"case", wanted[i].name},
                     {"apart", std::min(difference, 1e30)},
                     {"allowed", wanted[i].tolerance},
                     {"same_bits", there && got[i].same_bits},
                     {"passed", good}});
  }
}

/// Prints an error as JSON; the exit status.
int report(const decant::Error& error) {
  const bool no_gpu = error.code() == decant::ErrorCode::device_unavailable;
  std::printf("%s\n", nlohmann::json{{"error", error.message()}}.dump().c_str());
  return no_gpu ? 77 : 1;
}

int check_cases(bool small) {
  const auto got = cases_on_gpu(small);
  if (!got) return report(got.error());
  const auto wanted = decant::detail::cuda_host::run_cases(small);
  if (!wanted) return report(wanted.error());
  nlohmann::json cases = nlohmann::json::array();
  bool failed = false;
  compare(*got, *wanted, cases, failed);
  std::printf("%s\n", nlohmann::json{{"passed", !failed}, {"cases", cases}}.dump().c_str());
  return failed ? 1 : 0;
}

int measure_rates() {
  Gpu gpu;
  const auto rates = rates_on_gpu(gpu);
  if (!rates) return report(rates.error());
  nlohmann::json kernels = nlohmann::json::array();
  for (const Rate& rate : *rates)
    kernels.push_back({{"kernel", rate.name},
                       {"microseconds", rate.seconds * 1e6},
                       {"gb_per_s", rate.bytes / rate.seconds / 1e9},
                       {"share_of_paper", rate.bytes / rate.seconds / gpu.paper_bandwidth},
                       {"share_of_copy", rate.bytes / rate.seconds / gpu.copy_bandwidth}});
  const nlohmann::json out = {{"gpu", gpu.name},
                              {"compute_capability", gpu.capability},
                              {"paper_gb_per_s", gpu.paper_bandwidth / 1e9},
                              {"copy_gb_per_s", gpu.copy_bandwidth / 1e9},
                              {"kernels", kernels}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace decant_test

int main(int n_arguments, char** arguments) {
  const std::string what = n_arguments > 1 ? arguments[1] : "cases";
  return what == "rates" ? decant_test::measure_rates() : decant_test::check_cases(what == "small");
}
