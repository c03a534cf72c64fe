// ModelMetrics as Prometheus' text exposition format:
// https://prometheus.io/docs/instrumenting/exposition_formats
#include "base/result.hpp"

namespace decant {

namespace detail {

template <class... Args>
static void metrics_add(std::string& to, fmt::format_string<Args...> format, Args&&... args) {
  char text[512];
  to += format_into(text, format, fmt::make_format_args(args...));
}

static void metrics_head(std::string& to, std::string_view name, std::string_view type,
                         std::string_view help) {
  metrics_add(to, "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

static void metrics_value(std::string& to, std::string_view name, std::string_view type,
                          std::string_view help, std::uint64_t value) {
  metrics_head(to, name, type, help);
  metrics_add(to, "{} {}\n", name, value);
}

}  // namespace detail

std::string ModelMetrics::prometheus() const {
  using namespace detail;
  std::string text;
  const auto counter = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    metrics_value(text, name, "counter", help, value);
  };
  const auto gauge = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    metrics_value(text, name, "gauge", help, value);
  };
  counter("decant_steps_total", "Passes over the weights.", steps);
  counter("decant_step_rows_total", "Tokens in all passes.", step_rows);
  counter("decant_step_sequences_total", "Sequences in all passes.", step_sequences);
  counter("decant_prompt_tokens_total", "Prompt tokens of replies whose prompt is done.",
          prompt_tokens);
  counter("decant_cached_tokens_total", "Prompt tokens found in the KV cache.", cached_tokens);
  counter("decant_generated_tokens_total", "Tokens generated.", generated_tokens);
  counter("decant_replies_total", "Replies that have ended.", replies);
  counter("decant_preemptions_total", "Replies that lost their pages for a while.", preemptions);
  gauge("decant_running", "Replies in the batch.", running);
  gauge("decant_waiting", "Replies that wait for a place in the batch.", waiting);
  gauge("decant_kv_pages", "Pages of the KV pool.", kv_pages);
  gauge("decant_kv_pages_used", "Pages that sessions and pins hold.", kv_pages_used);
  counter("decant_kv_copied_pages_total", "Pages copied before a write into a shared one.",
          kv_copied_pages);
  counter("decant_kv_evicted_pages_total", "Pages that the prefix cache gave up.",
          kv_evicted_pages);
  gauge("decant_kv_swapped_pages", "Pages of preempted replies in the swap space.",
        kv_swapped_pages);
  counter("decant_kv_swapped_out_pages_total", "Pages copied to the swap space.",
          kv_swapped_out_pages);
  const std::span<const Operation> named(operations, *operations[0].name == 0 ? 0 : 8);
  metrics_head(text, "decant_operation_seconds_total", "counter",
               "Wall time of each operation, if it is measured.");
  for (const Operation& operation : named)
    metrics_add(text, "decant_operation_seconds_total{{operation=\"{}\"}} {}.{:09}\n",
                operation.name, operation.nanoseconds / 1000000000,
                operation.nanoseconds % 1000000000);
  metrics_head(text, "decant_operation_calls_total", "counter", "Calls of each operation.");
  for (const Operation& operation : named)
    metrics_add(text, "decant_operation_calls_total{{operation=\"{}\"}} {}\n", operation.name,
                operation.calls);
  return text;
}

}  // namespace decant
