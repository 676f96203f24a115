// One linear layer, whatever its weight format.
#pragma once

#include "kernels/backend.h"
#include "model/carver.h"
#include "model/weights.h"

namespace h3s::model {

// Where quantised activations go: [rows, k] codes and [rows] scales. Unused by floating-point weights.
struct QuantScratch {
  std::int8_t* codes = nullptr;
  float* scale = nullptr;
  static QuantScratch take(Carver& carver, std::int64_t rows, std::int64_t k) {
    return {carver.take<std::int8_t>(rows * k), carver.take<float>(rows)};
  }
};

// Rows ready for a weight: as they are, or quantised once for any number of slices of that weight.
struct LinearInput {
  const void* x = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t stride = 0, rows = 0;
  QuantScratch quantised;
};

// x [rows, weight.k] of `dtype`, row stride in elements.
LinearInput prepare_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                          std::int64_t stride, std::int64_t rows, const QuantScratch& scratch);

// y [rows, weight.n] of y_dtype, row stride y_stride elements. `weight` is the weight of prepare_input or a
// slice.
void linear(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
            DType y_dtype, std::int64_t y_stride);

}  // namespace h3s::model
