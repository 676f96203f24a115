// reference::linear_int8: y[m][n] = round(f(f(f(acc) x_scale[m]) w_scale[n]) + bias[n]), acc = sum of x[m][k]
// w[n][k].
//
// Rounding: acc is an exact int32 (k <= 131071), so its order is free; it is converted to float (one
// rounding), multiplied by the row's scale, then by the column's (a rounding each), bias is added (one), and
// the result is rounded to y_dtype. Equal to cpu::linear_int8_definition bit for bit, hence under any slicing
// of rows or columns. Bytes moved: a tile of 64 x 64 outputs reads its 64 rows of x and of w once.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/reference/reference.h"

namespace h3s::cuda::reference {
namespace {

using namespace device;

constexpr int kTile = 64;
constexpr int kThreads = 256;  // 16 x 16, each 4 x 4 outputs, 16 apart
constexpr int kWords = 16;     // words of four codes in shared memory at a time
constexpr int kPitch = kTile + 1;

// Words [k0 / 4, + kWords) of 64 rows, as [word][row]; codes past the last row or column are zeros.
__device__ __forceinline__ void load_tile(const int8_t* src, int64_t first, int64_t rows, int64_t k0,
                                          int64_t k, int (&tile)[kWords][kPitch]) {
  for (int i = threadIdx.x; i < kTile * kWords; i += kThreads) {
    const int row = i / kWords, word = i % kWords;
    unsigned packed = 0;
    if (first + row < rows)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int64_t column = k0 + 4 * word + b;
        if (column < k)
          packed |= static_cast<unsigned>(static_cast<uint8_t>(src[(first + row) * k + column])) << (8 * b);
      }
    tile[word][row] = static_cast<int>(packed);
  }
}

template <typename TY>
__global__ void __launch_bounds__(kThreads) linear_int8_kernel(const kernels::LinearInt8Args a) {
  __shared__ int x_tile[kWords][kPitch], w_tile[kWords][kPitch];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * kTile, n0 = static_cast<int64_t>(blockIdx.y) * kTile;
  int acc[4][4] = {};
  for (int64_t k0 = 0; k0 < a.k; k0 += 4 * kWords) {
    __syncthreads();
    load_tile(a.x, m0, a.m, k0, a.k, x_tile);
    load_tile(a.w, n0, a.n, k0, a.k, w_tile);
    __syncthreads();
#pragma unroll
    for (int word = 0; word < kWords; ++word)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          acc[i][j] = __dp4a(x_tile[word][ty + 16 * i], w_tile[word][tx + 16 * j], acc[i][j]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
      if (m >= a.m || n >= a.n) continue;
      const float scaled = __fmul_rn(__fmul_rn(__int2float_rn(acc[i][j]), a.x_scale[m]), a.w_scale[n]);
      static_cast<TY*>(a.y)[m * a.y_stride + n] =
          from_float<TY>(a.bias == nullptr ? scaled : __fadd_rn(scaled, a.bias[n]));
    }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void linear_int8(const kernels::LinearInt8Args& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.m + kTile - 1) / kTile),
                  static_cast<unsigned>((a.n + kTile - 1) / kTile));
  with_compute_type(a.y_dtype, [&]<typename TY>() {
    linear_int8_kernel<TY><<<grid, kThreads, 0, stream>>>(a);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace h3s::cuda::reference
