// The output side of a linear layer's arguments, as the tensor-core kernels take it.
#pragma once

#include <cstdint>

#include "backend/cuda/device/linear_epilogue.cuh"
#include "kernels/linear.h"

namespace h3s::cuda {

// Args: LinearArgs or LinearInt8Args.
template <typename Args>
device::LinearOutput make_linear_output(const Args& args) {
  device::LinearOutput out = {};
  out.y = args.y;
  out.y_stride = args.y_stride;
  out.bias = args.bias;
  out.m = args.m;
  out.n = args.n;
  const auto row_bytes = static_cast<uintptr_t>(args.y_stride) * dtype_size(args.y_dtype);
  out.aligned = (reinterpret_cast<uintptr_t>(args.y) | row_bytes) % 16 == 0;
  out.x_scale = args.x_scale;
  if constexpr (requires { args.add; }) out.add = args.add;
  if constexpr (requires { args.w_scale; }) out.w_scale = args.w_scale;
  return out;
}

}  // namespace h3s::cuda
