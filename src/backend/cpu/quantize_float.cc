// quantize_float: activations rounded to small floating-point numbers. Contract in kernels/quantize_float.h.
//
// x [m, k] in bf16 or float; y [m, k] bf16; row_scale [m]. A row is widened to floats and quantised block by
// block; loops over a block have no branches and become vector code. The definition and the threaded op share
// the row function: rows are independent, so any chunking has the same bits. Bytes moved per row: x in, y
// out.
#include "kernels/quantize_float.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/definitions.h"
#include "backend/cpu/float_rows.h"
#include "backend/cpu/launchers.h"
#include "base/block_scale.h"
#include "base/dispatch.h"
#include "base/float8.h"

namespace h3s::cpu {
namespace {

using kernels::FloatCode;
using kernels::QuantizeFloatArgs;

constexpr float kInverse2688 = 1.0f / 2688.0f;  // 6 * 448: the largest number of a block of the largest scale

template <typename F>
void quantize_scaled(float* v, std::int64_t k, float scale, BF16* y) {
  for (std::int64_t i = 0; i < k; ++i) y[i] = to_bf16(round_small<F>(v[i] / scale));
}

void quantize_mx_block(const float* v, std::int64_t n, BF16* y) {
  const int e = mx_exponent(largest_magnitude(v, n));
  const float up = std::ldexp(1.0f, e), down = std::ldexp(1.0f, -e);
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(round_small<E4M3>(v[i] * down) * up);
}

void quantize_nvfp4_block(const float* v, std::int64_t n, float g, BF16* y) {
  const float scale = nvfp4_block_scale(largest_magnitude(v, n), g);
  const float multiplier = nvfp4_multiplier(scale, g);
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(round_small<E2M1>(v[i] * multiplier) * scale);
}

// The scale of the whole tensor.
template <typename T>
float tensor_scale(const QuantizeFloatArgs& a) {
  if (a.code != FloatCode::kNvfp4 || a.scale != 0) return a.scale;
  return round_to<T>(*a.peak * kInverse2688);
}

// One row: v [k] is scratch.
template <typename T>
void quantize_float_row(const QuantizeFloatArgs& a, std::int64_t m, float scale, float* v) {
  widen_scaled(static_cast<const T*>(a.x) + m * a.x_stride, a.pre_scale, a.k, v);
  BF16* y = static_cast<BF16*>(a.y) + m * a.k;
  const auto blocks = [&](std::int64_t size, auto quantize) {
    for (std::int64_t i = 0; i < a.k; i += size) quantize(v + i, std::min(size, a.k - i), y + i);
  };
  switch (a.code) {
    case FloatCode::kE4M3:
      quantize_scaled<E4M3>(v, a.k, scale, y);
      break;
    case FloatCode::kE5M2:
      quantize_scaled<E5M2>(v, a.k, scale, y);
      break;
    case FloatCode::kMxfp8:
      blocks(kernels::kMxBlock, quantize_mx_block);
      break;
    case FloatCode::kNvfp4:
      blocks(kernels::kNvfp4Block,
             [scale](const float* x, std::int64_t n, BF16* out) { quantize_nvfp4_block(x, n, scale, out); });
      break;
  }
  a.row_scale[m] = a.code == FloatCode::kMxfp8 ? 1.0f : scale * a.weight_scale;
}

void quantize_range(const QuantizeFloatArgs& a, std::int64_t begin, std::int64_t end, float* scratch) {
  dispatch_dtype<BF16, float>(a.x_dtype, "quantize_float", [&]<typename T>() {
    const float scale = tensor_scale<T>(a);
    for (std::int64_t m = begin; m < end; ++m) quantize_float_row<T>(a, m, scale, scratch);
  });
}

}  // namespace

void quantize_float_definition(const QuantizeFloatArgs& args) {
  std::vector<float> row(static_cast<std::size_t>(args.k));
  quantize_range(args, 0, args.m, row.data());
}

// ----------------------------------------------------------------------------------------------------

void quantize_float(const QuantizeFloatArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch scratch) {
    quantize_range(args, begin, end, scratch.take<float>(args.k));
  });
}

}  // namespace h3s::cpu
