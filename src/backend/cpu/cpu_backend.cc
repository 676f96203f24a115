#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "simd/targets.h"

#include "backend/cpu/launchers.h"
#include "backend/cpu/workers.h"
#include "base/error.h"
#include "hwy/highway.h"

namespace h3s::cpu {
namespace {

int resolved(int num_threads) {
  if (num_threads > 0) return num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void check_processor() {
#if HWY_ARCH_X86
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    fail(Status::kUnsupported, "[cpu] this build needs a processor with AVX2 and FMA (x86-64-v3)");
#endif
}

// Ops finish before their call returns: events are always passed.
class CpuBackend final : public kernels::Backend {
 public:
  CpuBackend(int num_threads, mem::Accountant& accountant) : workers_(num_threads, accountant) {}

  std::string name() const override {
    return fmt::format("cpu ({} thread{}, {})", workers_.count(), workers_.count() == 1 ? "" : "s",
                       instruction_set());
  }
  bool device_is_host() const override { return true; }

  void copy(const kernels::Copy2d& copy, kernels::Queue) override { copy_rows(copy); }
  kernels::Event record(kernels::Queue) override { return {}; }
  void wait(kernels::Queue, kernels::Event) override {}
  void sync(kernels::Event) override {}

  void linear(const kernels::LinearArgs& args) override {
    kernels::for_each_part(args, [&](const auto& part) { cpu::linear(part, workers_); });
  }
  void linear_int8(const kernels::LinearInt8Args& args) override {
    kernels::for_each_part(args, [&](const auto& part) { cpu::linear_int8(part, workers_); });
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& args) override { cpu::quantize_rows(args, workers_); }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args) override {
    cpu::swiglu_quantize_rows(args, workers_);
  }
  void quantize_float(const kernels::QuantizeFloatArgs& args) override {
    cpu::quantize_float(args, workers_);
  }
  void abs_max(const kernels::AbsMaxArgs& args) override { cpu::abs_max(args, workers_); }
  void rms_norm(const kernels::RmsNormArgs& args) override { cpu::rms_norm(args, workers_); }
  void gated_residual(const kernels::GatedResidualArgs& args) override {
    cpu::gated_residual(args, workers_);
  }
  void swiglu(const kernels::SwigluArgs& args) override { cpu::swiglu(args, workers_); }
  void silu(const kernels::SiluArgs& args) override { cpu::silu(args, workers_); }
  void modulation_table(const kernels::ModulationTableArgs& args) override {
    cpu::modulation_table(args, workers_);
  }
  void final_modulate(const kernels::FinalModulateArgs& args) override {
    cpu::final_modulate(args, workers_);
  }
  void rope_table(const kernels::RopeTableArgs& args) override { cpu::rope_table(args, workers_); }
  void qkv_norm_rope(const kernels::QkvArgs& args) override { cpu::qkv_norm_rope(args, workers_); }
  void attention(const kernels::AttentionArgs& args) override { cpu::attention(args, workers_); }

 private:
  Workers workers_;
};

}  // namespace

void copy_rows(const kernels::Copy2d& copy) {
  for (std::int64_t r = 0; r < copy.rows; ++r)
    std::memcpy(static_cast<std::byte*>(copy.dst) + r * copy.dst_pitch_bytes,
                static_cast<const std::byte*>(copy.src) + r * copy.src_pitch_bytes,
                static_cast<std::size_t>(copy.row_bytes));
}

std::string instruction_set() {
  const std::int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);  // lower bits are better
}

std::int64_t workspace_bytes(int num_threads) {
  return resolved(num_threads) * kScratchBytes;
}

std::unique_ptr<kernels::Backend> make_backend(int num_threads, mem::Accountant& accountant) {
  check_processor();
  return std::make_unique<CpuBackend>(resolved(num_threads), accountant);
}

}  // namespace h3s::cpu
