// Warpgroup matrix multiply (sm_90a), both operands in shared memory: D[64, N] (+)= A[64, 32 bytes] B[N, 32
// bytes]^T, N 128 or 256.
//
// Operands lie in 128-byte rows along K with the 128-byte swizzle, as wgmma.cuh describes; one step covers 32
// bytes of each row: k = 32 for int8 (int32 accumulators, exact), k = 16 for bf16 and f16 (fp32
// accumulators). Accumulators, thread t of the warpgroup, lane = t % 32: d[4j + 0, 1] are row 16 (t / 32) +
// lane / 4, columns 8j + 2 (lane % 4) + {0, 1}; d[4j + 2, 3] the same columns of the row 8 below. The rules
// on touching registers between issue and wait are those of wgmma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "wgmma.cuh"

namespace h3s::cuda::device {

template <int kCount>
__device__ __forceinline__ void wgmma_pin(int32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// clang-format off
#define H3S_D4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define H3S_D16(c, d, i) H3S_D4(c, d, i), H3S_D4(c, d, i + 4), H3S_D4(c, d, i + 8), H3S_D4(c, d, i + 12)
#define H3S_D64(c, d, i) H3S_D16(c, d, i), H3S_D16(c, d, i + 16), H3S_D16(c, d, i + 32), H3S_D16(c, d, i + 48)
#define H3S_FLOAT(x) "+f"(x)
#define H3S_INT(x) "+r"(x)
#define H3S_REGISTERS_64 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define H3S_REGISTERS_128 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
// Operands after the accumulators: low descriptor halves of A and B, the accumulate flag, the common high half.
#define H3S_WGMMA_SS(shape, types, registers, a, b, p, high, tail)                                           \
  "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" p ", 0;\nmov.b64 a, {%" a ", %" high "};\n"          \
  "mov.b64 b, {%" b ", %" high "};\nwgmma.mma_async.sync.aligned." shape "." types " " registers "a, b, p" tail ";\n}\n"
#define H3S_WGMMA_N256(type, shape, types, tail)                                                             \
  asm volatile(H3S_WGMMA_SS(shape, types, H3S_REGISTERS_128, "128", "129", "130", "131", tail)               \
               : H3S_D64(type, d, 0), H3S_D64(type, d, 64)                                                   \
               : "r"(a), "r"(b), "r"(accumulate), "n"(kDescriptorHigh))
#define H3S_WGMMA_N128(type, shape, types, tail)                                                             \
  asm volatile(H3S_WGMMA_SS(shape, types, H3S_REGISTERS_64, "64", "65", "66", "67", tail)                    \
               : H3S_D64(type, d, 0)                                                                         \
               : "r"(a), "r"(b), "r"(accumulate), "n"(kDescriptorHigh))
// clang-format on

// a, b: descriptor low halves of this step (tile, row and K position included). accumulate = 0 overwrites d.
template <typename T, int kCount>
__device__ __forceinline__ void wgmma_shared(int32_t (&d)[kCount], uint32_t a, uint32_t b, int accumulate) {
  static_assert(std::is_same_v<T, int8_t> && (kCount == 128 || kCount == 64));
  if constexpr (kCount == 128) {
    H3S_WGMMA_N256(H3S_INT, "m64n256k32", "s32.s8.s8", "");
  } else {
    H3S_WGMMA_N128(H3S_INT, "m64n128k32", "s32.s8.s8", "");
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void wgmma_shared(float (&d)[kCount], uint32_t a, uint32_t b, int accumulate) {
  static_assert(
      (std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>)&&(kCount == 128 || kCount == 64));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (kCount == 128) {
      H3S_WGMMA_N256(H3S_FLOAT, "m64n256k16", "f32.bf16.bf16", ", 1, 1, 0, 0");
    } else {
      H3S_WGMMA_N128(H3S_FLOAT, "m64n128k16", "f32.bf16.bf16", ", 1, 1, 0, 0");
    }
  } else {
    if constexpr (kCount == 128) {
      H3S_WGMMA_N256(H3S_FLOAT, "m64n256k16", "f32.f16.f16", ", 1, 1, 0, 0");
    } else {
      H3S_WGMMA_N128(H3S_FLOAT, "m64n128k16", "f32.f16.f16", ", 1, 1, 0, 0");
    }
  }
}

#undef H3S_WGMMA_N128
#undef H3S_WGMMA_N256
#undef H3S_WGMMA_SS
#undef H3S_REGISTERS_128
#undef H3S_REGISTERS_64
#undef H3S_INT
#undef H3S_FLOAT
#undef H3S_D64
#undef H3S_D16
#undef H3S_D4

}  // namespace h3s::cuda::device
