// Launch shape of the ops that normalise rows: a block a row, the row in shared memory where it fits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/check.h"

namespace h3s::cuda {

// 5376 columns are 672 vectors, six steps of a block; small blocks, so that many rows are in flight.
inline constexpr int kRowThreads = 128;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kRowBlocks = 8;  // 1,024 threads are all that a multiprocessor of sm_75 holds
#else
inline constexpr int kRowBlocks = 9;  // of a multiprocessor: bounds the registers of a thread to 56
#endif

// Bytes of shared memory for a row; 0: it is read from device memory twice. Looks at the row's length and
// type alone, and at whether accesses may be wide.
inline int staged_row_bytes(std::int64_t c, std::size_t element_bytes, bool wide) {
  constexpr std::int64_t kMostBytes = 47 << 10;  // a block gets 48 KiB on every card without asking for more
  const std::int64_t row_bytes = c * static_cast<std::int64_t>(element_bytes);
  return wide && row_bytes <= kMostBytes ? static_cast<int>(row_bytes) : 0;
}

// About half of the 256 KiB of an sm_90 multiprocessor for rows: 11 rows of 10.5 KiB are in flight, twice
// what covers the latency of device memory, and the other half is L1, where weight and modulation of the rows
// stay.
template <typename Kernel>
void leave_room_for_l1(Kernel kernel) {
  constexpr int kSharedPercent = 58;
  H3S_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent));
}

}  // namespace h3s::cuda
