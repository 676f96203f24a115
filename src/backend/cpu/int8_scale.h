// The end of an int8 product: scales, bias, rounding.
#pragma once

#include <cstdint>

#include "base/float16.h"
#include "kernels/linear.h"

namespace h3s::cpu {

// y[m][n] = round(f(f(f(acc) x_scale) w_scale) + bias).
inline void store_scaled(const kernels::LinearInt8Args& a, std::int64_t m, std::int64_t n, std::int32_t acc) {
  float v = static_cast<float>(acc) * a.x_scale[m] * a.w_scale[n];
  if (a.bias != nullptr) v += a.bias[n];
  const std::int64_t at = m * a.y_stride + n;
  if (a.y_dtype == DType::kBF16)
    static_cast<BF16*>(a.y)[at] = to_bf16(v);
  else
    static_cast<float*>(a.y)[at] = v;
}

}  // namespace h3s::cpu
