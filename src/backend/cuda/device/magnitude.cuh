// Largest magnitudes, NaN above all.
#pragma once

#include <cstdint>

namespace h3s::cuda::device {

constexpr float kNan = __builtin_nanf("");  // 0x7fc00000: what a row with a NaN gets for a scale

__device__ __forceinline__ float max_magnitude(float largest, float v) {
#if __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(v)));
  return largest;
#else
  return __uint_as_float(max(__float_as_uint(largest), __float_as_uint(fabsf(v))));
#endif
}

// Of a warp, of values that are not negative: their bits are ordered as they are.
__device__ __forceinline__ float warp_max(float v) {
  uint32_t bits = __float_as_uint(v);
#if __CUDA_ARCH__ >= 800
  bits = __reduce_max_sync(0xffffffffu, bits);
#else
  for (int distance = 16; distance > 0; distance /= 2)
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
#endif
  return __uint_as_float(bits);
}

}  // namespace h3s::cuda::device
