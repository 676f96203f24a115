// What the launchers of row ops share: dtype dispatch for .cu files, and when accesses may be wide.
//
// base/dispatch.h is not for .cu files: the CUDA compiler's front end does not evaluate the format library's
// compile-time checks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"
#include "base/dtype.h"

namespace h3s::cuda {

// fn.operator()<T>() with the compute type, bf16 or float. Dtypes were checked by the caller.
template <typename Fn>
void with_compute_type(DType dtype, Fn fn) {
  H3S_CUDA_ASSERT(dtype == DType::kBF16 || dtype == DType::kF32);
  if (dtype == DType::kBF16)
    fn.template operator()<__nv_bfloat16>();
  else
    fn.template operator()<float>();
}

// fn.operator()<value>() with a flag as template argument.
template <typename Fn>
void with_flag(bool value, Fn fn) {
  if (value)
    fn.template operator()<true>();
  else
    fn.template operator()<false>();
}

inline bool aligned16(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

// Threads of a block that walks a row of `vectors` vectors: whole warps, the count between 4 and 8 that
// leaves the fewest threads idle in the last step.
inline int row_threads(std::int64_t vectors) {
  int best = 128;
  std::int64_t least = INT64_MAX;
  for (int threads = 256; threads >= 128; threads -= 32) {
    const std::int64_t idle = (vectors + threads - 1) / threads * threads - vectors;
    if (idle < least) least = idle, best = threads;
  }
  return best;
}

}  // namespace h3s::cuda
