// Activation quantisers whose codes are small floating-point numbers (E4M3, E5M2, E2M1; base/float8.h).
//
// The result is not codes but the numbers they stand for, as bf16: every code, also times the scale of its
// block, is a bf16 number, so a bf16 product of quantised activations and weights is that of the codes, on
// hardware with or without their format. Scales of the whole row go to row_scale, which `linear` applies to
// its sums (LinearArgs::x_scale).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace h3s::kernels {

inline constexpr std::int64_t kMxBlock = 32;     // columns that share an mxfp8 scale
inline constexpr std::int64_t kNvfp4Block = 16;  // columns that share an nvfp4 scale

enum class FloatCode { kE4M3, kE5M2, kMxfp8, kNvfp4 };

// With v = x, or round(x * pre_scale) to the type of x; every operation one float rounding:
//   kE4M3, kE5M2   y = rne(v / scale), clamped to the largest number; row_scale = scale * weight_scale
//   kMxfp8         per block of 32 columns, a = max |v|: e = the least integer with 2^e >= a / 448, at least
//                  -127; y = rne_e4m3(v 2^-e) 2^e, rounded to bf16 (exact unless below 2^-126); row_scale = 1
//   kNvfp4         g = scale, or when that is 0: g = peak * f(1/2688) rounded to the type of x;
//                  per block of 16 columns, a = max |v|: s = rne_e4m3(min((a / 6) / g, 448));
//                  y = rne_e2m1(v * (1 / (s * g))) * s, 0 where s or g is; row_scale = g * weight_scale
// The last block of a row may be short. A NaN gives NaN: y of its column, or (kNvfp4) of its block, or with g
// from a peak that is NaN row_scale.
struct QuantizeFloatArgs {
  const void* x = nullptr;  // [m, k], bf16 or f32, row stride x_stride elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;
  const float* pre_scale = nullptr;  // [k], may be null
  FloatCode code = FloatCode::kE4M3;
  float scale = 1;              // kE4M3, kE5M2: above 0; kNvfp4: 0 takes g from peak
  const float* peak = nullptr;  // [1] max |v| of the whole tensor (AbsMaxArgs); kNvfp4 with scale 0 only
  float weight_scale = 1;
  void* y = nullptr;           // [m, k] bf16, dense; may be x itself when x is dense bf16
  float* row_scale = nullptr;  // [m]
  std::int64_t m = 0, k = 0;
};

// peak = max |v| over the rows, v as above, NaN if one is, and over the value peak had before unless `first`.
// The order of calls does not matter: any chunking of a tensor gives the same bits.
struct AbsMaxArgs {
  const void* x = nullptr;  // [m, k], bf16 or f32, row stride x_stride elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;
  const float* pre_scale = nullptr;  // [k], may be null
  bool first = false;
  float* peak = nullptr;  // [1]
  std::int64_t m = 0, k = 0;
};

}  // namespace h3s::kernels
