// The activation quantiser of kernels::QuantizeRowsArgs on a row, word by word, and what it shares with the
// fast route of quantize_team.cuh: the scale, the butterfly, maxima, codes.
//
//   v rotated in stages of stride 1, 4, 16, 64 (group 0: none), a = max |v|,
//   s = max(min(a, 3.38953139e38) f(1/127), 1e-30), d = bf16(s),
//   code = clamp(rne(bf16(f(bf16(v) / d))), -128, 127)
#pragma once

#include <cstdint>

#include "element.cuh"

namespace h3s::cuda::device {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kLargestBf16 = 3.38953139e38f;
constexpr float kInverse127 = 1.0f / 127.0f;
constexpr float kSmallestScale = 1e-30f;

__device__ __forceinline__ float row_scale(float largest) {
  return fmaxf(__fmul_rn(fminf(largest, kLargestBf16), kInverse127), kSmallestScale);
}

// Never 0: the smallest scale is far above the smallest bf16.
__device__ __forceinline__ float row_divisor(float scale) {
  return round_to<__nv_bfloat16>(scale);
}

// ---- the butterfly ----

template <bool kHalve>
__device__ __forceinline__ void rotate_quad(float& x0, float& x1, float& x2, float& x3) {
  const float s = __fadd_rn(x0, x1), d = __fsub_rn(x0, x1), e = __fsub_rn(x2, x3), f = __fadd_rn(x2, x3);
  x0 = __fadd_rn(s, e), x1 = __fsub_rn(s, e), x2 = __fadd_rn(d, f), x3 = __fsub_rn(f, d);
  if constexpr (kHalve)
    x0 = __fmul_rn(0.5f, x0), x1 = __fmul_rn(0.5f, x1), x2 = __fmul_rn(0.5f, x2), x3 = __fmul_rn(0.5f, x3);
}

// All quads of v at this stride, times 2.
template <int kStride, int kCount>
__device__ __forceinline__ void rotate_all(float (&v)[kCount]) {
#pragma unroll
  for (int first = 0; first < kCount; first += 4 * kStride)
#pragma unroll
    for (int i = first; i < first + kStride; ++i)
      rotate_quad<false>(v[i], v[i + kStride], v[i + 2 * kStride], v[i + 3 * kStride]);
}

// ---- the largest magnitude ----

// Of a warp, of values that are not negative: their bits are ordered as they are.
__device__ __forceinline__ float warp_max(float v) {
  uint32_t bits = __float_as_uint(v);
#if __CUDA_ARCH__ >= 800
  bits = __reduce_max_sync(kAllLanes, bits);
#else
  for (int distance = 16; distance > 0; distance /= 2)
    bits = max(bits, __shfl_xor_sync(kAllLanes, bits, distance));
#endif
  return __uint_as_float(bits);
}

__device__ __forceinline__ float block_max(float v, uint32_t* warp_maxima) {
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = __float_as_uint(v);
  __syncthreads();
  uint32_t bits = 0;
  for (uint32_t i = 0; i < blockDim.x / 32; ++i) bits = max(bits, warp_maxima[i]);
  return __uint_as_float(bits);
}

// ---- codes ----

__device__ __forceinline__ int8_t plain_code(float v, float divisor) {
  const float q = rintf(round_to<__nv_bfloat16>(__fdiv_rn(round_to<__nv_bfloat16>(v), divisor)));
  return static_cast<int8_t>(q < 127.0f ? (q > -128.0f ? q : -128.0f) : 127.0f);
}

// 1 / divisor as a sum of two bf16, each twice in a word.
//
// bf16(f(v / d)) is bf16(v / d) and is had from any approximation of the quotient within 2^-17 of it: with
// significands of 8 bits v / d is never half way between two bf16 nor, unless it is one, nearer to such a
// point than 2^-17 of itself (|256 v - m d| >= 1 in units of the last place, m odd of 9 bits). A product with
// the two halves, the second rounded, stays within. All pairs are tried in quantize_exhaustive_cuda_test.cu.
struct Inverse {
  uint32_t high, low;
};

__device__ __forceinline__ Inverse inverse_of(float divisor) {
  const float inverse = __frcp_rn(divisor), high = round_to<__nv_bfloat16>(inverse),
              low = __fsub_rn(inverse, high);
  return {pack_bf16(high, high), pack_bf16(low, low)};
}

// bf16(f(v / divisor)) of two bf16 in a word, for finite quotients.
__device__ __forceinline__ uint32_t quotient_pair(uint32_t pair, Inverse inverse) {
  const auto& v = reinterpret_cast<const __nv_bfloat162&>(pair);
  const __nv_bfloat162 low = __hmul2_rn(v, reinterpret_cast<const __nv_bfloat162&>(inverse.low));
  const __nv_bfloat162 q = __hfma2(v, reinterpret_cast<const __nv_bfloat162&>(inverse.high), low);
  return reinterpret_cast<const uint32_t&>(q);
}

// The nearest integers of two bf16, ties to even.
__device__ __forceinline__ int2 round_pair(uint32_t pair) {
  int2 n;
#if __CUDA_ARCH__ >= 900
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rni.s32.bf16 %0, low; cvt.rni.s32.bf16 %1, high;}"
      : "=r"(n.x), "=r"(n.y)
      : "r"(pair));
#else
  n.x = __float2int_rn(low_bf16(pair)), n.y = __float2int_rn(high_bf16(pair));
#endif
  return n;
}

// b, a as signed bytes with saturation below the low half of c.
__device__ __forceinline__ uint32_t pack_bytes(int32_t a, int32_t b, uint32_t c) {
  uint32_t d;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Four codes, in order from the low byte.
__device__ __forceinline__ uint32_t four_codes(uint32_t first, uint32_t second, Inverse inverse) {
  const int2 a = round_pair(quotient_pair(first, inverse)), b = round_pair(quotient_pair(second, inverse));
  return pack_bytes(a.y, a.x, pack_bytes(b.y, b.x, 0));
}

// ---- the plain route ----

// The whole block on row m; `row` [k] floats and `warp_maxima` [32] in shared memory. Source: row(m), called
// by all threads, gives a function from column to value.
template <typename Source>
__device__ __noinline__ void quantize_plain(const Source& source, int64_t m, int64_t k, int64_t group,
                                            float* row, uint32_t* warp_maxima, int8_t* codes,
                                            float* scale_out) {
  const auto value = source.row(m);
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) row[i] = value(i);
  __syncthreads();
  for (int64_t stride = 1; stride < group; stride *= 4) {
    for (int64_t i = threadIdx.x; i < k / 4; i += blockDim.x) {
      float* v = row + i / stride * 4 * stride + i % stride;
      rotate_quad<true>(v[0], v[stride], v[2 * stride], v[3 * stride]);
    }
    __syncthreads();
  }
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
    largest = fmaxf(largest, fabsf(row[i]));  // a NaN is passed over
  const float scale = row_scale(block_max(largest, warp_maxima));
  if (threadIdx.x == 0) *scale_out = scale;
  const float divisor = row_divisor(scale);
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) codes[i] = plain_code(row[i], divisor);
  __syncthreads();  // the shared memory is free again
}

}  // namespace h3s::cuda::device
