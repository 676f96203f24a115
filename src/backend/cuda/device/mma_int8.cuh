// Warp matrix multiply D[16, 8] += A[16, 32] B[32, 8] of int8 with int32 accumulators (sm_75+), exact.
//
// Fragments are those of mma.cuh with bytes for halves: each 32-bit register holds four neighbours along k.
#pragma once

#include <cstdint>

namespace h3s::cuda::device {

__device__ __forceinline__ void mma_m8n8k16(int32_t& d0, int32_t& d1, uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(d0), "+r"(d1)
               : "r"(a), "r"(b));
}

__device__ __forceinline__ void mma_m16n8k32(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  mma_m8n8k16(d[0], d[1], a[0], b0);
  mma_m8n8k16(d[2], d[3], a[1], b0);
  mma_m8n8k16(d[0], d[1], a[2], b1);
  mma_m8n8k16(d[2], d[3], a[3], b1);
#endif
}

}  // namespace h3s::cuda::device
