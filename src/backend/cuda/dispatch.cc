#include "backend/cuda/dispatch.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/attention.h"
#include "backend/cuda/check.h"
#include "backend/cuda/devices.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/quantize.h"
#include "backend/cuda/reference/reference.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

class ReferenceDispatch : public Dispatch {
 public:
  void linear(const kernels::LinearArgs& a, cudaStream_t stream) override {
    kernels::for_each_part(a, [&](const auto& part) { reference::linear(part, stream); });
  }
  void linear_int8(const kernels::LinearInt8Args& a, cudaStream_t stream) override {
    kernels::for_each_part(a, [&](const auto& part) { reference::linear_int8(part, stream); });
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) override {
    check_rotation(a.rotate_group);
    reference::quantize_rows(a, stream);
  }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& a, cudaStream_t stream) override {
    check_rotation(a.rotate_group);
    reference::swiglu_quantize_rows(a, stream);
  }
  void attention(const kernels::AttentionArgs& a, cudaStream_t stream) override {
    reference::attention(a, stream);
  }

 private:
  static void check_rotation(std::int64_t group) {
    if (group > reference::kMaxRotateGroup)
      fail(Status::kUnsupported, "rotate_group must be at most {} on CUDA, got {}",
           reference::kMaxRotateGroup, group);
  }
};

// Where the engine keeps the layout that the fast kernel asks for, which its own buffers always have.
bool attention_layout_fits(const kernels::AttentionArgs& a) {
  for (const void* p : {a.q, a.k, a.v, static_cast<const void*>(a.o)})
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  for (const std::int64_t stride : {a.q_head_stride, a.q_token_stride, a.k_head_stride, a.k_token_stride,
                                    a.v_head_stride, a.v_token_stride, a.o_head_stride, a.o_token_stride})
    if (stride % 8 != 0) return false;
  return true;
}

class FastDispatch : public ReferenceDispatch {
 public:
  explicit FastDispatch(int sm) : sm_(sm) {}

  void linear(const kernels::LinearArgs& a, cudaStream_t stream) override { cuda::linear(a, stream); }
  void linear_int8(const kernels::LinearInt8Args& a, cudaStream_t stream) override {
    cuda::linear_int8(a, stream);
  }
  void quantize_rows(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) override {
    cuda::quantize_rows(a, stream);
  }
  void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& a, cudaStream_t stream) override {
    cuda::swiglu_quantize_rows(a, stream);
  }

  void attention(const kernels::AttentionArgs& a, cudaStream_t stream) final {
    // Tensor cores have no float32 attention; bf16 came with sm_80.
    const bool has_kernel = a.dtype == DType::kF16 || (a.dtype == DType::kBF16 && sm_ >= 80);
    if (!has_kernel) return reference::attention(a, stream);
    if (!attention_layout_fits(a))
      fail(Status::kInvalidArgument,
           "q, k, v and o must be 16-byte aligned, with strides that are multiples of 8 elements");
    attend(a, stream);
  }

 protected:
  virtual void attend(const kernels::AttentionArgs& a, cudaStream_t stream) { cuda::attention(a, stream); }
  const int sm_;
};

class PortableDispatch final : public FastDispatch {
 public:
  using FastDispatch::FastDispatch;

  void linear(const kernels::LinearArgs& a, cudaStream_t stream) override {
    const auto kernel = tensor_cores_apply(a, sm_) ? linear_mma : linear_fma;
    kernels::for_each_part(a, [&](const auto& part) { kernel(part, stream); });
  }
  void linear_int8(const kernels::LinearInt8Args& a, cudaStream_t stream) override {
    const auto kernel = tensor_cores_apply(a) ? linear_int8_mma : linear_int8_plain;
    kernels::for_each_part(a, [&](const auto& part) { kernel(part, stream); });
  }

 private:
  void attend(const kernels::AttentionArgs& a, cudaStream_t stream) override { attention_mma(a, stream); }
};

int capability(int device) {
  int major = 0, minor = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

}  // namespace

// No kernel needs any; a fast one that does adds its share here and takes it in make_dispatch.
std::int64_t workspace_bytes() {
  return 0;
}

std::unique_ptr<Dispatch> make_dispatch(int device, mem::Accountant&, Kernels kernels) {
  use_device(device);
  const int sm = capability(device);
  if (!reference::has_code())
    fail(Status::kUnsupported, "[cuda] this build has no code for cuda:{}, which is sm_{}", device, sm);
  if (kernels == Kernels::kReference) return std::make_unique<ReferenceDispatch>();
  if (kernels == Kernels::kPortable) return std::make_unique<PortableDispatch>(sm);
  return std::make_unique<FastDispatch>(sm);
}

}  // namespace h3s::cuda
