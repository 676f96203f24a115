#include "backend/cuda/linear.h"

#include "backend/cuda/check.h"

namespace h3s::cuda {
namespace {

int capability_major() {
  int device = 0, major = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

}  // namespace

bool tensor_cores_apply(const kernels::LinearArgs& args, int sm) {
  if (args.x_dtype != args.w_dtype || args.k % 8 != 0) return false;
  // Before 8 there is no bf16 product.
  return args.x_dtype == DType::kF16 || (args.x_dtype == DType::kBF16 && sm >= 80);
}

bool tensor_cores_apply(const kernels::LinearInt8Args& args) {
  return args.k % 16 == 0;
}

void linear(const kernels::LinearArgs& args, cudaStream_t stream) {
  const int major = capability_major();
  if (!tensor_cores_apply(args, 10 * major)) return linear_fma(args, stream);
  // wgmma exists on capability 9 alone: not before, and not after.
  if (major == 9) return linear_sm90(args, stream);
  linear_mma(args, stream);
}

void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream) {
  if (!tensor_cores_apply(args)) return linear_int8_plain(args, stream);
  if (capability_major() == 9) return linear_int8_sm90(args, stream);
  linear_int8_mma(args, stream);
}

}  // namespace h3s::cuda
