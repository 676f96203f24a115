// An asynchronous device in miniature: nothing runs when it is called. Work waits in its queue until the host
// asks for an event; then queues advance in an order, unfair and random, that respects only what record() and
// wait() say. A missing wait in the orchestration shows as wrong bits, a missing sync as a read of poisoned
// memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/backend.h"

namespace h3s::test {

class DeferredBackend final : public kernels::Backend {
 public:
  DeferredBackend(kernels::Backend& inner, std::uint64_t seed);
  ~DeferredBackend() override;

  std::string name() const override { return "deferred " + inner_.name(); }
  bool device_is_host() const override { return false; }

  void copy(const kernels::Copy2d& copy, kernels::Queue queue) override;
  // Of all copies asked for on the upload queue.
  std::int64_t uploaded_bytes() const { return uploaded_bytes_; }

  kernels::Event record(kernels::Queue queue) override;
  void wait(kernels::Queue queue, kernels::Event event) override;
  void sync(kernels::Event event) override;
  // A stamp's time is the number of steps this device had run when it passed.
  kernels::Stamp stamp(kernels::Queue queue) override;
  std::optional<double> passed_ms(kernels::Stamp stamp) override;

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
  struct Task {
    std::function<void()> work;  // or:
    std::uint64_t wait_for = 0;  // an event that must have passed
    std::uint64_t signal = 0;    // an event that passes here
  };
  std::deque<Task>& queue(kernels::Queue q) { return queues_[static_cast<std::size_t>(q)]; }
  void enqueue(std::function<void()> work) {
    queue(kernels::Queue::kCompute).push_back({std::move(work), 0, 0});
  }
  bool step();  // runs the head of one runnable queue; false when none is

  kernels::Backend& inner_;
  std::mt19937_64 random_;
  // One queue runs ahead as far as it may, another lags as far as it may: which, the seed decides.
  std::array<std::size_t, kernels::kNumQueues> preference_{0, 1, 2};
  std::array<std::deque<Task>, kernels::kNumQueues> queues_;
  std::uint64_t last_event_ = 0;
  std::int64_t uploaded_bytes_ = 0;
  std::set<std::uint64_t> passed_;
  std::uint64_t steps_run_ = 0, last_stamp_ = 0;
  std::map<std::uint64_t, double> stamps_passed_;
};

}  // namespace h3s::test
