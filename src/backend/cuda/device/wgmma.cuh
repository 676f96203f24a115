// Warpgroup matrix multiply (sm_90a): D[64, 128] (+)= A[64, 16] B[16, 128], A in registers, B in shared
// memory, fp32 accumulators.
//
// Accumulators, thread t of the warpgroup, lane = t % 32: d[4j + 0, 1] are row 16 (t / 32) + lane / 4,
// columns 8j + 2 (lane % 4) and the next; d[4j + 2, 3] the same columns of the row 8 below. A fragments, of a
// step of 16 along k, have the same shape in pairs: a[0] row lane / 4, k = 2 (lane % 4) and the next; a[1]
// the row 8 below; a[2], a[3] the same at k + 8. So P in 16 bits is a repack of the accumulators of S, and Q
// comes in by ldmatrix.
//
// The products run beside the program. Between issue and wait nothing may touch their registers, and the
// compiler does not know: wgmma_pin marks, before the issue and after the wait, the registers that a product
// owns in between.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "mbarrier.cuh"

namespace h3s::cuda::device {

// B operand descriptor of a tile stored in 128-byte rows with the 128-byte swizzle, 1024-byte aligned groups
// of 8 rows. The upper half never changes; the lower holds the address and `leading_bytes`, the distance
// between the 64-column halves of a tile whose rows run along N (the transposed B of P V); ignored where rows
// run along K. Both in units of 16 bytes, so advancing by bytes is an addition of bytes / 16. In a cluster
// the upper bits of a shared address name the block; only the 18 bits within it belong here.
// The constant half: bytes from one group of 8 rows to the next, and the swizzle.
constexpr uint32_t kDescriptorHigh = 1024 / 16 | 1u << 30;

__device__ __forceinline__ uint32_t wgmma_descriptor(uint32_t tile_address, uint32_t leading_bytes) {
  return (tile_address & 0x3ffff) / 16 | leading_bytes / 16 << 16;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_pin(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// clang-format off
#define H3S_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define H3S_ACC16(d, i) H3S_ACC4(d, i), H3S_ACC4(d, i + 4), H3S_ACC4(d, i + 8), H3S_ACC4(d, i + 12)
#define H3S_WGMMA(type)                                                                               \
  asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %69, 0;\nmov.b64 b, {%68, %70};\n"     \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                 \
  "{%64, %65, %66, %67}, b, p, 1, 1, %71;\n}\n"                                                       \
  : H3S_ACC16(d, 0), H3S_ACC16(d, 16), H3S_ACC16(d, 32), H3S_ACC16(d, 48)                             \
  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate),                              \
    "n"(kDescriptorHigh), "n"(kRowsAlongN))
// clang-format on

// kRowsAlongN: the stored rows of B run along N (B is [k][n] in memory) rather than along K ([n][k]).
// accumulate = 0 overwrites d.
template <typename T, int kRowsAlongN>
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], const uint32_t* a, uint32_t b,
                                                 int accumulate) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    H3S_WGMMA("bf16");
  } else {
    H3S_WGMMA("f16");
  }
}

#undef H3S_WGMMA
#undef H3S_ACC16
#undef H3S_ACC4

}  // namespace h3s::cuda::device
