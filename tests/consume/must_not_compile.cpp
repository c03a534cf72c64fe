// Compiles as it stands; with CASE_n defined it must not.
#include <decant/decant.hpp>

decant::Status use(const decant::Model& model) {
  const auto tokens = model.tokenize("hello");
  if (!tokens) return tokens.error();
#if defined(CASE_1)  // built with -fno-exceptions: value() is not declared there
  return decant::Status(), tokens.value(), decant::Status();
#elif defined(CASE_2)  // built with -Werror: a Result must not be dropped
  model.tokenize("dropped");
#elif defined(CASE_3)  // handles are move-only
  decant::Model copy = model;
#endif
  return {};
}
