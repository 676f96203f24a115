// A backend that hands everything to another one and tells the derived class of each op: what a bench looks
// at further overrides the op itself.
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

  void linear(const kernels::LinearArgs& args) override {
    inner_.linear(args);
    called("linear");
  }
  void linear_int8(const kernels::LinearInt8Args& args) override {
    inner_.linear_int8(args);
    called("linear_int8");
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& args) override {
    inner_.quantize_rows(args);
    called("quantize_rows");
  }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) override {
    inner_.swiglu_quantize_rows(args);
    called("swiglu_quantize_rows");
  }
  void quantize_float(const kernels::QuantizeFloatArgs& args) override {
    inner_.quantize_float(args);
    called("quantize_float");
  }
  void abs_max(const kernels::AbsMaxArgs& args) override {
    inner_.abs_max(args);
    called("abs_max");
  }
  void rms_norm(const kernels::RmsNormArgs& args) override {
    inner_.rms_norm(args);
    called("rms_norm");
  }
  void gated_residual(const kernels::GatedResidualArgs& args) override {
    inner_.gated_residual(args);
    called("gated_residual");
  }
  void swiglu(const kernels::SwigluArgs& args) override {
    inner_.swiglu(args);
    called("swiglu");
  }
  void silu(const kernels::SiluArgs& args) override {
    inner_.silu(args);
    called("silu");
  }
  void modulation_table(const kernels::ModulationTableArgs& args) override {
    inner_.modulation_table(args);
    called("modulation_table");
  }
  void final_modulate(const kernels::FinalModulateArgs& args) override {
    inner_.final_modulate(args);
    called("final_modulate");
  }
  void rope_table(const kernels::RopeTableArgs& args) override {
    inner_.rope_table(args);
    called("rope_table");
  }
  void qkv_norm_rope(const kernels::QkvArgs& args) override {
    inner_.qkv_norm_rope(args);
    called("qkv_norm_rope");
  }
  void attention(const kernels::AttentionArgs& args) override {
    inner_.attention(args);
    called("attention");
  }

 protected:
  // After every op.
  virtual void called(const char* /*op*/) {}

  kernels::Backend& inner_;
};

}  // namespace h3s::bench
