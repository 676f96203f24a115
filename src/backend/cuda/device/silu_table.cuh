// silu of bf16 by a table in shared memory: three instructions where the formula takes twenty.
//
// The table holds silu of exp.cuh, so its bits, for magnitudes in [2^-25, 2^7), and 0 in place of 2^-25's own
// entry: a magnitude below, 0 above all, reads that entry, one beyond 2^7 the last. Who reads asks apart
// whether the values were ones that the table has.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "exp.cuh"

namespace h3s::cuda::device {

constexpr uint32_t kSiluFirst = 0x3300;     // 2^-25 as bf16
constexpr uint32_t kSiluMagnitudes = 4096;  // 32 binades of 128
constexpr uint32_t kSiluEntries = 2 * kSiluMagnitudes;

// 32 KiB of the block's shared memory. One array, so that its address is a constant.
__device__ __forceinline__ float* silu_table() {
  __shared__ float table[kSiluEntries];  // magnitudes ascending, positive ones first
  return table;
}

// The whole block; returns when the table can be read.
__device__ __forceinline__ void fill_silu_table() {
  for (uint32_t i = threadIdx.x; i < kSiluEntries; i += blockDim.x) {
    const uint32_t magnitude = i % kSiluMagnitudes, sign = i < kSiluMagnitudes ? 0 : 0x80000000u;
    silu_table()[i] = magnitude == 0 ? 0.0f : silu(__uint_as_float((kSiluFirst + magnitude) << 16 | sign));
  }
  __syncthreads();
}

// The bits of two bf16 without their signs.
__device__ __forceinline__ uint32_t magnitudes(uint32_t pair) {
  return pair & 0x7fff7fffu;
}

// silu of both bf16 of `pair`, of the given magnitudes.
__device__ __forceinline__ float2 silu_pair(uint32_t pair, uint32_t magnitude) {
  constexpr uint32_t kFirst = 0x10000u - kSiluFirst, kLast = kSiluMagnitudes - 1;
  const uint32_t idx =
      __viaddmin_s16x2_relu(magnitude, kFirst << 16 | kFirst, kLast << 16 | kLast);  // in [0, kLast]
  // Bytes from the table's start: the index times 4, and where the negative entries begin.
  const uint32_t offset = idx << 2 | (pair >> 1 & 0x40004000u);
  const char* table = reinterpret_cast<const char*>(silu_table());
  return make_float2(*reinterpret_cast<const float*>(table + (offset & 0xffffu)),
                     *reinterpret_cast<const float*>(table + (offset >> 16)));
}

}  // namespace h3s::cuda::device
