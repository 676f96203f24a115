// Finding the modulation row of a token.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kernels/row_ops.h"

namespace h3s::cpu {

// The table row that row `r` of the call uses. A row outside every segment is a bug of the caller.
template <typename T>
const T* modulation_row(const kernels::Modulation& modulation, std::int64_t r) {
  const std::int64_t token = modulation.token0 + r;
  for (std::int64_t i = 0; i < modulation.num_segments; ++i) {
    const kernels::ModSegment& segment = modulation.segments[i];
    if (token >= segment.start && token < segment.stop)
      return static_cast<const T*>(modulation.table) + segment.row * modulation.row_stride;
  }
  fail(Status::kInternal, "[modulation] token {} is in none of the {} segments", token,
       modulation.num_segments);
}

}  // namespace h3s::cpu
