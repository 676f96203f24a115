#include "timed_backend.h"

#include <fmt/format.h>

#include "base/error.h"

namespace h3s::bench {

using kernels::Queue;

void TimedBackend::start() {
  timing_ = true;
  done("start");
}

std::map<std::string, double> TimedBackend::stop() {
  timing_ = false;
  inner_.sync(inner_.record(Queue::kCompute));
  std::map<std::string, double> total;
  double last = 0;
  for (std::size_t i = 0; i < stamps_.size(); ++i) {
    const std::optional<double> ms = inner_.passed_ms(stamps_[i].second);
    H3S_ASSERT(ms.has_value());
    if (i > 0) total[stamps_[i].first] += *ms - last;
    last = *ms;
  }
  stamps_.clear();
  return total;
}

void TimedBackend::done(const std::string& op) {
  if (timing_) stamps_.emplace_back(op, inner_.stamp(Queue::kCompute));
}

void TimedBackend::linear(const kernels::LinearArgs& args) {
  inner_.linear(args);
  done(fmt::format("linear {}x{}", args.n, args.k));
}
void TimedBackend::linear_int8(const kernels::LinearInt8Args& args) {
  inner_.linear_int8(args);
  done(fmt::format("linear_int8 {}x{}", args.n, args.k));
}
void TimedBackend::quantize_rows(const kernels::QuantizeRowsArgs& args) {
  inner_.quantize_rows(args);
  done("quantize_rows");
}
void TimedBackend::swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) {
  inner_.swiglu_quantize_rows(args);
  done("swiglu_quantize_rows");
}
void TimedBackend::quantize_float(const kernels::QuantizeFloatArgs& args) {
  inner_.quantize_float(args);
  done("quantize_float");
}
void TimedBackend::abs_max(const kernels::AbsMaxArgs& args) {
  inner_.abs_max(args);
  done("abs_max");
}
void TimedBackend::rms_norm(const kernels::RmsNormArgs& args) {
  inner_.rms_norm(args);
  done("rms_norm");
}
void TimedBackend::gated_residual(const kernels::GatedResidualArgs& args) {
  inner_.gated_residual(args);
  done("gated_residual");
}
void TimedBackend::swiglu(const kernels::SwigluArgs& args) {
  inner_.swiglu(args);
  done("swiglu");
}
void TimedBackend::silu(const kernels::SiluArgs& args) {
  inner_.silu(args);
  done("silu");
}
void TimedBackend::modulation_table(const kernels::ModulationTableArgs& args) {
  inner_.modulation_table(args);
  done("modulation_table");
}
void TimedBackend::final_modulate(const kernels::FinalModulateArgs& args) {
  inner_.final_modulate(args);
  done("final_modulate");
}
void TimedBackend::rope_table(const kernels::RopeTableArgs& args) {
  inner_.rope_table(args);
  done("rope_table");
}
void TimedBackend::qkv_norm_rope(const kernels::QkvArgs& args) {
  inner_.qkv_norm_rope(args);
  done("qkv_norm_rope");
}
void TimedBackend::attention(const kernels::AttentionArgs& args) {
  inner_.attention(args);
  done("attention");
}

}  // namespace h3s::bench
