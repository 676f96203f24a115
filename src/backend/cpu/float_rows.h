// Rows of activations as floats, for the quantisers that work on plain loops.
#pragma once

#include <cstdint>

#include "base/float16.h"
#include "base/magnitude.h"

namespace h3s::cpu {

// v = x, or round(x * pre_scale) to T.
template <typename T>
void widen_scaled(const T* x, const float* pre_scale, std::int64_t k, float* v) {
  if (pre_scale == nullptr)
    for (std::int64_t i = 0; i < k; ++i) v[i] = to_float(x[i]);
  else
    for (std::int64_t i = 0; i < k; ++i) v[i] = round_to<T>(to_float(x[i]) * pre_scale[i]);
}

}  // namespace h3s::cpu
