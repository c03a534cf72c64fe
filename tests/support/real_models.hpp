// Files that tests need and a machine may lack: real models and golden data, by environment
// variables.
//
//   const auto path = decant_test::real_model("DECANT_SMOLLM2");
//   if (!path) DECANT_SKIP("DECANT_SMOLLM2 is not set");
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "support/catch.hpp"

namespace decant_test {

inline std::optional<std::string> environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return std::nullopt;
  return value;
}

/// The path that the variable holds. With DECANT_REQUIRE_MODELS=1 its absence fails the test.
inline std::optional<std::string> real_model(const char* variable) {
  auto path = environment(variable);
  if (!path && environment("DECANT_REQUIRE_MODELS") == "1") {
    FAIL(variable << " is not set, but DECANT_REQUIRE_MODELS=1 asks for the real models");
  }
  return path;
}

/// The folder of golden data (DECANT_GOLDEN_DIR).
inline std::optional<std::string> golden_folder() { return environment("DECANT_GOLDEN_DIR"); }

}  // namespace decant_test
