#include "model/linear.h"

#include "ops/ops.h"

namespace h3s::model {

LinearInput prepare_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                          std::int64_t stride, std::int64_t rows, const QuantScratch& scratch) {
  if (weight.quantised())
    ops::quantize_rows(backend, {.x = x,
                                 .x_dtype = dtype,
                                 .x_stride = stride,
                                 .rotate_group = weight.rotate_group,
                                 .codes = scratch.codes,
                                 .scale = scratch.scale,
                                 .m = rows,
                                 .k = weight.k});
  return {x, dtype, stride, rows, scratch};
}

void linear(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
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
                        .parts = weight.parts});
}

}  // namespace h3s::model
