// silu(z) = f(z / f(1 + exp(-z))) for many values at once: the bits of silu in exp.cuh, but for the sign of
// zero, with fewer instructions.
//
// For finite z >= kSiluFastMin. exp(-z) is within [2^-116, 2^126], so its scaling cannot leave the normal
// range and is one addition to the exponent; beyond 80 it vanishes beside 1, so z is bounded there. The
// division is a reciprocal and a quotient refined twice, without range tests. For every z and every
// reciprocal within an ulp of the right one it is the IEEE quotient, but for 20 such pairs with |z| < 20
// (tests/silu_fast_reciprocal_test.cc); none of them occurs on sm_90 (quantize_exhaustive_cuda_test.cu, to be
// run on other cards too).
#pragma once

#include "exp.cuh"

namespace h3s::cuda::device {

constexpr float kSiluFastMin = -87.0f;
constexpr float kSiluFastMax = 3.40282347e38f;  // the largest float

// 2^(n + r) within the normal range, n in the low bits of `sum`, n + kRoundMagic; the constant has none of
// the bits that the shift keeps.
__device__ __forceinline__ float exp2_usual(float sum, float r) {
  float q = 0x1.44138ap-13f;
  q = __fmaf_rn(q, r, 0x1.5f089p-10f);
  q = __fmaf_rn(q, r, 0x1.3b2a54p-7f);
  q = __fmaf_rn(q, r, 0x1.c6af6cp-5f);
  q = __fmaf_rn(q, r, 0x1.ebfbep-3f);
  q = __fmaf_rn(q, r, 0x1.62e43p-1f);
  return __int_as_float(__float_as_int(__fmaf_rn(q, r, 1.0f)) + (__float_as_int(sum) << 23));
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

__device__ __forceinline__ float silu_fast(float z) {
  const float x = -fminf(z, 80.0f);
  const float sum = __fadd_rn(__fmul_rn(x, kLog2e), kRoundMagic);
  const float r = __fmaf_rn(x, kLog2eLow, __fmaf_rn(x, kLog2e, -__fsub_rn(sum, kRoundMagic)));
  const float divisor = __fadd_rn(1.0f, exp2_usual(sum, r)), inverse = reciprocal_approx(divisor);
  float quotient = __fmul_rn(z, inverse);
  quotient = __fmaf_rn(__fmaf_rn(-divisor, quotient, z), inverse, quotient);
  return __fmaf_rn(__fmaf_rn(-divisor, quotient, z), inverse, quotient);
}

// The bf16 that silu_bf16 takes: 0, or of magnitude in [2^-22, 87].
__device__ __forceinline__ bool silu_bf16_takes(float z) {
  return z == 0.0f || (fabsf(z) >= 0x1p-22f && fabsf(z) <= 87.0f);
}

// silu of a bf16, in four instructions fewer: with 8 significant bits the nearest integer needs no rounding
// of the product before it, and one refinement is enough for every reciprocal within two ulps of the right one
// (all of them: tests/backend_cuda/quantize_exhaustive_cuda_test.cu).
__device__ __forceinline__ float silu_bf16(float z) {
  const float sum = __fmaf_rn(z, -kLog2e, kRoundMagic);
  const float r = __fmaf_rn(z, -kLog2eLow, __fmaf_rn(z, -kLog2e, -__fsub_rn(sum, kRoundMagic)));
  const float divisor = __fadd_rn(1.0f, exp2_usual(sum, r));
  const float inverse = reciprocal_approx(divisor), quotient = __fmul_rn(z, inverse);
  return __fmaf_rn(__fmaf_rn(-divisor, quotient, z), inverse, quotient);
}

}  // namespace h3s::cuda::device
