#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"

namespace h3s::cpu {
namespace {

class DefinitionBackend final : public kernels::Backend {
 public:
  std::string name() const override { return "cpu (definitions)"; }
  bool device_is_host() const override { return true; }

  void copy(const kernels::Copy2d& copy, kernels::Queue) override { copy_rows(copy); }
  kernels::Event record(kernels::Queue) override { return {}; }
  void wait(kernels::Queue, kernels::Event) override {}
  void sync(kernels::Event) override {}

  void linear(const kernels::LinearArgs& args) override { kernels::for_each_part(args, linear_definition); }
  void linear_int8(const kernels::LinearInt8Args& args) override {
    kernels::for_each_part(args, linear_int8_definition);
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& args) override { quantize_rows_definition(args); }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) override {
    swiglu_quantize_rows_definition(args);
  }
  void quantize_float(const kernels::QuantizeFloatArgs& args) override { quantize_float_definition(args); }
  void abs_max(const kernels::AbsMaxArgs& args) override { abs_max_definition(args); }
  void rms_norm(const kernels::RmsNormArgs& args) override { rms_norm_definition(args); }
  void gated_residual(const kernels::GatedResidualArgs& args) override { gated_residual_definition(args); }
  void swiglu(const kernels::SwigluArgs& args) override { swiglu_definition(args); }
  void silu(const kernels::SiluArgs& args) override { silu_definition(args); }
  void modulation_table(const kernels::ModulationTableArgs& args) override {
    modulation_table_definition(args);
  }
  void final_modulate(const kernels::FinalModulateArgs& args) override { final_modulate_definition(args); }
  void rope_table(const kernels::RopeTableArgs& args) override { rope_table_definition(args); }
  void qkv_norm_rope(const kernels::QkvArgs& args) override { qkv_norm_rope_definition(args); }
  void attention(const kernels::AttentionArgs& args) override { attention_definition(args); }
};

}  // namespace

std::unique_ptr<kernels::Backend> make_definition_backend() {
  return std::make_unique<DefinitionBackend>();
}

}  // namespace h3s::cpu
