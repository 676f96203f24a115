// Sums of squares over a row, in the fixed order of row_ops.h; reduce-inl.h is the same on vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/float16.h"
#include "kernels/row_ops.h"

namespace h3s::cpu {

// lanes[0] += lanes[n/2] and so on until one is left.
inline float fold_lanes(float* lanes) {
  for (std::int64_t half = kernels::kReduceLanes / 2; half > 0; half /= 2)
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <typename T>
float sum_of_squares(const T* x, std::int64_t c) {
  float lanes[kernels::kReduceLanes] = {};
  for (std::int64_t i = 0; i < c; ++i) {
    float& lane = lanes[i % kernels::kReduceLanes];
    lane = std::fma(to_float(x[i]), to_float(x[i]), lane);
  }
  return fold_lanes(lanes);
}

// 1 / sqrt(sum / c + eps), a rounding each.
inline float rms_scale(float sum, std::int64_t c) {
  return 1.0f / std::sqrt(sum / static_cast<float>(c) + kernels::kNormEps);
}

}  // namespace h3s::cpu
