// Plain kernels with the bits of the CPU definitions: the oracle on the device itself, and what runs where no
// fast kernel applies (attention and linears of float32 activations).
//
// One thread computes an output's sum in the order the definition states, so a whole network computed with
// these has the bits of the CPU engine (but for rope_table.cu's rare last bit). Arguments were checked by the
// caller; each enqueues on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention.h"
#include "kernels/linear.h"

namespace h3s::cuda::reference {

// Whether this build has code for the current device.
bool has_code();

void linear(const kernels::LinearArgs& args, cudaStream_t stream);
void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream);
// Rotation groups of at most kMaxRotateGroup.
inline constexpr std::int64_t kMaxRotateGroup = 4096;
void quantize_rows(const kernels::QuantizeRowsArgs& args, cudaStream_t stream);
void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args, cudaStream_t stream);
void attention(const kernels::AttentionArgs& args, cudaStream_t stream);

}  // namespace h3s::cuda::reference
