// Launchers of the exact attention kernels. Arguments were checked by the caller; a launcher only asserts.
//
// Each enqueues on `stream` and returns; no workspace, no synchronisation, any thread. Results are bitwise
// independent of how queries and heads are split over calls and of the card's size, for one launcher on one
// architecture.
//
// Beyond what AttentionArgs says: pointers are 16-byte aligned device memory and strides multiples of 8
// elements, so that every row is 16-byte aligned; o overlaps none of q, k, v; scale > 0; 1 <= kv_tokens <
// 2^31 - 256; values are finite.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention.h"

namespace h3s::cuda {

// wgmma + TMA; compute capability 9.0 only. BF16 and F16.
void attention_sm90(const kernels::AttentionArgs& args, cudaStream_t stream);

// mma.sync; compute capability 8.0 and up for BF16 and F16, 7.5 for F16 alone.
void attention_mma(const kernels::AttentionArgs& args, cudaStream_t stream);

// The block shape of attention_mma: it follows the card's shared memory and does not change the result.
struct AttentionMmaShape {
  int warps;   // of 32 query rows each
  int stages;  // key and value tiles in flight
  bool operator==(const AttentionMmaShape&) const = default;
};
AttentionMmaShape attention_mma_shape(int64_t shared_bytes_per_sm);

// With one of the shapes that attention_mma_shape returns; for tests.
void attention_mma(const kernels::AttentionArgs& args, AttentionMmaShape shape, cudaStream_t stream);

// The kernel of the current device. The choice looks at the compute capability alone.
void attention(const kernels::AttentionArgs& args, cudaStream_t stream);

}  // namespace h3s::cuda
