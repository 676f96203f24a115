// exp and exp2 of the definitions: the operations of backend/cpu/math.h in the same order, so the same bits
// on every device.
//
// x = n + r with n the nearest integer; 2^r = 1 + r q(r), q the degree-5 interpolation of (2^r - 1) / r at
// the Chebyshev nodes of
// [-1/2, 1/2]; the scale 2^n is applied in two exact halves. Error at most 1 ulp (exp2), 1.1 ulp (exp).
// Results below 2^-126 are 0, above the largest float +inf, NaN stays NaN. Needs denormals kept and no
// contraction by the compiler.
#pragma once

#include <cstdint>

namespace h3s::cuda::device {

constexpr float kExp2Min = -126.0f;  // smaller results would be subnormal
constexpr float kExp2Max = 128.0f;   // from here on the result is not finite
constexpr float kLog2e = 0x1.715476p+0f;
constexpr float kLog2eLow = 0x1.4ae0cp-26f;  // log2(e) = kLog2e + kLog2eLow, to 2^-50

// Adding and taking away 1.5 x 2^23 rounds |x| < 2^22 to the nearest integer, ties to even, and leaves that
// integer in the low bits of the sum: full-rate instructions, where conversions are not.
constexpr float kRoundMagic = 12582912.0f;

struct Rounded {
  float value;
  int32_t integer;
};

__device__ __forceinline__ Rounded round_to_integer(float x) {
  const float sum = __fadd_rn(x, kRoundMagic);
  return {__fsub_rn(sum, kRoundMagic), __float_as_int(sum) - __float_as_int(kRoundMagic)};
}

// 2^(n + r), n in [-126, 128], |r| <= 1/2 and a little.
__device__ __forceinline__ float exp2_parts(int32_t n, float r) {
  float q = 0x1.44138ap-13f;
  q = __fmaf_rn(q, r, 0x1.5f089p-10f);
  q = __fmaf_rn(q, r, 0x1.3b2a54p-7f);
  q = __fmaf_rn(q, r, 0x1.c6af6cp-5f);
  q = __fmaf_rn(q, r, 0x1.ebfbep-3f);
  q = __fmaf_rn(q, r, 0x1.62e43p-1f);
  const int32_t half = n >> 1;
  const float low = __int_as_float((half + 127) << 23), high = __int_as_float((n - half + 127) << 23);
  return __fmul_rn(__fmul_rn(__fmaf_rn(q, r, 1.0f), low), high);
}

// Puts the results beyond the range in place; y is the exponent that was asked for. Comparisons with NaN are
// false: it passes.
__device__ __forceinline__ float exp2_limits(float y, float result) {
  result = y < kExp2Min ? 0.0f : result;
  return y >= kExp2Max ? __int_as_float(0x7f800000) : result;
}

__device__ __forceinline__ float exp2(float x) {
  const Rounded n = round_to_integer(x);
  return exp2_limits(x, exp2_parts(n.integer, __fsub_rn(x, n.value)));
}

__device__ __forceinline__ float exp(float x) {
  const float y = __fmul_rn(x, kLog2e);
  const Rounded n = round_to_integer(y);
  const float r = __fmaf_rn(x, kLog2eLow, __fmaf_rn(x, kLog2e, -n.value));
  return exp2_limits(y, exp2_parts(n.integer, r));
}

// z / (1 + exp(-z)), each step a float rounding.
__device__ __forceinline__ float silu(float z) {
  return __fdiv_rn(z, __fadd_rn(1.0f, device::exp(-z)));
}

}  // namespace h3s::cuda::device
