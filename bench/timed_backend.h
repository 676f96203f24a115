// A backend that stamps the time around every op of another one.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "forwarding_backend.h"

namespace h3s::bench {

class TimedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Ops between the two are timed; what passes between two ops counts to the second. Milliseconds of the
  // compute queue by op, those of linear layers apart: "linear_int8 7168x5376" is n x k.
  void start();
  std::map<std::string, double> stop();

  void linear(const kernels::LinearArgs& args) override;
  void linear_int8(const kernels::LinearInt8Args& args) override;
  void quantize_rows(const kernels::QuantizeRowsArgs& args) override;
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) override;
  void quantize_float(const kernels::QuantizeFloatArgs& args) override;
  void abs_max(const kernels::AbsMaxArgs& args) override;
  void rms_norm(const kernels::RmsNormArgs& args) override;
  void gated_residual(const kernels::GatedResidualArgs& args) override;
  void swiglu(const kernels::SwigluArgs& args) override;
  void silu(const kernels::SiluArgs& args) override;
  void modulation_table(const kernels::ModulationTableArgs& args) override;
  void final_modulate(const kernels::FinalModulateArgs& args) override;
  void rope_table(const kernels::RopeTableArgs& args) override;
  void qkv_norm_rope(const kernels::QkvArgs& args) override;
  void attention(const kernels::AttentionArgs& args) override;

 private:
  void done(const std::string& op);

  bool timing_ = false;
  std::vector<std::pair<std::string, kernels::Stamp>> stamps_;  // when each op was done
};

}  // namespace h3s::bench
