// Which kernel runs an op that has several: the fast ones of the device's architecture, or the reference
// ones.
//
// The choice looks at the op's dtype, at sizes that chunking cannot change and at the device, never at the
// rows of a call, so a chunk has the bits of the whole.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/cuda/cuda_backend.h"
#include "kernels/attention.h"
#include "kernels/linear.h"

namespace h3s::cuda {

class Dispatch {
 public:
  virtual ~Dispatch() = default;
  virtual void linear(const kernels::LinearArgs& args, cudaStream_t stream) = 0;
  virtual void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream) = 0;
  virtual void quantize_rows(const kernels::QuantizeRowsArgs& args, cudaStream_t stream) = 0;
  virtual void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args, cudaStream_t stream) = 0;
  virtual void attention(const kernels::AttentionArgs& args, cudaStream_t stream) = 0;
};

// Allocates the workspace of the kernels it will choose. Throws kUnsupported when this build has no code for
// the device.
std::unique_ptr<Dispatch> make_dispatch(int device, mem::Accountant& accountant, Kernels kernels);

}  // namespace h3s::cuda
