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

void linear(const kernels::LinearArgs& args, cudaStream_t stream) {
  const bool pair = args.x_dtype == args.w_dtype &&
                    (args.x_dtype == DType::kBF16 || args.x_dtype == DType::kF16) &&
                    (args.y_dtype == args.x_dtype || args.y_dtype == DType::kF32);
  const int major = capability_major();
  // Before 8 there is no bf16 product.
  if (!pair || args.k % 8 != 0 || (major < 8 && args.x_dtype == DType::kBF16))
    return linear_fma(args, stream);
  // wgmma exists on capability 9 alone: not before, and not after.
  if (major == 9) return linear_sm90(args, stream);
  linear_mma(args, stream);
}

void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream) {
  if (args.k % 16 != 0) return linear_int8_plain(args, stream);
  if (capability_major() == 9) return linear_int8_sm90(args, stream);
  linear_int8_mma(args, stream);
}

}  // namespace h3s::cuda
