// The vectorised, multi-threaded ops: equal to their definitions bit for bit, whatever the number of threads
// and the vector width. Arguments are checked by the caller (ops/).
#pragma once

#include "backend/cpu/workers.h"
#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/linear.h"
#include "kernels/quantize_float.h"
#include "kernels/row_ops.h"

namespace h3s::cpu {

void linear(const kernels::LinearArgs& args, Workers& workers);
void linear_int8(const kernels::LinearInt8Args& args, Workers& workers);
void quantize_rows(const kernels::QuantizeRowsArgs& args, Workers& workers);
void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args, Workers& workers);
void quantize_float(const kernels::QuantizeFloatArgs& args, Workers& workers);
void abs_max(const kernels::AbsMaxArgs& args, Workers& workers);
void rms_norm(const kernels::RmsNormArgs& args, Workers& workers);
void gated_residual(const kernels::GatedResidualArgs& args, Workers& workers);
void swiglu(const kernels::SwigluArgs& args, Workers& workers);
void silu(const kernels::SiluArgs& args, Workers& workers);
void modulation_table(const kernels::ModulationTableArgs& args, Workers& workers);
void final_modulate(const kernels::FinalModulateArgs& args, Workers& workers);
void rope_table(const kernels::RopeTableArgs& args, Workers& workers);
void qkv_norm_rope(const kernels::QkvArgs& args, Workers& workers);
void attention(const kernels::AttentionArgs& args, Workers& workers);

// A copy of rows, on the calling thread.
void copy_rows(const kernels::Copy2d& copy);

}  // namespace h3s::cpu
