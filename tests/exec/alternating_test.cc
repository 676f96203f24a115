// A hundred runs of two alternating shapes in one process: books empty after each, bits equal, anonymous
// memory and time flat.
#include <gtest/gtest.h>

#include "exec/alternating_runs.h"

namespace h3s::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // quarantined and shadow memory grows
#else
constexpr bool kSanitized = false;
#endif

TEST(AlternatingRuns, LeaveNothingBehindAndStayAsFast) {
  constexpr std::size_t kRuns = 100, kSettled = 20, kWindow = 20;
  const std::vector<RunFigures> runs = alternate({.threads = 2}, kRuns);
  store_figures({.threads = 2}, runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_TRUE(runs[i].equal) << "run " << i;
    EXPECT_EQ(runs[i].booked_bytes, 0) << "run " << i;
  }
  if (kSanitized) return;
  // The heap of the process has found its size after some runs; one buffer a run would be megabytes by the
  // end.
  constexpr std::int64_t kSlack = 512 << 10;
  for (const std::size_t parity : {0, 1}) {
    const std::int64_t early =
        median_of(runs, kSettled + parity, kSettled + kWindow, &RunFigures::anonymous_bytes);
    const std::int64_t late = median_of(runs, kRuns - kWindow + parity, kRuns, &RunFigures::anonymous_bytes);
    EXPECT_LE(late, early + kSlack);
    // Other processes share the machine: what is to be seen is a run that takes ever longer, by half at the
    // least.
    const double before = median_of(runs, kSettled + parity, kSettled + kWindow, &RunFigures::seconds);
    const double after = median_of(runs, kRuns - kWindow + parity, kRuns, &RunFigures::seconds);
    RecordProperty(parity == 0 ? "short_late_over_early" : "long_late_over_early",
                   std::to_string(after / before));
    EXPECT_LE(after, 3 * before);
    std::printf("shape %zu: anonymous %.2f then %.2f MB, %.1f then %.1f ms a step\n", parity, early / 1e6,
                late / 1e6, 1e3 * before, 1e3 * after);
  }
}

}  // namespace
}  // namespace h3s::test
