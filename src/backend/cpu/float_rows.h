// Rows of activations as floats, for the quantisers that work on plain loops.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float16.h"

namespace h3s::cpu {

// The larger of two magnitudes, on the bits: they order like integers, with NaN above all, and an integer
// maximum vectorises where a float one may not.
inline float larger_magnitude(float a, float b) {
  return std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b)));
}

// NaN when one is among them.
inline float largest_magnitude(const float* v, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFFu;
    largest = largest < u ? u : largest;
  }
  return std::bit_cast<float>(largest);
}

// v = x, or round(x * pre_scale) to T.
template <typename T>
void widen_scaled(const T* x, const float* pre_scale, std::int64_t k, float* v) {
  if (pre_scale == nullptr)
    for (std::int64_t i = 0; i < k; ++i) v[i] = to_float(x[i]);
  else
    for (std::int64_t i = 0; i < k; ++i) v[i] = round_to<T>(to_float(x[i]) * pre_scale[i]);
}

}  // namespace h3s::cpu
