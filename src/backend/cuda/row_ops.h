// Launchers of the row ops. Arguments were checked by the caller; each enqueues on `stream` and returns.
//
// Pointers are device memory, but Modulation::segments, which is host memory read during the call. Results
// are those of the CPU definitions bit for bit, for finite values (rope_table: see there), on every card.
// Accesses are 16 bytes wide where pointers, strides and columns allow it; element by element otherwise, with
// the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/row_ops.h"

namespace h3s::cuda {

void rms_norm(const kernels::RmsNormArgs& args, cudaStream_t stream);
void gated_residual(const kernels::GatedResidualArgs& args, cudaStream_t stream);
void swiglu(const kernels::SwigluArgs& args, cudaStream_t stream);
void silu(const kernels::SiluArgs& args, cudaStream_t stream);
void modulation_table(const kernels::ModulationTableArgs& args, cudaStream_t stream);
void final_modulate(const kernels::FinalModulateArgs& args, cudaStream_t stream);
void rope_table(const kernels::RopeTableArgs& args, cudaStream_t stream);
void qkv_norm_rope(const kernels::QkvArgs& args, cudaStream_t stream);

}  // namespace h3s::cuda
