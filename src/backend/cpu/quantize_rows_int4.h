// quantize_rows with RowCode::kInt4 on one row; contract in kernels/linear.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/quantize.h"
#include "base/float16.h"

namespace h3s::cpu {

inline constexpr float kSmallestInt4Peak = 1e-10f;

// rotate_quad of quantize.h with every step rounded to T.
template <typename T>
void rotate_quad_rounded(float* v, std::int64_t stride) {
  const auto r = [](float x) { return round_to<T>(x); };
  const float s = r(v[0] + v[stride]), d = r(v[0] - v[stride]);
  const float e = r(v[2 * stride] - v[3 * stride]), f = r(v[2 * stride] + v[3 * stride]);
  v[0] = r(0.5f * r(s + e));
  v[stride] = r(0.5f * r(s - e));
  v[2 * stride] = r(0.5f * r(d + f));
  v[3 * stride] = r(0.5f * r(f - d));
}

template <typename T>
void quantize_row_int4(float* v, std::int64_t k, std::int64_t group, std::int8_t* codes, float* scale) {
  for (std::int64_t stride = 1; stride < group; stride *= 4)
    for (std::int64_t first = 0; first < k; first += 4 * stride)
      for (std::int64_t i = 0; i < stride; ++i) rotate_quad_rounded<T>(v + first + i, stride);
  const float largest = largest_magnitude(v, k);
  if (quantize_nan_row(largest, k, codes, scale)) return;
  *scale = std::max(largest, kSmallestInt4Peak) / 7.0f;
  const float inverse = 1.0f / *scale;
  for (std::int64_t i = 0; i < k; ++i)
    codes[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(v[i] * inverse), -7.0f, 7.0f));
}

}  // namespace h3s::cpu
