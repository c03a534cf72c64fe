#include "base/fp_contract.hpp"

#include "schedule/planner.hpp"

#include <algorithm>
#include <tuple>

namespace decant::detail {

// Rows of prompts beside others come in so many: fewer would hardly be faster, in attention.
static constexpr std::size_t kRowsAtOnce = 4;
// Of a pass, a prompt gets the time of so many replies: it holds a place while it is read, and a
// reply that decodes makes better use of it.
static constexpr double kPromptShare = 4;
static constexpr std::size_t kUnknownRows = 32;  // as long as nothing was measured

bool goes_before(const Turn& a, const Turn& b) {
  return std::make_tuple(b.decoding, b.priority, a.since, a.number) <
         std::make_tuple(a.decoding, a.priority, b.since, b.number);
}

bool comes_before(const Turn& a, const Turn& b) {
  return std::make_tuple(b.priority, a.number) < std::make_tuple(a.priority, b.number);
}

RowBudget::RowBudget(std::size_t max_rows, std::size_t prompt_rows, std::size_t n_decoding,
                     std::size_t n_prompts, std::uint64_t step) {
  const std::size_t quarter = max_rows == 1 ? step % 2 : max_rows / 4 + (max_rows % 4 != 0);
  const std::size_t kept = n_prompts == 0 ? 0 : n_decoding == 0 ? max_rows : quarter;
  decoding_ = std::min(n_decoding, max_rows - kept);
  prompts_ = std::min(max_rows - decoding_, prompt_rows);
}

std::size_t RowBudget::take(bool decoding, std::size_t wanted) {
  std::size_t& left = decoding ? decoding_ : prompts_;
  const std::size_t n = std::min(left, wanted);
  left -= n;
  return n;
}

/// Follows what is measured, slowly enough that one odd pass does not matter much.
static void pace_follow(double& average, double now) {
  average = average == 0 ? now : average + (now - average) / 4;
}

void Pace::note(std::size_t n_decoding, std::size_t prompt_rows, Duration passed) {
  const auto time = static_cast<double>(passed.count());
  if (prompt_rows == 0) return pace_follow(decode_, time);
  const double others = n_decoding == 0 ? 0 : std::min(decode_, time / 2);
  pace_follow(row_, (time - others) / static_cast<double>(prompt_rows));
}

std::size_t Pace::prompt_rows(std::size_t n_decoding, std::size_t n_prompts,
                              Duration wanted) const {
  if (n_decoding == 0 && wanted.count() == 0) return SIZE_MAX;
  if (row_ == 0 || (n_decoding != 0 && decode_ == 0)) return kUnknownRows;
  const auto most = static_cast<double>(wanted.count());
  const double share = kPromptShare * static_cast<double>(n_prompts);
  double time = most;
  if (n_decoding != 0) time = decode_ * std::max(1.0, share / static_cast<double>(n_decoding));
  if (most != 0) time = std::min(time, most);
  const auto n = static_cast<std::size_t>(std::min(time / row_, 1e6));
  return std::max(kRowsAtOnce, n / kRowsAtOnce * kRowsAtOnce);
}

}  // namespace decant::detail
