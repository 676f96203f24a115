// The weights as the ops need them: device pointers in arithmetic form. Nothing here owns memory.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "kernels/linear.h"
#include "kernels/quantize_float.h"

namespace h3s::model {

// What is added to a linear layer without touching its weight: y += round(x . a^T) . b^T, x as it was before
// any quantiser. Both products are sums in float; the first is rounded once to `dtype`, the second is added
// to the rounded y with one rounding more.
struct LowRank {
  const void* a = nullptr;     // [rank, k]
  const void* b = nullptr;     // [n, rank]
  DType dtype = DType::kBF16;  // of both, and of the input: the compute type, f32 in the f32 islands
  std::int64_t rank = 0;       // 0: nothing is added
  std::int64_t row_bytes() const { return rank * static_cast<std::int64_t>(dtype_size(dtype)); }
};

// y = x . W^T + bias. dtype kI8: codes with one scale a row, the input quantised to `row_code`, one scale a
// row (rotated first when rotate_group is not 0). Otherwise a floating-point matrix; with `float_code` its
// numbers are those of codes, and the input is quantised to such.
struct LinearWeight {
  const void* data = nullptr;    // [n, k]
  DType dtype = DType::kBF16;    // bf16, f16, f32 or i8
  const float* scale = nullptr;  // [n], i8 only
  const float* bias = nullptr;   // [n] or null
  std::int64_t n = 0, k = 0;
  std::int64_t rotate_group = 0;
  kernels::RowCode row_code = kernels::RowCode::kInt8;
  bool fused_swiglu = false;  // i8: silu(gate) * up goes into the quantiser unrounded
  std::optional<kernels::FloatCode> float_code = {};
  float input_scale = 0, tensor_scale = 1;  // float_code: see QuantizeFloatArgs::scale, weight_scale
  const float* pre_scale = nullptr;         // [k] or null, float_code only
  kernels::Parts parts;                     // of a slice: where its rows lie
  LowRank low_rank;

  bool quantised() const { return dtype == DType::kI8; }
  // True when the scale of the input is that of all its rows, which then have to be seen before any is used.
  bool needs_peak() const { return float_code == kernels::FloatCode::kNvfp4 && input_scale == 0; }
  // Output columns [first, first + count) of each of `parts`: what one head group needs of a projection.
  LinearWeight slice(std::int64_t first, std::int64_t count, kernels::Parts of_parts = {}) const {
    LinearWeight s = *this;
    s.data = static_cast<const std::byte*>(data) + first * k * static_cast<std::int64_t>(dtype_size(dtype));
    if (scale != nullptr) s.scale = scale + first;
    if (bias != nullptr) s.bias = bias + first;
    if (low_rank.rank > 0)
      s.low_rank.b = static_cast<const std::byte*>(low_rank.b) + first * low_rank.row_bytes();
    s.n = count * of_parts.count;
    s.parts = of_parts;
    return s;
  }
};

// One transformer block; refiner blocks have no adaln.
struct BlockWeights {
  LinearWeight qkv, out, fc1, fc2, adaln;
  const float* norm1 = nullptr;   // [D]
  const float* norm2 = nullptr;   // [D]
  const float* q_norm = nullptr;  // [128]
  const float* k_norm = nullptr;  // [128]

  // See LinearWeight::needs_peak.
  bool needs_peaks() const {
    return qkv.needs_peak() || out.needs_peak() || fc1.needs_peak() || fc2.needs_peak();
  }
};

// What lives as long as the session.
struct GlobalWeights {
  LinearWeight video_proj, audio_proj;  // patch projections, f32 islands
  LinearWeight time_in, time_out;       // full form: time embedder
  const float* inv_freq = nullptr;      // [16]
  const float* final_norm = nullptr;    // [D]
  LinearWeight final_adaln, video_out, audio_out;
};

// Text projection and the refiner's last norm: needed once per sampling run.
struct ConditioningWeights {
  LinearWeight condition_proj;
  const float* final_norm = nullptr;  // [D]
};

}  // namespace h3s::model
