// A GPU backend that takes host pointers: for each op the operands are laid out in one image of bytes, sent
// to the device, and the image is compared when it comes back. So the tests written for the CPU backend run
// on the GPU, and every byte outside an output that an op changed is a failure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace h3s::test {

class MirroredBackend final : public kernels::Backend {
 public:
  // `shift_elements`: how far operands start past a 256-byte boundary; 1 makes every one misaligned for wide
  // accesses.
  MirroredBackend(kernels::Backend& inner, mem::Accountant& accountant, std::int64_t shift_elements);

  std::string name() const override;
  bool device_is_host() const override { return true; }
  void copy(const kernels::Copy2d&, kernels::Queue) override;
  kernels::Event record(kernels::Queue) override { return {}; }
  void wait(kernels::Queue, kernels::Event) override {}
  void sync(kernels::Event) override {}

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
  class Call;
  kernels::Backend& inner_;
  mem::Accountant& accountant_;
  std::int64_t shift_elements_;
  mem::Buffer device_;
};

}  // namespace h3s::test
