// Stored floating-point values that are no numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace h3s {

// Index of the first NaN or infinity among n values in F32, F16 or BF16, or -1. `data` may be unaligned.
std::int64_t find_non_finite(const std::byte* data, DType dtype, std::int64_t n);

}  // namespace h3s
