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

#include "element.cuh"
#include "exp.cuh"

namespace h3s::cuda::device {

constexpr float kSiluFastMin = -87.0f;
constexpr float kSiluFastMax = 3.40282347e38f;  // the largest float

__device__ __forceinline__ float silu_fast(float z) {
  const float x = -fminf(z, 80.0f);
  const float sum = __fadd_rn(__fmul_rn(x, kLog2e), kRoundMagic);
  const float r = __fmaf_rn(x, kLog2eLow, __fmaf_rn(x, kLog2e, -__fsub_rn(sum, kRoundMagic)));
  float q = 0x1.44138ap-13f;
  q = __fmaf_rn(q, r, 0x1.5f089p-10f);
  q = __fmaf_rn(q, r, 0x1.3b2a54p-7f);
  q = __fmaf_rn(q, r, 0x1.c6af6cp-5f);
  q = __fmaf_rn(q, r, 0x1.ebfbep-3f);
  q = __fmaf_rn(q, r, 0x1.62e43p-1f);
  // The low bits of `sum` are the integer; its own constant has none of the bits that the shift keeps.
  const float exponential =
      __int_as_float(__float_as_int(__fmaf_rn(q, r, 1.0f)) + (__float_as_int(sum) << 23));
  const float divisor = __fadd_rn(1.0f, exponential);
  const float inverse = reciprocal_approx(divisor);
  float quotient = __fmul_rn(z, inverse);
  quotient = __fmaf_rn(__fmaf_rn(-divisor, quotient, z), inverse, quotient);
  return __fmaf_rn(__fmaf_rn(-divisor, quotient, z), inverse, quotient);
}

}  // namespace h3s::cuda::device
