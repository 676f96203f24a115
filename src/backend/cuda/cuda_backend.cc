#include "backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/devices.h"
#include "backend/cuda/dispatch.h"
#include "backend/cuda/quantize.h"
#include "backend/cuda/queues.h"
#include "backend/cuda/row_ops.h"
#include "backend/cuda/stamps.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

using kernels::Copy2d;
using kernels::Event;
using kernels::Queue;

// What was enqueued last: an error of the device shows at a later call, and is then reported with this.
struct LastOp {
  const char* name = "";
  std::int64_t m = 0, n = 0, k = 0;
  std::string text() const { return fmt::format("[{}] {} x {} x {}", name, m, n, k); }
};

void copy_async(const Copy2d& c, cudaStream_t stream) {
  const bool dense = c.rows == 1 || (c.dst_pitch_bytes == c.row_bytes && c.src_pitch_bytes == c.row_bytes);
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  // The driver knows from the addresses which side each lies on.
  if (dense)
    H3S_CUDA_CHECK(cudaMemcpyAsync(c.dst, c.src, bytes(c.rows * c.row_bytes), cudaMemcpyDefault, stream));
  else
    H3S_CUDA_CHECK(cudaMemcpy2DAsync(c.dst, bytes(c.dst_pitch_bytes), c.src, bytes(c.src_pitch_bytes),
                                     bytes(c.row_bytes), bytes(c.rows), cudaMemcpyDefault, stream));
}

class CudaBackend final : public kernels::Backend {
 public:
  CudaBackend(int device, mem::Accountant& accountant, Kernels kernels, CallerStream compute)
      : device_(device),
        name_(describe(device, kernels)),
        dispatch_(make_dispatch(device, accountant, kernels)),
        queues_(compute) {}

  std::string name() const override { return name_; }
  bool device_is_host() const override { return false; }

  void copy(const Copy2d& copy, Queue queue) override {
    run({"copy", copy.rows, copy.row_bytes, static_cast<std::int64_t>(queue)},
        [&] { copy_async(copy, queues_.stream(queue)); });
  }
  Event record(Queue queue) override {
    return wait_for([&] { return queues_.record(queue); });
  }
  void wait(Queue queue, Event event) override {
    wait_for([&] { queues_.wait(queue, event); });
  }
  void sync(Event event) override {
    wait_for([&] { queues_.sync(event); });
  }
  kernels::Stamp stamp(Queue queue) override {
    return wait_for([&] { return stamps_.record(queues_.stream(queue)); });
  }
  std::optional<double> passed_ms(kernels::Stamp stamp) override {
    return wait_for([&] { return stamps_.passed_ms(stamp); });
  }

  void linear(const kernels::LinearArgs& a) override {
    run({"linear", a.m, a.n, a.k}, [&] { dispatch_->linear(a, compute()); });
  }
  void linear_int8(const kernels::LinearInt8Args& a) override {
    run({"linear_int8", a.m, a.n, a.k}, [&] { dispatch_->linear_int8(a, compute()); });
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& a) override {
    run({"quantize_rows", a.m, a.k, a.rotate_group}, [&] {
      if (a.code == kernels::RowCode::kInt4) return cuda::quantize_rows_int4(a, compute());
      dispatch_->quantize_rows(a, compute());
    });
  }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& a) override {
    run({"swiglu_quantize_rows", a.m, a.k, a.rotate_group},
        [&] { dispatch_->swiglu_quantize_rows(a, compute()); });
  }
  void attention(const kernels::AttentionArgs& a) override {
    run({"attention", a.heads, a.q_tokens, a.kv_tokens}, [&] { dispatch_->attention(a, compute()); });
  }
  void quantize_float(const kernels::QuantizeFloatArgs& a) override {
    run({"quantize_float", a.m, a.k, static_cast<std::int64_t>(a.code)},
        [&] { cuda::quantize_float(a, compute()); });
  }
  void abs_max(const kernels::AbsMaxArgs& a) override {
    run({"abs_max", a.m, a.k, 1}, [&] { cuda::abs_max(a, compute()); });
  }
  void rms_norm(const kernels::RmsNormArgs& a) override {
    run({"rms_norm", a.m, a.c, a.modulate}, [&] { cuda::rms_norm(a, compute()); });
  }
  void gated_residual(const kernels::GatedResidualArgs& a) override {
    run({"gated_residual", a.m, a.c, a.modulate}, [&] { cuda::gated_residual(a, compute()); });
  }
  void swiglu(const kernels::SwigluArgs& a) override {
    run({"swiglu", a.m, a.f, 1}, [&] { cuda::swiglu(a, compute()); });
  }
  void silu(const kernels::SiluArgs& a) override {
    run({"silu", a.count, 1, 1}, [&] { cuda::silu(a, compute()); });
  }
  void modulation_table(const kernels::ModulationTableArgs& a) override {
    run({"modulation_table", a.rows, 6, a.c}, [&] { cuda::modulation_table(a, compute()); });
  }
  void final_modulate(const kernels::FinalModulateArgs& a) override {
    run({"final_modulate", a.m, a.c, 1}, [&] { cuda::final_modulate(a, compute()); });
  }
  void rope_table(const kernels::RopeTableArgs& a) override {
    run({"rope_table", a.m, 2, kernels::kRopePairs}, [&] { cuda::rope_table(a, compute()); });
  }
  void qkv_norm_rope(const kernels::QkvArgs& a) override {
    run({"qkv_norm_rope", a.m, a.heads, kernels::kHeadDim}, [&] { cuda::qkv_norm_rope(a, compute()); });
  }

 private:
  static const char* kernels_suffix(Kernels kernels) {
    switch (kernels) {
      case Kernels::kPortable:
        return ", portable kernels";
      case Kernels::kReference:
        return ", reference kernels";
      default:
        return "";
    }
  }
  static std::string describe(int device, Kernels kernels) {
    require_device(device);
    const DeviceInfo info = devices()[static_cast<std::size_t>(device)];
    return fmt::format("cuda:{} ({}, sm_{}{})", device, info.name, info.sm, kernels_suffix(kernels));
  }

  cudaStream_t compute() const { return queues_.stream(Queue::kCompute); }

  // Enqueues; an error says which op of which shape.
  template <typename Fn>
  void run(const LastOp& op, Fn fn) {
    try {
      use_device(device_);
      fn();
    } catch (const Error& e) {
      fail(e.status(), "{}: {}", op.text(), e.what());
    }
    last_ = op;
  }

  // Orders or waits; an error is that of an op before.
  template <typename Fn>
  std::invoke_result_t<Fn> wait_for(Fn fn) {
    try {
      use_device(device_);
      return fn();
    } catch (const Error& e) {
      fail(e.status(), "{}; the last op enqueued was {}", e.what(), last_.text());
    }
  }

  const int device_;
  const std::string name_;
  std::unique_ptr<Dispatch> dispatch_;
  Stamps stamps_;
  Queues queues_;  // goes first: work may still use the workspace
  LastOp last_;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_backend(int device, mem::Accountant& accountant, Kernels kernels,
                                               CallerStream compute) {
  make_context(device);
  return std::make_unique<CudaBackend>(device, accountant, kernels, compute);
}

}  // namespace h3s::cuda
