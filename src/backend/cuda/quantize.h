// Launchers of the activation quantisers. Arguments were checked by the caller; a launcher only asserts.
//
// Each enqueues on `stream` and returns; no workspace, no synchronisation, any thread. Results are bit-equal
// to the CPU definitions, hence independent of how rows are split over calls. Any strides and alignment; rows
// on 16 bytes with k a multiple of 16 and k <= 28,672 are fast, others must fit a block's shared memory as
// floats: k <= 58,112 on sm_90, 16,384 on sm_75.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear.h"
#include "kernels/quantize_float.h"

namespace h3s::cuda {

void quantize_rows(const kernels::QuantizeRowsArgs& args, cudaStream_t stream);
// RowCode::kInt4; any strides and alignment, rotation groups of at most 1,024.
void quantize_rows_int4(const kernels::QuantizeRowsArgs& args, cudaStream_t stream);
void quantize_float(const kernels::QuantizeFloatArgs& args, cudaStream_t stream);
void abs_max(const kernels::AbsMaxArgs& args, cudaStream_t stream);
void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args, cudaStream_t stream);

}  // namespace h3s::cuda
