// Launchers of the linear layers. Arguments were checked by the caller; a launcher only asserts.
//
// Each enqueues on `stream` and returns; no workspace, no synchronisation, any thread. Rows and columns of
// the result are bitwise independent of how they are split over calls, of the tile they fall into and of the
// card's size, for one kernel.
//
// Which kernel: types and k decide, and the compute capability; never m, n, pointers or strides.
//   x and w both bf16 or both f16, y of that type or
//   f32, k a multiple of 8                              tensor cores, fp32 sums   linear_sm90, linear_mma
//   the same, added to y                                the same by mma.sync      linear_mma, linear_add
//   other floating-point types, or another k            fp32, equal to the CPU    linear_fma
//   int8, k a multiple of 16                            tensor cores, exact       linear_int8_sm90, _mma
//   int8, another k                                     plain loops, exact        linear_int8_plain
//
// The tensor-core kernels also need x, w and every row of them on 16 bytes. All pointers are device memory; y
// overlaps nothing. Only linear(), linear_int8() and the sm90 kernels take more than one part.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear.h"

namespace h3s::cuda {

void linear(const kernels::LinearArgs& args, cudaStream_t stream);
void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream);

// Whether the types and k are ones that tensor cores take on a card of capability `sm` (times 10).
bool tensor_cores_apply(const kernels::LinearArgs& args, int sm);
bool tensor_cores_apply(const kernels::LinearInt8Args& args);

// wgmma + TMA; compute capability 9.0 only. Takes parts whose columns fill its tiles: a narrow one for a part
// of at most that many, else wide ones.
inline constexpr int kNarrowTile = 128, kWideTile = 256;
void linear_sm90(const kernels::LinearArgs& args, cudaStream_t stream);
void linear_int8_sm90(const kernels::LinearInt8Args& args, cudaStream_t stream);

// mma.sync; compute capability 7.5 and up, bf16 8.0 and up.
void linear_mma(const kernels::LinearArgs& args, cudaStream_t stream);
void linear_int8_mma(const kernels::LinearInt8Args& args, cudaStream_t stream);

// The bits of linear_mma for products that are bound by y, which they are added to; capability 8.0 and up.
inline constexpr std::int64_t kMaxAddedK = 128;
bool takes_linear_add(const kernels::LinearArgs& args);  // of what tensor cores take
void linear_add(const kernels::LinearArgs& args, cudaStream_t stream);

// Fused multiply-adds in the order of kernels::LinearArgs: bit-equal to the CPU definition.
void linear_fma(const kernels::LinearArgs& args, cudaStream_t stream);

// One thread an output; for the k that the tensor cores cannot take.
void linear_int8_plain(const kernels::LinearInt8Args& args, cudaStream_t stream);

}  // namespace h3s::cuda
