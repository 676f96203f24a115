// Row-wise operations: row r of the result depends on row r of the inputs alone.
//
// "C" is the compute type (bf16 or f32) in which activations are stored; arithmetic is f32; round() is to C,
// nearest even. Each formula below is the rounding contract. Sums over a row run in kReduceLanes interleaved
// partial sums (lane = column mod kReduceLanes, fused multiply-add, columns ascending) folded by halves: lane
// i += lane i + n/2.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace h3s::kernels {

inline constexpr std::int64_t kReduceLanes = 64;  // four 16-wide or eight 8-wide vectors hide the add latency
inline constexpr float kNormEps = 1e-5f;
inline constexpr std::int64_t kHeadDim = 128;
inline constexpr std::int64_t kRopePairs = 48;  // the first 96 of 128 dimensions turn: pair i = (i, i + 48)
inline constexpr std::int64_t kRopeAxes = 3;

// Rows [start, stop) of the packed sequence use row `row` of a modulation table.
struct ModSegment {
  std::int64_t start = 0, stop = 0, row = 0;
};

// Which modulation row each token uses. Segments are sorted, contiguous and cover [token0, token0 + rows).
struct Modulation {
  const ModSegment* segments = nullptr;  // host memory
  std::int64_t num_segments = 0;
  std::int64_t token0 = 0;      // packed index of the first row of the call
  const void* table = nullptr;  // [rows, row_stride] of C
  std::int64_t row_stride = 0;  // elements
};

// n = round((x * r) * weight), r = 1 / sqrt(sum(x^2) / c + eps).
// With modulation: y = round(round(n * gain) + shift); gain and shift are the columns [gain_offset, +c) and
// [shift_offset, +c) of the table row; gain holds round(1 + round(scale)).
struct RmsNormArgs {
  const void* x = nullptr;  // [m, c] C, row stride x_stride
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  // [c]
  void* y = nullptr;              // [m, c] C, dense; may be x itself when dense
  DType dtype = DType::kBF16;
  std::int64_t m = 0, c = 0;
  bool modulate = false;
  Modulation modulation = {};
  std::int64_t gain_offset = 0, shift_offset = 0;
};

// x = round(x + o * gate), gate the columns [gate_offset, +c) of the table row; f32 fused multiply-add, one
// rounding. Without modulation: x = round(x + o).
struct GatedResidualArgs {
  void* x = nullptr;        // [m, c] C, dense, in place
  const void* o = nullptr;  // [m, c] C, dense
  DType dtype = DType::kBF16;
  std::int64_t m = 0, c = 0;
  bool modulate = false;
  Modulation modulation = {};
  std::int64_t gate_offset = 0;
};

// y = round(round(silu(gate)) * up), silu(z) = z / (1 + exp(-z)).
struct SwigluArgs {
  const void* gate_up = nullptr;  // [m, 2f] C: gate, then up; dense
  void* y = nullptr;              // [m, f] C, dense
  DType dtype = DType::kBF16;
  std::int64_t m = 0, f = 0;
};

// y = round(silu(x)), elementwise.
struct SiluArgs {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kBF16;  // bf16 or f32, of both
  std::int64_t count = 0;
};

// Turns an AdaLN projection into the table of Modulation: per row the six parts in order
// shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp; each rounded to C, the scales stored as
// round(1 + round(scale)).
struct ModulationTableArgs {
  const void* adaln = nullptr;  // [rows, 6c], f32 or bf16, dense
  DType adaln_dtype = DType::kF32;
  void* table = nullptr;  // [rows, 6c] C, dense
  DType dtype = DType::kBF16;
  std::int64_t rows = 0, c = 0;
};

// Final layer: n as in RmsNormArgs; y = f(n * gain) + shift with gain = 1 + scale. `round_each` (full form):
// scale, shift, gain, product and sum are each rounded to C; otherwise (curve form) all are f32.
struct FinalModulateArgs {
  const void* x = nullptr;  // [m, c] C, dense
  const float* weight = nullptr;
  const float* scale = nullptr;  // [c]
  const float* shift = nullptr;  // [c]
  bool round_each = false;
  float* y = nullptr;  // [m, c], dense
  DType dtype = DType::kBF16;
  std::int64_t m = 0, c = 0;
};

// Rotation table: angle = f(f(position) * inv_freq), cos and sin rounded to f32 from f64, then to C.
struct RopeTableArgs {
  const double* positions = nullptr;  // [m, 3]: t, h, w of each row
  const float* inv_freq = nullptr;    // [16]
  void* table = nullptr;              // [m, 96] C: 48 cosines (t, h, w by 16), then 48 sines
  DType dtype = DType::kBF16;
  std::int64_t m = 0;
};

// From projected rows to the attention layout [head][token][128]. For q and k of each head:
//   v = round((x * r) * weight), r over the 128 values (sum in kReduceLanes lanes);
//   y_i = round(f(c v_i - s v_{i+48})), y_{i+48} = round(f(s v_i + c v_{i+48})) for i < 48: the product with
//   s is rounded to f32, the other joins by fused multiply-add (in bf16 both products are exact, so this is
//   one rounding); dimensions 96..127 keep v. v rows are copied.
// Any of q, k, v may be absent (null source).
struct QkvArgs {
  struct Part {
    const void* src = nullptr;  // [m, heads * 128] C, row stride src_stride; null: nothing to do
    void* dst = nullptr;        // [heads][...][128] C: row r of head h at dst + h * dst_head_stride + r * 128
    std::int64_t dst_head_stride = 0;  // elements
  };
  Part q = {}, k = {}, v = {};
  std::int64_t src_stride = 0;
  const float* q_weight = nullptr;  // [128]
  const float* k_weight = nullptr;  // [128]
  const void* rope = nullptr;       // [m, 96] C as RopeTableArgs; null: no rotation
  DType dtype = DType::kBF16;
  std::int64_t m = 0, heads = 0;
};

}  // namespace h3s::kernels
