// The test program's entry point. Catch2 2.x has no way to skip a case, so this counts for both: a
// case that called DECANT_SKIP and did not fail prints a line that ctest reads.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_all.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
#endif

#include <cstdio>
#include <string>

namespace decant_test {

static std::string& skip_reason() {
  static std::string reason;
  return reason;
}

void note_skip(const std::string& reason) { skip_reason() = reason; }

struct SkipListener : ListenerBase {
  using ListenerBase::ListenerBase;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (!skip_reason().empty() && stats.totals.assertions.failed == 0) {
      std::printf("DECANT_SKIPPED: %s\n", skip_reason().c_str());
      std::fflush(stdout);
    }
    skip_reason().clear();
  }
};
CATCH_REGISTER_LISTENER(SkipListener)

}  // namespace decant_test

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
