// Finding the modulation row of a row of the call.
#pragma once

#include <cstdint>

#include "segment_table.cuh"

namespace h3s::cuda::device {

__device__ __forceinline__ int64_t table_row(const SegmentTable& segments, int64_t r) {
  int i = 0;
  while (i < segments.count - 1 && r >= segments.stop[i]) ++i;
  return segments.row[i];
}

}  // namespace h3s::cuda::device
