// The few scalar pieces of online softmax that every attention kernel here shares, so that they cannot drift
// apart.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace h3s::cuda::device {

// 2^x by the special function unit, denormal results flushed. exp2_unit(0) is exactly 1 and exp2_unit(-inf)
// exactly 0.
__device__ __forceinline__ float exp2_unit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A score row lives in the four lanes of a quad: these combine the four in a fixed tree, (0+1)+(2+3).
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Rounds two floats to nearest even, `low` in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack16(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack16<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <>
__device__ __forceinline__ uint32_t pack16<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Natural-log lse from the base-2 reference `max2` and the sum of 2^(t - max2).
__device__ __forceinline__ float lse_from_base2(float max2, float sum) {
  constexpr float kLn2 = 0.693147180559945309f;
  return (max2 + log2f(sum)) * kLn2;
}

}  // namespace h3s::cuda::device
