// int8 codes on the route of quantize_rotated.cuh.
//
// The bits are those of quantize_plain; beside the halvings and range cases of quantize_fast, what is left
// out is
//   - the last stage's maximum: max(|f(p + r)|, |f(p - r)|) is f(|p| + |r|);
//   - the quotient's division: see Divisor.
#pragma once

#include <cstdint>

#include "quantize_rotated.cuh"

namespace h3s::cuda::device {

// ---- the quotient ----

#if __CUDA_ARCH__ >= 800
// The inverse of a divisor as a sum of two bf16, each twice in a word.
//
// bf16(f(v / d)) is bf16(v / d) and is had from any approximation of the quotient within 2^-17 of it: with
// significands of 8 bits v / d is never half way between two bf16 nor, unless it is one, nearer to such a
// point than 2^-17 of itself (|256 v - m d| >= 1 in units of the last place, m odd of 9 bits). A product with
// the two halves, the second rounded, stays within: just so, hence all pairs are tried in
// quantize_exhaustive_cuda_test.cu. kRotatedLimit keeps the halves far from where bf16 underflow.
struct Divisor {
  uint32_t high, low;

  __device__ __forceinline__ explicit Divisor(float divisor) : Divisor(divisor, reciprocal_approx(divisor)) {}
  // `approximate` within two ulps of the inverse, which is rounded right before it is split: with one ulp less
  // 226 / 251 would come out wrong.
  __device__ __forceinline__ Divisor(float divisor, float approximate) {
    const float inverse = __fmaf_rn(__fmaf_rn(-divisor, approximate, 1.0f), approximate, approximate),
                h = round_to<__nv_bfloat16>(inverse), l = __fsub_rn(inverse, h);
    high = pack_bf16(h, h), low = pack_bf16(l, l);
  }
};

// bf16(f(v / divisor)) of two bf16 in a word, for finite quotients.
__device__ __forceinline__ uint32_t quotient_pair(uint32_t pair, Divisor divisor) {
  const auto& v = reinterpret_cast<const __nv_bfloat162&>(pair);
  const __nv_bfloat162 low = __hmul2_rn(v, reinterpret_cast<const __nv_bfloat162&>(divisor.low));
  const __nv_bfloat162 q = __hfma2(v, reinterpret_cast<const __nv_bfloat162&>(divisor.high), low);
  return reinterpret_cast<const uint32_t&>(q);
}
#else
// Without arithmetic of bf16: the way of quantize.cuh.
struct Divisor {
  float divisor, inverse;

  __device__ __forceinline__ explicit Divisor(float d) : divisor(d), inverse(1.0f / d) {}
  __device__ __forceinline__ Divisor(float d, float) : Divisor(d) {}
};

__device__ __forceinline__ uint32_t quotient_pair(uint32_t pair, Divisor divisor) {
  return quotient_pair(low_bf16(pair), high_bf16(pair), divisor.divisor, divisor.inverse);
}
#endif

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

// Four codes, in order from the low byte, of values in two words.
__device__ __forceinline__ uint32_t four_codes(uint32_t first, uint32_t second, Divisor divisor) {
  const int2 a = round_pair(quotient_pair(first, divisor)), b = round_pair(quotient_pair(second, divisor));
  return pack_bytes(a.y, a.x, pack_bytes(b.y, b.x, 0));
}

// ---- the rotation ----

// A stage of which this thread holds two of four values and the one kDistance on the others. From its own sum
// p and difference m every thread needs the other's m alone: s + e, s - e here, f + d, f - d there.
struct Exchanged {
  float sum, other;
};
template <int kDistance>
__device__ __forceinline__ Exchanged exchange(float x0, float x1) {
  return {__fadd_rn(x0, x1), __shfl_xor_sync(kAllLanes, __fsub_rn(x0, x1), kDistance)};
}

// Strides 1, 4 and 16, each times 2.
__device__ __forceinline__ void rotate_but_last(float (&v)[kThreadValues]) {
  rotate_all<1>(v);
#pragma unroll
  for (int c = 0; c < kThreadValues; c += kVector)
#pragma unroll
    for (int i = c; i < c + kVector / 2; ++i) {
      const Exchanged x = exchange<1>(v[i], v[i + 4]);
      v[i] = __fadd_rn(x.sum, x.other), v[i + 4] = __fsub_rn(x.sum, x.other);
    }
  rotate_all<kVector>(v);
}

// Stride 64, times 2, rounded to pairs of bf16. Returns the largest magnitude's bits, above infinity's for
// NaN.
__device__ __forceinline__ uint32_t rotate_last(const float (&v)[kThreadValues],
                                                uint32_t (&pairs)[kThreadPairs]) {
  constexpr int kHalf = kThreadValues / 2;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kHalf; i += 2) {
    const Exchanged x = exchange<2>(v[i], v[i + kHalf]), y = exchange<2>(v[i + 1], v[i + 1 + kHalf]);
    pairs[i / 2] = pack_bf16(__fadd_rn(x.sum, x.other), __fadd_rn(y.sum, y.other));
    pairs[(kHalf + i) / 2] = pack_bf16(__fsub_rn(x.sum, x.other), __fsub_rn(y.sum, y.other));
    largest = max(largest, max(__float_as_uint(__fadd_rn(fabsf(x.sum), fabsf(x.other))),
                               __float_as_uint(__fadd_rn(fabsf(y.sum), fabsf(y.other)))));
  }
  return largest;
}

// No rotation, the rest alike.
__device__ __forceinline__ uint32_t round_unrotated(const float (&v)[kThreadValues],
                                                    uint32_t (&pairs)[kThreadPairs]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kThreadValues; i += 2) {
    pairs[i / 2] = pack_bf16(v[i], v[i + 1]);
    largest = max(largest, max(__float_as_uint(fabsf(v[i])), __float_as_uint(fabsf(v[i + 1]))));
  }
  return largest;
}

// ---- the codes ----

template <bool kRotate>
struct Int8Codes {
  using Values = float[kThreadValues];
  static constexpr float kFactor = kRotate ? 16.0f : 1.0f;  // four stages, not halved
  struct Factor {
    Divisor divisor;
    __device__ __forceinline__ explicit Factor(float scale) : divisor(kFactor * row_divisor(scale)) {}
    __device__ __forceinline__ uint32_t codes(uint32_t first, uint32_t second) const {
      return four_codes(first, second, divisor);
    }
  };

  template <typename Source>
  static __device__ __forceinline__ bool take(const Source& source, unsigned char* chunks, int input_bytes,
                                              bool works, Values& v) {
    return source.take(chunks, input_bytes, works, v);
  }
  static __device__ __forceinline__ uint32_t finish(Values& v, uint32_t (&pairs)[kThreadPairs]) {
    if constexpr (kRotate) rotate_but_last(v);
    return kRotate ? rotate_last(v, pairs) : round_unrotated(v, pairs);
  }
  static __device__ __forceinline__ float scale(float largest) {
    return row_scale(__fmul_rn(largest, 1.0f / kFactor));
  }
  // Of shared memory: the plain route, should a row need it, holds the row.
  static int plain_bytes(int k) { return k * 4; }
  template <typename Source>
  static __device__ __forceinline__ void plain_rows(const Source& source, int64_t rows, int64_t k, float* row,
                                                    uint32_t* warp_maxima, int8_t* codes, float* scales) {
    quantize_plain_rows(source, blockIdx.x, gridDim.x, rows, k, kRotate ? kRotated : 0, false, row,
                        warp_maxima, codes, scales);
  }
};

}  // namespace h3s::cuda::device
