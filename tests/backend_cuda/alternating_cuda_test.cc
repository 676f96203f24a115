// A hundred runs of two alternating shapes on the GPU: books empty, bits equal, device and anonymous memory
// flat.
#include <gtest/gtest.h>

#include "exec/alternating_runs.h"

namespace h3s::test {
namespace {

TEST(AlternatingRunsCuda, LeaveNothingBehindAndStayAsFast) {
  constexpr std::size_t kRuns = 100, kSettled = 20;
  const std::vector<RunFigures> runs = alternate({.cuda = 0}, kRuns);
  store_figures({.cuda = 0}, runs);
  // Kernels are loaded when first launched: the first runs of both shapes take device memory that stays.
  std::int64_t least = runs[kSettled].device_bytes, most = least;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_TRUE(runs[i].equal) << "run " << i;
    EXPECT_EQ(runs[i].booked_bytes, 0) << "run " << i;
    if (i < kSettled) continue;
    least = std::min(least, runs[i].device_bytes);
    most = std::max(most, runs[i].device_bytes);
  }
  EXPECT_EQ(most, least) << "device memory, alone on the GPU";
  constexpr std::int64_t kSlack = 2 << 20;  // of the driver's own heap
  EXPECT_LE(runs.back().anonymous_bytes, runs[kSettled + 1].anonymous_bytes + kSlack);
  for (const std::size_t parity : {0, 1})
    std::printf("shape %zu: %.2f then %.2f ms a step; device %.1f MB, anonymous %.2f then %.2f MB\n", parity,
                1e3 * median_of(runs, kSettled + parity, 40, &RunFigures::seconds),
                1e3 * median_of(runs, 80 + parity, kRuns, &RunFigures::seconds),
                static_cast<double>(most) / 1e6, static_cast<double>(runs[kSettled].anonymous_bytes) / 1e6,
                static_cast<double>(runs.back().anonymous_bytes) / 1e6);
}

}  // namespace
}  // namespace h3s::test
