// silu: y = round(z / (1 + exp(-z))), elementwise.
//
// x, y of `count` elements, bf16 or float; y may be x. Rounding: exp of device/exp.cuh, sum and quotient are
// float roundings, then the type's. Equal to cpu::silu_definition bit for bit. Bytes moved per element: x in,
// y out.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/silu.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"

namespace h3s::cuda {
namespace {

using namespace device;

// Straight code where all values are in its range, the definition otherwise.
__device__ __forceinline__ void silu_all(float (&v)[kVector]) {
  float least = v[0], largest = v[0];
#pragma unroll
  for (int j = 1; j < kVector; ++j) least = min_or_nan(least, v[j]), largest = fmaxf(largest, v[j]);
  if (least >= kSiluFastMin && largest <= kSiluFastMax) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) v[j] = copysignf(silu_fast(v[j]), v[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) v[j] = device::silu(v[j]);
  }
}

template <typename T, bool kWide>
__global__ void silu_kernel(const T* x, T* y, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kVector;
  if (i >= count) return;
  float v[kVector];
  load<kWide, Use::kStream>(x + i, count - i, v);
  silu_all(v);
  store<kWide>(v, y + i, count - i);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void silu(const kernels::SiluArgs& a, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const bool wide = a.count % kVector == 0 && aligned16(a.x) && aligned16(a.y);
  const auto blocks = static_cast<unsigned>((a.count + kThreads * kVector - 1) / (kThreads * kVector));
  with_compute_type(a.dtype, [&]<typename T>() {
    with_flag(wide, [&]<bool kWide>() {
      silu_kernel<T, kWide>
          <<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(a.x), static_cast<T*>(a.y), a.count);
      H3S_CUDA_CHECK_LAUNCH();
    });
  });
}

}  // namespace h3s::cuda
