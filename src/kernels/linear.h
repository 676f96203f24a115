// Linear layers: y = x . W^T (+ bias).
//
// Row r of y depends on row r of x alone and column n on row n of W alone: any slice of rows or of output
// columns has the bits of the whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace h3s::kernels {

// K is summed in blocks of this many: inside a block one fused multiply-add chain from zero, k ascending;
// block sums are added to the total in order. 256 keeps a packed panel of W in a 1 MiB L2 and the error of
// long sums small.
inline constexpr std::int64_t kLinearKBlock = 256;

// Rows of w (and entries of its scales and bias) that do not lie together: `count` runs of n / count rows,
// `stride` rows from the start of one to the next. The q, k and v of a head group are three.
struct Parts {
  std::int64_t count = 1, stride = 0;
};

// y = round(f(f(total * x_scale[row]) + bias) + y before), one rounding to y_dtype; the definition for every
// floating-point operand. Without x_scale the product is left out, as with 1; `add` false leaves out the sum
// with y.
struct LinearArgs {
  const void* x = nullptr;  // [m, k], bf16, f16 or f32, row stride x_stride elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;
  const void* w = nullptr;  // [n, k], bf16, f16 or f32, dense rows
  DType w_dtype = DType::kBF16;
  const float* bias = nullptr;  // [n], may be null; added in f32 before the rounding
  void* y = nullptr;            // [m, n], bf16, f16 or f32, row stride y_stride elements
  DType y_dtype = DType::kBF16;
  std::int64_t y_stride = 0;
  std::int64_t m = 0, n = 0, k = 0;
  Parts parts;
  const float* x_scale = nullptr;  // [m], may be null: scales of quantised operands (QuantizeFloatArgs)
  bool add = false;                // to what y holds, which is read as y_dtype
};

// acc = sum of q_x q_w in int32 (exact); y = round(f(f(f(acc) x_scale) w_scale) + bias).
struct LinearInt8Args {
  const std::int8_t* x = nullptr;  // [m, k] codes, dense
  const float* x_scale = nullptr;  // [m]
  const std::int8_t* w = nullptr;  // [n, k] codes, dense rows
  const float* w_scale = nullptr;  // [n]
  const float* bias = nullptr;     // [n], may be null
  void* y = nullptr;               // [m, n], bf16 or f32, row stride y_stride elements
  DType y_dtype = DType::kBF16;
  std::int64_t y_stride = 0;
  std::int64_t m = 0, n = 0, k = 0;  // k <= 131072, so that acc fits
  Parts parts;
};

// What quantize_rows makes of a row: 8 bits, or the 4 bits of W4A4.
enum class RowCode { kInt8, kInt4 };

// Activation quantiser, one scale a row (rounding contract of the stock GPU kernel). kInt8:
//   v = x, rotated in f32 by the group Hadamard matrix (rotate_group = 0: not rotated); a = max |v|;
//   s = max(min(a, 3.38953139e38) f(1/127), 1e-30); d = bf16(s), the smallest normal if that is 0;
//   code = clamp(rne(bf16(bf16(v) / d)), -128, 127).
// Rotation: stages of stride 1, 4, 16, ... up to rotate_group / 4; with s = x0 + x1, d = x0 - x1, e = x2 -
// x3, f = x2 + x3 each stage gives (s + e, s - e, d + f, f - d), every value halved.
// A row in which a v is NaN: s is NaN, so that every product with it is, and the codes are 0.
// kInt4: the same stages with every sum, difference and half rounded to the type of x; a = max(max |v|,
//   1e-10), s = a / 7, code = clamp(rne(v * (1 / s)), -7, 7), each operation one float rounding.
struct QuantizeRowsArgs {
  const void* x = nullptr;  // [m, k], bf16 or f32, row stride x_stride elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;
  std::int64_t rotate_group = 0;  // 0 or a power of 4 that divides k
  std::int8_t* codes = nullptr;   // [m, k] dense
  float* scale = nullptr;         // [m]
  std::int64_t m = 0, k = 0;
  RowCode code = RowCode::kInt8;
};

// The kInt8 quantiser fed with silu(gate) * up, computed in f32 and not rounded: gate / (1 + exp(-gate)) *
// up.
struct SwigluQuantizeRowsArgs {
  const void* gate_up = nullptr;  // [m, 2k]: gate in columns [0, k), up in [k, 2k); dense
  DType dtype = DType::kBF16;
  std::int64_t rotate_group = 0;
  std::int8_t* codes = nullptr;  // [m, k] dense
  float* scale = nullptr;        // [m]
  std::int64_t m = 0, k = 0;
};

// Rows of w that the call spans, gaps between its parts included.
template <typename Args>
std::int64_t spanned_rows(const Args& a) {
  return (a.parts.count - 1) * a.parts.stride + a.n / a.parts.count;
}

// fn(args) for each part as a call of its own: for kernels that take one run of rows.
template <typename Args, typename Fn>
void for_each_part(const Args& args, Fn fn) {
  Args one = args;
  one.parts = {};
  one.n = args.n / args.parts.count;
  for (std::int64_t i = 0; i < args.parts.count; ++i) {
    const std::int64_t row = i * args.parts.stride;
    const auto element_bytes = [](DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); };
    if constexpr (requires { one.w_scale; }) {
      one.w = args.w + row * args.k;
      one.w_scale = args.w_scale + row;
    } else {
      one.w = static_cast<const std::byte*>(args.w) + row * args.k * element_bytes(args.w_dtype);
    }
    if (args.bias != nullptr) one.bias = args.bias + row;
    one.y = static_cast<std::byte*>(args.y) + i * one.n * element_bytes(args.y_dtype);
    fn(one);
  }
}

}  // namespace h3s::kernels
