// One include for Catch2 2.13 (Debian 12) and 3.x.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace decant_test {
void note_skip(const std::string& reason);
}

/// Ends the test case, counted as skipped unless something in it failed. Only at the top level of a
/// TEST_CASE. For data and hardware that a machine may lack, never for what is not written yet.
#define DECANT_SKIP(reason)           \
  do {                                \
    decant_test::note_skip(reason);   \
    SUCCEED("skipped: " << (reason)); \
    return;                           \
  } while (false)
