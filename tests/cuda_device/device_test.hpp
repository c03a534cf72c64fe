// What the GPU's side of the program (on_gpu.cu) answers to the host's (device_test.cpp).
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace decant_test {

struct Outcome;

/// A GPU and what its memory can do, in bytes a second: on paper, and as a copy within it shows.
struct Gpu {
  std::string name;
  int capability = 0;  // 90: 9.0
  double paper_bandwidth = 0, copy_bandwidth = 0;
};
/// Of one launch, a mean.
struct Rate {
  std::string name;
  double seconds = 0, bytes = 0;  // that the kernel must read
};

/// Errors: device_unavailable, device_lost.
decant::Result<std::vector<Outcome>> cases_on_gpu(bool small);
decant::Result<std::vector<Rate>> rates_on_gpu(Gpu& gpu);

}  // namespace decant_test
