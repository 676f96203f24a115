// A backend that hands everything to another one: what a bench looks at overrides the op.
#pragma once

#include "kernels/backend.h"

namespace h3s::bench {

class ForwardingBackend : public kernels::Backend {
 public:
  explicit ForwardingBackend(kernels::Backend& inner) : inner_(inner) {}

  std::string name() const override { return inner_.name(); }
  bool device_is_host() const override { return inner_.device_is_host(); }
  void copy(const kernels::Copy2d& copy, kernels::Queue queue) override { inner_.copy(copy, queue); }
  kernels::Event record(kernels::Queue queue) override { return inner_.record(queue); }
  void wait(kernels::Queue queue, kernels::Event event) override { inner_.wait(queue, event); }
  void sync(kernels::Event event) override { inner_.sync(event); }
  kernels::Stamp stamp(kernels::Queue queue) override { return inner_.stamp(queue); }
  std::optional<double> passed_ms(kernels::Stamp stamp) override { return inner_.passed_ms(stamp); }

  void linear(const kernels::LinearArgs& args) override { inner_.linear(args); }
  void linear_int8(const kernels::LinearInt8Args& args) override { inner_.linear_int8(args); }
  void quantize_rows(const kernels::QuantizeRowsArgs& args) override { inner_.quantize_rows(args); }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) override {
    inner_.swiglu_quantize_rows(args);
  }
  void quantize_float(const kernels::QuantizeFloatArgs& args) override { inner_.quantize_float(args); }
  void abs_max(const kernels::AbsMaxArgs& args) override { inner_.abs_max(args); }
  void rms_norm(const kernels::RmsNormArgs& args) override { inner_.rms_norm(args); }
  void gated_residual(const kernels::GatedResidualArgs& args) override { inner_.gated_residual(args); }
  void swiglu(const kernels::SwigluArgs& args) override { inner_.swiglu(args); }
  void silu(const kernels::SiluArgs& args) override { inner_.silu(args); }
  void modulation_table(const kernels::ModulationTableArgs& args) override { inner_.modulation_table(args); }
  void final_modulate(const kernels::FinalModulateArgs& args) override { inner_.final_modulate(args); }
  void rope_table(const kernels::RopeTableArgs& args) override { inner_.rope_table(args); }
  void qkv_norm_rope(const kernels::QkvArgs& args) override { inner_.qkv_norm_rope(args); }
  void attention(const kernels::AttentionArgs& args) override { inner_.attention(args); }

 protected:
  kernels::Backend& inner_;
};

}  // namespace h3s::bench
