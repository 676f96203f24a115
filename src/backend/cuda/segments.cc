#include "backend/cuda/segments.h"

#include <algorithm>

#include "base/error.h"

namespace h3s::cuda {
namespace {

// The segment that holds `token`, searched from `idx` on: segments are sorted.
std::int64_t segment_of(const kernels::Modulation& modulation, std::int64_t token, std::int64_t idx) {
  while (idx < modulation.num_segments && modulation.segments[idx].stop <= token) ++idx;
  if (idx == modulation.num_segments || modulation.segments[idx].start > token)
    fail(Status::kInternal, "[modulation] token {} is in none of the {} segments", token,
         modulation.num_segments);
  return idx;
}

}  // namespace

void for_segments(const kernels::Modulation& modulation, std::int64_t m,
                  const std::function<void(std::int64_t, std::int64_t, const SegmentTable&)>& fn) {
  H3S_ASSERT(m <= INT32_MAX);
  std::int64_t idx = 0;
  for (std::int64_t first = 0; first < m;) {
    SegmentTable table;
    std::int64_t row = first;
    while (row < m && table.count < kMaxSegments) {
      idx = segment_of(modulation, modulation.token0 + row, idx);
      const kernels::ModSegment& segment = modulation.segments[idx];
      row = std::min(m, segment.stop - modulation.token0);
      table.stop[table.count] = static_cast<std::int32_t>(row - first);
      table.row[table.count++] = static_cast<std::int32_t>(segment.row);
    }
    fn(first, row - first, table);
    first = row;
  }
}

}  // namespace h3s::cuda
