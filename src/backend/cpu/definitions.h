// The plain-loop definition of every op: the oracle that vector code and GPU kernels are compared with, bit
// for bit. Each stands at the head of the file that implements its op. Single-threaded, slow, no workspace.
#pragma once

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/quantize_float.h"
#include "kernels/row_ops.h"

namespace h3s::cpu {

void linear_definition(const kernels::LinearArgs& args);
void linear_int8_definition(const kernels::LinearInt8Args& args);
void quantize_rows_definition(const kernels::QuantizeRowsArgs& args);
void swiglu_quantize_rows_definition(const kernels::SwigluQuantizeRowsArgs& args);
void quantize_float_definition(const kernels::QuantizeFloatArgs& args);
void abs_max_definition(const kernels::AbsMaxArgs& args);
void rms_norm_definition(const kernels::RmsNormArgs& args);
void gated_residual_definition(const kernels::GatedResidualArgs& args);
void swiglu_definition(const kernels::SwigluArgs& args);
void silu_definition(const kernels::SiluArgs& args);
void modulation_table_definition(const kernels::ModulationTableArgs& args);
void final_modulate_definition(const kernels::FinalModulateArgs& args);
void rope_table_definition(const kernels::RopeTableArgs& args);
void qkv_norm_rope_definition(const kernels::QkvArgs& args);
void attention_definition(const kernels::AttentionArgs& args);

}  // namespace h3s::cpu
