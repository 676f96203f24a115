// Modulation segments of a call as kernel arguments.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/cuda/device/segment_table.cuh"
#include "kernels/row_ops.h"

namespace h3s::cuda {

// Calls fn(first row, rows, table) for consecutive parts of rows [0, m) of at most kMaxSegments segments
// each: one part but for very long lists. Rows do not look at each other, so parts change no bit. Throws
// Error(kInternal) for a row in no segment.
void for_segments(const kernels::Modulation& modulation, int64_t m,
                  const std::function<void(int64_t, int64_t, const SegmentTable&)>& fn);

}  // namespace h3s::cuda
