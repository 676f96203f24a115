// Int8 linear layers for the k that tensor cores cannot take: y = round(f(f(f(acc) x_scale) w_scale) (+
// bias)), acc exact in int32.
//
// x [m, k], w [n, k] at any alignment; a thread computes one output. Bit-equal to the CPU definition. Not a
// fast path: no shape of the model comes here, its k are multiples of 16. Floor: 2 m n k bytes through L1.

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/linear.h"

namespace h3s::cuda {
namespace {

using kernels::LinearInt8Args;
constexpr int kSide = 16;  // of a block's square of outputs

__global__ void __launch_bounds__(kSide* kSide)
    linear_int8_plain_kernel(const __grid_constant__ LinearInt8Args a) {
  const int64_t row = int64_t{blockIdx.x} * kSide + threadIdx.x / kSide,
                column = int64_t{blockIdx.y} * kSide + threadIdx.x % kSide;
  if (row >= a.m || column >= a.n) return;
  int32_t acc = 0;
  for (int64_t k = 0; k < a.k; ++k) acc += int32_t{a.x[row * a.k + k]} * int32_t{a.w[column * a.k + k]};
  float v = __fmul_rn(__fmul_rn(__int2float_rn(acc), a.x_scale[row]), a.w_scale[column]);
  if (a.bias != nullptr) v = __fadd_rn(v, a.bias[column]);
  const int64_t idx = row * a.y_stride + column;
  if (a.y_dtype == DType::kF32) {
    static_cast<float*>(a.y)[idx] = v;
  } else {
    static_cast<__nv_bfloat16*>(a.y)[idx] = __float2bfloat16_rn(v);
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void linear_int8_plain(const LinearInt8Args& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.k < 131072 && (args.y_dtype == DType::kF32 || args.y_dtype == DType::kBF16));
  if (args.m == 0 || args.n == 0) return;
  const dim3 grid(static_cast<unsigned>((args.m + kSide - 1) / kSide),
                  static_cast<unsigned>((args.n + kSide - 1) / kSide));
  H3S_CUDA_ASSERT(grid.y < 65536);
  linear_int8_plain_kernel<<<grid, kSide * kSide, 0, stream>>>(args);
  H3S_CUDA_CHECK_LAUNCH();
}

}  // namespace h3s::cuda
