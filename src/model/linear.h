// One linear layer, whatever its weight format.
#pragma once

#include "base/float16.h"
#include "kernels/backend.h"
#include "model/carver.h"
#include "model/weights.h"

namespace h3s::model {

// Where quantised activations go: [rows, k] codes or, for floating-point codes, [rows, k] bf16 numbers; and
// [rows] scales. Unused by unquantised weights. `low_rank` is for x . a^T of a weight with a LowRank.
struct QuantScratch {
  std::int8_t* codes = nullptr;
  float* scale = nullptr;
  void* numbers = nullptr;   // may be the input itself, when that is dense bf16 and not needed again
  void* low_rank = nullptr;  // [rows, LowRank::rank] dense
  // `low_rank_row_bytes`: the most that LowRank::row_bytes() is.
  static QuantScratch take(Carver& carver, std::int64_t rows, std::int64_t k,
                           std::int64_t low_rank_row_bytes) {
    auto* codes = carver.take<std::int8_t>(rows * k);
    auto* scale = carver.take<float>(rows);
    return {codes, scale, nullptr, carver.take_bytes(rows * low_rank_row_bytes)};
  }
  static QuantScratch take_with_numbers(Carver& carver, std::int64_t rows, std::int64_t k,
                                        std::int64_t low_rank_row_bytes) {
    QuantScratch scratch = take(carver, rows, k, low_rank_row_bytes);
    scratch.numbers = carver.take<BF16>(rows * k);
    return scratch;
  }
  QuantScratch with_numbers(void* memory) const { return {codes, scale, memory, low_rank}; }
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

// x . a^T of those rows into scratch.low_rank; nothing where the weight has no LowRank. Part of
// prepare_input(), for inputs that are made otherwise.
void prepare_low_rank(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                      std::int64_t stride, std::int64_t rows, const QuantScratch& scratch);

// Takes rows of the weight's input into its peak; the first rows of a tensor start it.
void measure_input(kernels::Backend& backend, const LinearWeight& weight, const void* x, DType dtype,
                   std::int64_t stride, std::int64_t rows, bool first, float* peak);

// y [rows, weight.n] of y_dtype, row stride y_stride elements. `weight` is the weight of prepare_input or a
// slice.
void linear(kernels::Backend& backend, const LinearWeight& weight, const LinearInput& input, void* y,
            DType y_dtype, std::int64_t y_stride);

}  // namespace h3s::model
