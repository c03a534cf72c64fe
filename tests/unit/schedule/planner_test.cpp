// Who runs in a step: small cases worked out by hand from the rules in planner.hpp.
#include "schedule/planner.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "support/catch.hpp"

using decant::detail::comes_before;
using decant::detail::goes_before;
using decant::detail::Pace;
using decant::detail::RowBudget;
using decant::detail::Turn;
using namespace std::chrono_literals;

TEST_CASE("in a step: decoding ones, then by priority, then who has waited longest") {
  // decoding, priority, since, number
  std::vector<Turn> turns = {{false, 0, 7, 1}, {true, 0, 9, 2},  {false, 1, 9, 3}, {true, -1, 1, 4},
                             {false, 0, 5, 5}, {false, 0, 7, 6}, {true, 0, 9, 7}};
  std::sort(turns.begin(), turns.end(), goes_before);
  std::vector<std::uint64_t> order;
  for (const Turn& t : turns) order.push_back(t.number);
  CHECK(order == std::vector<std::uint64_t>{2, 7, 4, 3, 5, 1, 6});
}

TEST_CASE("into the batch: by priority, then in the order of submission") {
  const Turn early{true, 0, 9, 1}, late{false, 0, 1, 2}, urgent{false, 5, 1, 3};
  CHECK(comes_before(early, late));
  CHECK_FALSE(comes_before(late, early));
  CHECK(comes_before(urgent, early));
  CHECK_FALSE(comes_before(early, early));
}

TEST_CASE("rows: all decoding sequences, the rest for prompts") {
  RowBudget budget(16, SIZE_MAX, 3, 2, 1);
  for (int i = 0; i < 3; ++i) CHECK(budget.take(true, 1) == 1);
  CHECK(budget.take(true, 1) == 0);
  CHECK(budget.take(false, 10) == 10);
  CHECK(budget.take(false, 10) == 3);
  CHECK(budget.prompt_rows_left() == 0);
  budget.give_back(false, 2);
  CHECK(budget.take(false, 10) == 2);
}

TEST_CASE("rows: a quarter of a full step is for prompts, and no more than their pace") {
  {
    RowBudget budget(16, SIZE_MAX, 40, 1, 1);
    std::size_t n = 0;
    while (budget.take(true, 1) == 1) ++n;
    CHECK(n == 12);
    CHECK(budget.take(false, 100) == 4);
  }
  {
    RowBudget budget(16, 3, 5, 1, 1);
    CHECK(budget.take(false, 100) == 3);
  }
  {
    RowBudget budget(16, SIZE_MAX, 40, 0, 1);
    std::size_t n = 0;
    while (budget.take(true, 1) == 1) ++n;
    CHECK(n == 16);
  }
  RowBudget alone(16, SIZE_MAX, 0, 1, 1);
  CHECK(alone.take(false, 100) == 16);
}

TEST_CASE("one row a step: decoding sequences and prompts take turns") {
  std::size_t decoded = 0, prompted = 0;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    RowBudget budget(1, SIZE_MAX, 2, 1, step);
    decoded += budget.take(true, 1);
    prompted += budget.take(false, 5);
  }
  CHECK(decoded == 5);
  CHECK(prompted == 5);
}

TEST_CASE("every prompt has its turn however many others there are") {
  // The rule alone: eight prompts of which each step serves one, and a new one comes in each step.
  std::vector<Turn> turns;
  for (std::uint64_t i = 0; i < 8; ++i) turns.push_back({false, 0, 0, i});
  std::size_t longest = 0;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    const auto first = std::min_element(turns.begin(), turns.end(), goes_before);
    longest = std::max(longest, static_cast<std::size_t>(step - first->since));
    first->since = step;
    if (step % 10 == 0) turns.push_back({false, 0, step, 100 + step});
  }
  // Nobody waited longer than all that are there need for a turn each.
  CHECK(longest <= turns.size());
}

TEST_CASE("prompts beside decoding sequences get as much time, and more if they are more") {
  Pace pace;
  CHECK(pace.prompt_rows(0, 1, 0ns) == SIZE_MAX);
  CHECK(pace.prompt_rows(4, 1, 0ns) == 32);  // nothing is known yet
  for (int i = 0; i < 20; ++i) pace.note(4, 0, 10ms);
  for (int i = 0; i < 20; ++i) pace.note(0, 100, 50ms);  // half a millisecond a row
  CHECK(pace.prompt_rows(4, 1, 0ns) == 20);
  CHECK(pace.prompt_rows(4, 12, 0ns) == 240);  // a prompt counts as four replies
  CHECK(pace.prompt_rows(0, 1, 0ns) == SIZE_MAX);
  // A step that is to end soon: 15 ms without decoding sequences, 5 ms beside them.
  CHECK(pace.prompt_rows(0, 1, 15ms) == 28);  // of 30, in fours
  CHECK(pace.prompt_rows(4, 1, 5ms) == 8);
  CHECK(pace.prompt_rows(4, 1, 15ms) == 20);
  // Rows have become dearer, as seen beside the others.
  for (int i = 0; i < 40; ++i) pace.note(4, 10, 20ms);
  CHECK(pace.prompt_rows(4, 1, 0ns) == 8);
  // Always a few.
  CHECK(pace.prompt_rows(4, 1, 1ns) == 4);
}
