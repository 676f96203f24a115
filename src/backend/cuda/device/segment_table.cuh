// Which row of a modulation table a row of the call uses: a kernel argument, so that no copy has to precede
// the launch.
#pragma once

#include <cstdint>

namespace h3s::cuda {

constexpr int kMaxSegments =
    64;  // 516 of the 4,096 bytes a kernel's arguments may take; longer lists take several launches

// Rows below stop[i], and not below stop[i - 1], use table row `row[i]`. The last stop is the number of rows
// of the launch.
struct SegmentTable {
  int count = 0;
  std::int32_t stop[kMaxSegments] = {};
  std::int32_t row[kMaxSegments] = {};
};

}  // namespace h3s::cuda
