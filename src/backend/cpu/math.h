// exp and exp2 of the definitions: plain float operations in a fixed order, so that they have the same bits
// everywhere. math-inl.h is the same on vectors.
//
// x = n + r with n the nearest integer; 2^r = 1 + r q(r), q the degree-5 interpolation of (2^r - 1) / r at
// the Chebyshev nodes of [-1/2, 1/2] (relative error 1e-8); the scale 2^n is applied in two exact halves.
// Error at most 1 ulp (exp2), 1.1 ulp (exp). Results below 2^-126 are 0, above the largest float +inf, NaN
// stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace h3s::cpu {

inline constexpr float kExp2Poly[6] = {0x1.62e43p-1f,  0x1.ebfbep-3f,  0x1.c6af6cp-5f,
                                       0x1.3b2a54p-7f, 0x1.5f089p-10f, 0x1.44138ap-13f};
inline constexpr float kExp2Min = -126.0f;  // smaller results would be subnormal
inline constexpr float kExp2Max = 128.0f;   // from here on the result is not finite
inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kLog2eLow = 0x1.4ae0cp-26f;  // log2(e) = kLog2e + kLog2eLow, to 2^-50

// 2^(n + r), n integral in [-126, 128], |r| <= 1/2 and a little.
inline float exp2_parts(float n, float r) {
  float q = kExp2Poly[5];
  for (int i = 4; i >= 0; --i) q = std::fma(q, r, kExp2Poly[i]);
  const auto exponent = static_cast<std::int32_t>(n);
  const std::int32_t half = exponent >> 1;
  const auto power = [](std::int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return std::fma(q, r, 1.0f) * power(half) * power(exponent - half);
}

inline float exp2(float x) {
  if (x != x) return x;
  if (x < kExp2Min) return 0.0f;
  if (x >= kExp2Max) return std::numeric_limits<float>::infinity();
  const float n = std::nearbyint(x);
  return exp2_parts(n, x - n);
}

inline float exp(float x) {
  if (x != x) return x;
  const float y = x * kLog2e;
  if (y < kExp2Min) return 0.0f;
  if (y >= kExp2Max) return std::numeric_limits<float>::infinity();
  const float n = std::nearbyint(y);
  return exp2_parts(n, std::fma(x, kLog2eLow, std::fma(x, kLog2e, -n)));
}

inline float silu(float z) {
  return z / (1.0f + exp(-z));
}

}  // namespace h3s::cpu
