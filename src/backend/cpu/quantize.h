// The activation quantiser on one row of floats; quantize-inl.h is the same on vectors. Contract in linear.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backend/cpu/float_rows.h"
#include "base/float16.h"

namespace h3s::cpu {

inline constexpr float kLargestBf16 = 3.38953139e38f;
inline constexpr float kInverse127 = 1.0f / 127.0f;
inline constexpr float kSmallestScale = 1e-30f;
inline constexpr float kSmallestNormal = std::numeric_limits<float>::min();

// One butterfly of the group Hadamard matrix: four values at distance `stride`.
inline void rotate_quad(float* v, std::int64_t stride) {
  const float s = v[0] + v[stride], d = v[0] - v[stride];
  const float e = v[2 * stride] - v[3 * stride], f = v[2 * stride] + v[3 * stride];
  v[0] = 0.5f * (s + e);
  v[stride] = 0.5f * (s - e);
  v[2 * stride] = 0.5f * (d + f);
  v[3 * stride] = 0.5f * (f - d);
}

// Each group of `group` (a power of 4) values of v[k]; 0: nothing.
inline void rotate_row(float* v, std::int64_t k, std::int64_t group) {
  for (std::int64_t stride = 1; stride < group; stride *= 4)
    for (std::int64_t first = 0; first < k; first += 4 * stride)
      for (std::int64_t i = 0; i < stride; ++i) rotate_quad(v + first + i, stride);
}

// A row with a NaN: its scale makes every product with it NaN. True when it was one.
inline bool quantize_nan_row(float largest, std::int64_t k, std::int8_t* codes, float* scale) {
  if (!std::isnan(largest)) return false;
  *scale = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(codes, k, std::int8_t{0});
  return true;
}

// The scale that is stored.
inline float row_scale(float largest) {
  const float bounded = largest < kLargestBf16 ? largest : kLargestBf16;
  const float scale = bounded * kInverse127;
  return scale > kSmallestScale ? scale : kSmallestScale;
}

// The number that values are divided by.
inline float row_divisor(float scale) {
  const float divisor = round_to<BF16>(scale);
  return divisor == 0 ? kSmallestNormal : divisor;
}

inline std::int8_t code(float v, float divisor) {
  const float q = std::nearbyint(round_to<BF16>(round_to<BF16>(v) / divisor));
  return static_cast<std::int8_t>(q < 127.0f ? (q > -128.0f ? q : -128.0f) : 127.0f);
}

inline void quantize_row(float* v, std::int64_t k, std::int64_t group, std::int8_t* codes, float* scale) {
  rotate_row(v, k, group);
  const float largest = largest_magnitude(v, k);
  if (quantize_nan_row(largest, k, codes, scale)) return;
  *scale = row_scale(largest);
  const float divisor = row_divisor(*scale);
  for (std::int64_t i = 0; i < k; ++i) codes[i] = code(v[i], divisor);
}

}  // namespace h3s::cpu
