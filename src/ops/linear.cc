#include <bit>
#include <cmath>

#include "ops/check.h"
#include "ops/ops.h"

namespace h3s::ops {
namespace {

// |acc| <= 128 * 128 * k must stay below 2^31.
constexpr std::int64_t kMaxInt8K = 131071;

void check_sizes(const char* op, std::int64_t m, std::int64_t n, std::int64_t k) {
  check_positive(op, "m", m);
  check_positive(op, "n", n);
  check_positive(op, "k", k);
}

void check_parts(const char* op, const kernels::Parts& parts, std::int64_t n) {
  if (parts.count < 1 || n % parts.count != 0 || (parts.count > 1 && parts.stride < n / parts.count))
    fail(Status::kInvalidArgument,
         "[{}] parts must divide n={} and not overlap, got {} parts, {} rows from one to the next", op, n,
         parts.count, parts.stride);
}

void check_rotation(const char* op, std::int64_t group, std::int64_t k) {
  if (group == 0) return;
  const bool power_of_4 = group >= 4 && std::has_single_bit(static_cast<std::uint64_t>(group)) &&
                          std::countr_zero(static_cast<std::uint64_t>(group)) % 2 == 0;
  if (!power_of_4 || k % group != 0)
    fail(Status::kInvalidArgument, "[{}] rotate_group must be 0 or a power of 4 that divides k={}, got {}",
         op, k, group);
}

}  // namespace

void linear(kernels::Backend& backend, const kernels::LinearArgs& args) {
  constexpr const char* kOp = "linear";
  static constexpr std::initializer_list<DType> kDTypes = {DType::kF32, DType::kBF16, DType::kF16};
  check_dtype(kOp, "x dtype", args.x_dtype, kDTypes);
  check_dtype(kOp, "w dtype", args.w_dtype, kDTypes);
  check_dtype(kOp, "y dtype", args.y_dtype, kDTypes);
  check_sizes(kOp, args.m, args.n, args.k);
  check_parts(kOp, args.parts, args.n);
  check_stride(kOp, "x_stride", args.x_stride, args.k);
  check_stride(kOp, "y_stride", args.y_stride, args.n);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "w", args.w);
  check_pointer(kOp, "y", args.y);
  backend.linear(args);
}

void linear_int8(kernels::Backend& backend, const kernels::LinearInt8Args& args) {
  constexpr const char* kOp = "linear_int8";
  check_dtype(kOp, "y dtype", args.y_dtype, {DType::kF32, DType::kBF16});
  check_sizes(kOp, args.m, args.n, args.k);
  check_parts(kOp, args.parts, args.n);
  if (args.k > kMaxInt8K)
    fail(Status::kInvalidArgument, "[{}] k must be at most {} for an int32 sum, got {}", kOp, kMaxInt8K,
         args.k);
  check_stride(kOp, "y_stride", args.y_stride, args.n);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "x_scale", args.x_scale);
  check_pointer(kOp, "w", args.w);
  check_pointer(kOp, "w_scale", args.w_scale);
  check_pointer(kOp, "y", args.y);
  backend.linear_int8(args);
}

void quantize_rows(kernels::Backend& backend, const kernels::QuantizeRowsArgs& args) {
  constexpr const char* kOp = "quantize_rows";
  check_dtype(kOp, "x dtype", args.x_dtype, {DType::kF32, DType::kBF16});
  check_sizes(kOp, args.m, 1, args.k);
  check_stride(kOp, "x_stride", args.x_stride, args.k);
  check_rotation(kOp, args.rotate_group, args.k);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "codes", args.codes);
  check_pointer(kOp, "scale", args.scale);
  backend.quantize_rows(args);
}

void quantize_float(kernels::Backend& backend, const kernels::QuantizeFloatArgs& args) {
  constexpr const char* kOp = "quantize_float";
  using kernels::FloatCode;
  check_dtype(kOp, "x dtype", args.x_dtype, {DType::kF32, DType::kBF16});
  check_sizes(kOp, args.m, 1, args.k);
  check_stride(kOp, "x_stride", args.x_stride, args.k);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "y", args.y);
  check_pointer(kOp, "row_scale", args.row_scale);
  const bool from_peak = args.code == FloatCode::kNvfp4 && args.scale == 0;
  if (from_peak) check_pointer(kOp, "peak", args.peak);
  if (!from_peak && (!(args.scale > 0) || !std::isfinite(args.scale)))
    fail(Status::kInvalidArgument, "[{}] scale must be positive and finite, got {}", kOp, args.scale);
  if (args.y == args.x && (args.x_dtype != DType::kBF16 || args.x_stride != args.k))
    fail(Status::kInvalidArgument, "[{}] only dense bf16 rows can be quantised in place", kOp);
  backend.quantize_float(args);
}

void abs_max(kernels::Backend& backend, const kernels::AbsMaxArgs& args) {
  constexpr const char* kOp = "abs_max";
  check_dtype(kOp, "x dtype", args.x_dtype, {DType::kF32, DType::kBF16});
  check_sizes(kOp, args.m, 1, args.k);
  check_stride(kOp, "x_stride", args.x_stride, args.k);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "peak", args.peak);
  backend.abs_max(args);
}

void swiglu_quantize_rows(kernels::Backend& backend, const kernels::SwigluQuantizeRowsArgs& args) {
  constexpr const char* kOp = "swiglu_quantize_rows";
  check_dtype(kOp, "dtype", args.dtype, {DType::kF32, DType::kBF16});
  check_sizes(kOp, args.m, 1, args.k);
  check_rotation(kOp, args.rotate_group, args.k);
  check_pointer(kOp, "gate_up", args.gate_up);
  check_pointer(kOp, "codes", args.codes);
  check_pointer(kOp, "scale", args.scale);
  backend.swiglu_quantize_rows(args);
}

}  // namespace h3s::ops
