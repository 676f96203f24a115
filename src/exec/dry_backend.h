// A backend that does nothing: for counting what a run would allocate.
#pragma once

#include "kernels/backend.h"

namespace h3s::exec {

class DryBackend final : public kernels::Backend {
 public:
  explicit DryBackend(bool device_is_host) : device_is_host_(device_is_host) {}

  std::string name() const override { return "dry run"; }
  bool device_is_host() const override { return device_is_host_; }
  void copy(const kernels::Copy2d&, kernels::Queue) override {}
  kernels::Event record(kernels::Queue) override { return {}; }
  void wait(kernels::Queue, kernels::Event) override {}
  void sync(kernels::Event) override {}
  void linear(const kernels::LinearArgs&) override {}
  void linear_int8(const kernels::LinearInt8Args&) override {}
  void quantize_rows(const kernels::QuantizeRowsArgs&) override {}
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs&) override {}
  void quantize_float(const kernels::QuantizeFloatArgs&) override {}
  void abs_max(const kernels::AbsMaxArgs&) override {}
  void rms_norm(const kernels::RmsNormArgs&) override {}
  void gated_residual(const kernels::GatedResidualArgs&) override {}
  void swiglu(const kernels::SwigluArgs&) override {}
  void silu(const kernels::SiluArgs&) override {}
  void modulation_table(const kernels::ModulationTableArgs&) override {}
  void final_modulate(const kernels::FinalModulateArgs&) override {}
  void rope_table(const kernels::RopeTableArgs&) override {}
  void qkv_norm_rope(const kernels::QkvArgs&) override {}
  void attention(const kernels::AttentionArgs&) override {}

 private:
  bool device_is_host_;
};

}  // namespace h3s::exec
