// Stored floating-point values as float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace h3s::sample {

// F32, F16 or BF16.
bool is_widenable(DType dtype);

// Elements [first, last) of `data` into out[last - first], exactly. `data` may be unaligned.
void widen(const std::byte* data, DType dtype, std::int64_t first, std::int64_t last, float* out);

}  // namespace h3s::sample
