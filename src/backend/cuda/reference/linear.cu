// reference::linear: y[m][n] = round(f(total x_scale[m]) + bias[n]), total = sum over K blocks of the block's sum of
// x[m][k] w[n][k].
//
// Rounding: operands are exact in float; inside a block of kLinearKBlock one fused multiply-add chain from
// zero, k ascending; block sums added in order to a float total that starts at zero; bias added; one rounding
// to y_dtype. Equal to cpu::linear_definition bit for bit, hence under any slicing of rows or columns: each
// output is one thread's serial sum. Bytes moved: a tile of 64 x 64 outputs reads its 64 rows of x and of w
// once.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/reference/reference.h"

namespace h3s::cuda::reference {
namespace {

using namespace device;

constexpr int kTile = 64;
constexpr int kThreads = 256;  // 16 x 16, each 4 x 4 outputs, 16 apart
constexpr int kStep = 32;      // columns of k in shared memory at a time
constexpr int kPitch = kTile + 1;
static_assert(kernels::kLinearKBlock % kStep == 0);

template <typename TX, typename TW, typename TY>
struct Params {
  const TX* x;
  const TW* w;
  const float* bias;
  const float* x_scale;
  TY* y;
  int64_t x_stride, y_stride, m, n, k;
  bool add;
};

// Columns [k0, k0 + count) of 64 rows, as [k][row]; rows past the last are zeros.
template <typename T>
__device__ __forceinline__ void load_tile(const T* src, int64_t stride, int64_t first, int64_t rows,
                                          int64_t k0, int count, float (&tile)[kStep][kPitch]) {
  for (int i = threadIdx.x; i < kTile * kStep; i += kThreads) {
    const int row = i / kStep, k = i % kStep;
    if (k < count) tile[k][row] = first + row < rows ? to_float(src[(first + row) * stride + k0 + k]) : 0.0f;
  }
}

template <typename TX, typename TW, typename TY>
__global__ void __launch_bounds__(kThreads) linear_kernel(const Params<TX, TW, TY> p) {
  __shared__ float x_tile[kStep][kPitch], w_tile[kStep][kPitch];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kTile, n0 = static_cast<int64_t>(blockIdx.y) * kTile;
  float total[4][4] = {}, sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kStep) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kStep), p.k - k0));
    __syncthreads();
    load_tile(p.x, p.x_stride, m0, p.m, k0, count, x_tile);
    load_tile(p.w, p.k, n0, p.n, k0, count, w_tile);
    __syncthreads();
    for (int k = 0; k < count; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sum[i][j] = __fmaf_rn(x_tile[k][ty + 16 * i], w_tile[k][tx + 16 * j], sum[i][j]);
    if ((k0 + kStep) % kernels::kLinearKBlock != 0 && k0 + kStep < p.k) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) total[i][j] = __fadd_rn(total[i][j], sum[i][j]), sum[i][j] = 0;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
      if (m >= p.m || n >= p.n) continue;
      float v = p.x_scale == nullptr ? total[i][j] : __fmul_rn(total[i][j], p.x_scale[m]);
      if (p.bias != nullptr) v = __fadd_rn(v, p.bias[n]);
      TY& y = p.y[m * p.y_stride + n];
      if (p.add) v = __fadd_rn(v, to_float(y));
      y = from_float<TY>(v);
    }
}

template <typename Fn>
void with_float_type(DType dtype, Fn fn) {
  if (dtype == DType::kF16)
    fn.template operator()<__half>();
  else
    with_compute_type(dtype, fn);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void linear(const kernels::LinearArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.m + kTile - 1) / kTile),
                  static_cast<unsigned>((a.n + kTile - 1) / kTile));
  with_float_type(a.x_dtype, [&]<typename TX>() {
    with_float_type(a.w_dtype, [&]<typename TW>() {
      with_float_type(a.y_dtype, [&]<typename TY>() {
        const Params<TX, TW, TY> p{static_cast<const TX*>(a.x),
                                   static_cast<const TW*>(a.w),
                                   a.bias,
                                   a.x_scale,
                                   static_cast<TY*>(a.y),
                                   a.x_stride,
                                   a.y_stride,
                                   a.m,
                                   a.n,
                                   a.k,
                                   a.add};
        linear_kernel<TX, TW, TY><<<grid, kThreads, 0, stream>>>(p);
        H3S_CUDA_CHECK_LAUNCH();
      });
    });
  });
}

}  // namespace h3s::cuda::reference
