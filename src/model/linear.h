// One linear layer, whatever its weight format.
#pragma once

#include "base/float16.h"
#include "kernels/backend.h"
#include "model/carver.h"
#include "model/weights.h"

namespace h3s::model {

// Where quantised activations go: [rows, k] codes or, for floating-point codes, [rows, k] bf16 numbers; and
// [rows] scales. Unused by unquantised weights.
struct QuantScratch {
  std::int8_t* codes = nullptr;
  float* scale = nullptr;
  void* numbers = nullptr;  // may be the input itself, when that is dense bf16 and not needed again
  static QuantScratch take(Carver& carver, std::int64_t rows, std::int64_t k) {
    return {carver.take<std::int8_t>(rows * k), carver.take<float>(rows)};
  }
  static QuantScratch take_with_numbers(Carver& carver, std::int64_t rows, std::int64_t k) {
    QuantScratch scratch = take(carver, rows, k);
    scratch.numbers = carver.take<BF16>(rows * k);
    return scratch;
  }
  QuantScratch with_numbers(void* memory) const { return {codes, scale, memory}; }
};

// Rows ready for a weight: as they are, or quantised once for any number of slices of that weight.
struct LinearInput {
  const void* x = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t stride = 0, rows = 0;
  QuantScratch quantised;
};

// x [rows, weight.k] of `dtype`, row stride in elements. `peak` [1] is the largest magnitude of the whole
// input, where the weight needs it.
LinearInput prepare_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                          std::int64_t stride, std::int64_t rows, const QuantScratch& scratch,
                          const float* peak = nullptr);

// Takes rows of the weight's input into its peak; the first rows of a tensor start it.
void measure_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                   std::int64_t stride, std::int64_t rows, bool first, float* peak);

// y [rows, weight.n] of y_dtype, row stride y_stride elements. `weight` is the weight of prepare_input or a
// slice.
void linear(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
            DType y_dtype, std::int64_t y_stride);

}  // namespace h3s::model
