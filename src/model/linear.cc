#include "model/linear.h"

#include "ops/ops.h"

namespace h3s::model {

LinearInput prepare_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                          std::int64_t stride, std::int64_t rows, const QuantScratch& scratch,
                          const float* peak) {
  prepare_low_rank(backend, weight, x, dtype, stride, rows, scratch);  // before x is quantised in place
  if (weight.float_code) {
    ops::quantize_float(backend, {.x = x,
                                  .x_dtype = dtype,
                                  .x_stride = stride,
                                  .pre_scale = weight.pre_scale,
                                  .code = *weight.float_code,
                                  .scale = weight.input_scale,
                                  .peak = peak,
                                  .weight_scale = weight.tensor_scale,
                                  .y = scratch.numbers,
                                  .row_scale = scratch.scale,
                                  .m = rows,
                                  .k = weight.k});
    return {scratch.numbers, DType::kBF16, weight.k, rows, scratch};
  }
  if (weight.quantised())
    ops::quantize_rows(backend, {.x = x,
                                 .x_dtype = dtype,
                                 .x_stride = stride,
                                 .rotate_group = weight.rotate_group,
                                 .codes = scratch.codes,
                                 .scale = scratch.scale,
                                 .m = rows,
                                 .k = weight.k,
                                 .code = weight.row_code});
  return {x, dtype, stride, rows, scratch};
}

void prepare_low_rank(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                      std::int64_t stride, std::int64_t rows, const QuantScratch& scratch) {
  const LowRank& low_rank = weight.low_rank;
  if (low_rank.rank == 0) return;
  ops::linear(backend, {.x = x,
                        .x_dtype = dtype,
                        .x_stride = stride,
                        .w = low_rank.a,
                        .w_dtype = low_rank.dtype,
                        .y = scratch.low_rank,
                        .y_dtype = low_rank.dtype,
                        .y_stride = low_rank.rank,
                        .m = rows,
                        .n = low_rank.rank,
                        .k = weight.k});
}

void measure_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                   std::int64_t stride, std::int64_t rows, bool first, float* peak) {
  ops::abs_max(backend, {.x = x,
                         .x_dtype = dtype,
                         .x_stride = stride,
                         .pre_scale = weight.pre_scale,
                         .first = first,
                         .peak = peak,
                         .m = rows,
                         .k = weight.k});
}

namespace {

void multiply(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
              DType y_dtype, std::int64_t y_stride) {
  if (weight.quantised()) {
    ops::linear_int8(backend, {.x = input.quantised.codes,
                               .x_scale = input.quantised.scale,
                               .w = static_cast<const std::int8_t*>(weight.data),
                               .w_scale = weight.scale,
                               .bias = weight.bias,
                               .y = y,
                               .y_dtype = y_dtype,
                               .y_stride = y_stride,
                               .m = input.rows,
                               .n = weight.n,
                               .k = weight.k,
                               .parts = weight.parts});
    return;
  }
  ops::linear(backend, {.x = input.x,
                        .x_dtype = input.dtype,
                        .x_stride = input.stride,
                        .w = weight.data,
                        .w_dtype = weight.dtype,
                        .bias = weight.bias,
                        .y = y,
                        .y_dtype = y_dtype,
                        .y_stride = y_stride,
                        .m = input.rows,
                        .n = weight.n,
                        .k = weight.k,
                        .parts = weight.parts,
                        .x_scale = weight.float_code ? input.quantised.scale : nullptr});
}

void add_low_rank(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
                  DType y_dtype, std::int64_t y_stride) {
  const LowRank& low_rank = weight.low_rank;
  ops::linear(backend, {.x = input.quantised.low_rank,
                        .x_dtype = low_rank.dtype,
                        .x_stride = low_rank.rank,
                        .w = low_rank.b,
                        .w_dtype = low_rank.dtype,
                        .y = y,
                        .y_dtype = y_dtype,
                        .y_stride = y_stride,
                        .m = input.rows,
                        .n = weight.n,
                        .k = low_rank.rank,
                        .parts = weight.parts,
                        .add = true});
}

}  // namespace

void linear(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
            DType y_dtype, std::int64_t y_stride) {
  multiply(backend, weight, input, y, y_dtype, y_stride);
  if (weight.low_rank.rank > 0) add_low_rank(backend, weight, input, y, y_dtype, y_stride);
}

}  // namespace h3s::model
