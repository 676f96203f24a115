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

// A tile of linear_sm90 must not straddle parts.
template <typename Args>
bool takes_parts_sm90(const Args& args) {
  const std::int64_t columns = args.n / args.parts.count;
  return args.parts.count == 1 || columns == kNarrowTile || columns % kWideTile == 0;
}

}  // namespace

bool tensor_cores_apply(const kernels::LinearArgs& args, int sm) {
  const bool one_type =
      args.x_dtype == args.w_dtype && (args.y_dtype == args.x_dtype || args.y_dtype == DType::kF32);
  if (!one_type || args.k % 8 != 0) return false;
  // Before 8 there is no bf16 product.
  return args.x_dtype == DType::kF16 || (args.x_dtype == DType::kBF16 && sm >= 80);
}

bool tensor_cores_apply(const kernels::LinearInt8Args& args) {
  return args.k % 16 == 0;
}

void linear(const kernels::LinearArgs& args, cudaStream_t stream) {
  const int major = capability_major();
  const bool tensor_cores = tensor_cores_apply(args, 10 * major);
  // wgmma exists on capability 9 alone: not before, and not after. A product that is added to y, a LoRA's
  // second, is bound by memory, and by mma.sync on every card.
  const bool sm90 = tensor_cores && major == 9 && !args.add;
  if (sm90 && takes_parts_sm90(args)) return linear_sm90(args, stream);
  kernels::for_each_part(args, [&](const kernels::LinearArgs& part) {
    if (!tensor_cores) return linear_fma(part, stream);
    if (sm90) return linear_sm90(part, stream);
    if (major >= 8 && takes_linear_add(part)) return linear_add(part, stream);
    linear_mma(part, stream);
  });
}

void linear_int8(const kernels::LinearInt8Args& args, cudaStream_t stream) {
  const bool tensor_cores = tensor_cores_apply(args);
  const int major = capability_major();
  if (tensor_cores && major == 9 && takes_parts_sm90(args)) return linear_int8_sm90(args, stream);
  kernels::for_each_part(args, [&](const kernels::LinearInt8Args& part) {
    if (!tensor_cores) return linear_int8_plain(part, stream);
    if (major == 9) return linear_int8_sm90(part, stream);
    linear_int8_mma(part, stream);
  });
}

}  // namespace h3s::cuda
