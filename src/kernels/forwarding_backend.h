// A backend that passes every call on to another: the base of those that count, trace or disturb.
#pragma once

#include "kernels/backend.h"

namespace h3s::kernels {

struct OpCall {
  const char* name = "";      // "linear", "attention"
  std::int64_t rows = 0;      // of the output
  std::int64_t n = 0, k = 0;  // of a linear: columns of its output and of its input
};

// Runs the op on the backend behind; valid during the call it is handed to.
class RunOp {
 public:
  template <typename Fn>
  explicit RunOp(const Fn& fn) : fn_(&fn), call_([](const void* f) { (*static_cast<const Fn*>(f))(); }) {}
  void operator()() const { call_(fn_); }

 private:
  const void* fn_;
  void (*call_)(const void* fn);
};

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  std::string name() const override { return inner_.name(); }
  bool device_is_host() const override { return inner_.device_is_host(); }
  void copy(const Copy2d& copy, Queue queue) override { inner_.copy(copy, queue); }
  Event record(Queue queue) override { return inner_.record(queue); }
  void wait(Queue queue, Event event) override { inner_.wait(queue, event); }
  void sync(Event event) override { inner_.sync(event); }
  Stamp stamp(Queue queue) override { return inner_.stamp(queue); }
  std::optional<double> passed_ms(Stamp stamp) override { return inner_.passed_ms(stamp); }

  void linear(const LinearArgs& a) override { forward({"linear", a.m, a.n, a.k}, &Backend::linear, a); }
  void linear_int8(const LinearInt8Args& a) override {
    forward({"linear_int8", a.m, a.n, a.k}, &Backend::linear_int8, a);
  }
  void quantize_rows(const QuantizeRowsArgs& a) override {
    forward({"quantize_rows", a.m}, &Backend::quantize_rows, a);
  }
  void swiglu_quantize_rows(const SwigluQuantizeRowsArgs& a) override {
    forward({"swiglu_quantize_rows", a.m}, &Backend::swiglu_quantize_rows, a);
  }
  void quantize_float(const QuantizeFloatArgs& a) override {
    forward({"quantize_float", a.m}, &Backend::quantize_float, a);
  }
  void abs_max(const AbsMaxArgs& a) override { forward({"abs_max", a.m}, &Backend::abs_max, a); }
  void rms_norm(const RmsNormArgs& a) override { forward({"rms_norm", a.m}, &Backend::rms_norm, a); }
  void gated_residual(const GatedResidualArgs& a) override {
    forward({"gated_residual", a.m}, &Backend::gated_residual, a);
  }
  void swiglu(const SwigluArgs& a) override { forward({"swiglu", a.m}, &Backend::swiglu, a); }
  void silu(const SiluArgs& a) override { forward({"silu", a.count}, &Backend::silu, a); }
  void modulation_table(const ModulationTableArgs& a) override {
    forward({"modulation_table", a.rows}, &Backend::modulation_table, a);
  }
  void final_modulate(const FinalModulateArgs& a) override {
    forward({"final_modulate", a.m}, &Backend::final_modulate, a);
  }
  void rope_table(const RopeTableArgs& a) override { forward({"rope_table", a.m}, &Backend::rope_table, a); }
  void qkv_norm_rope(const QkvArgs& a) override {
    forward({"qkv_norm_rope", a.m}, &Backend::qkv_norm_rope, a);
  }
  void attention(const AttentionArgs& a) override {
    forward({"attention", a.q_tokens}, &Backend::attention, a);
  }

 protected:
  Backend& inner() const { return inner_; }
  // Every op comes by here. May throw instead of running it.
  virtual void op(const OpCall& /*call*/, RunOp run) { run(); }

 private:
  template <typename Args>
  void forward(const OpCall& call, void (Backend::*method)(const Args&), const Args& args) {
    op(call, RunOp([&] { (inner_.*method)(args); }));
  }

  Backend& inner_;
};

}  // namespace h3s::kernels
