// The ops as the model calls them: arguments are checked once, here, then the backend runs them.
//
// Every function throws Error(kInvalidArgument or kUnsupported) with "[op] expected ..., got ..." and leaves
// outputs untouched when an argument is wrong. Shapes and rounding: see the argument structs in kernels/.
#pragma once

#include "kernels/backend.h"

namespace h3s::ops {

void linear(kernels::Backend& backend, const kernels::LinearArgs& args);
void linear_int8(kernels::Backend& backend, const kernels::LinearInt8Args& args);
void quantize_rows(kernels::Backend& backend, const kernels::QuantizeRowsArgs& args);
void swiglu_quantize_rows(kernels::Backend& backend, const kernels::SwigluQuantizeRowsArgs& args);
void quantize_float(kernels::Backend& backend, const kernels::QuantizeFloatArgs& args);
void abs_max(kernels::Backend& backend, const kernels::AbsMaxArgs& args);
void rms_norm(kernels::Backend& backend, const kernels::RmsNormArgs& args);
void gated_residual(kernels::Backend& backend, const kernels::GatedResidualArgs& args);
void swiglu(kernels::Backend& backend, const kernels::SwigluArgs& args);
void silu(kernels::Backend& backend, const kernels::SiluArgs& args);
void modulation_table(kernels::Backend& backend, const kernels::ModulationTableArgs& args);
void final_modulate(kernels::Backend& backend, const kernels::FinalModulateArgs& args);
void rope_table(kernels::Backend& backend, const kernels::RopeTableArgs& args);
void qkv_norm_rope(kernels::Backend& backend, const kernels::QkvArgs& args);
void attention(kernels::Backend& backend, const kernels::AttentionArgs& args);

}  // namespace h3s::ops
