// Linear layers in plain fp32: y[m][n] = round(f(total x_scale[m]) + bias[n]), total = sum over K blocks of the block's sum
// of x[m][k] w[n][k].
//
// Rounding: operands are exact in float; inside a block of kLinearKBlock one fused multiply-add chain from
// zero, k ascending; block sums added in order to a float total that starts at zero; bias added; one rounding
// to the type of y.
//
// Shapes: x [m, k], w [n, k], y [m, n], each bf16, f16 or f32. No alignment is needed.
//
// Equality: bit-equal to the CPU definition, hence under any slicing of rows or columns; so the kernel may be
// chosen by m and n. Missing k are zeros: fma(0, 0, s) is s, but for s = -0, which the total, never -0
// itself, cannot see.
//
// Floor: m n k fused multiply-adds at 128 a cycle and multiprocessor; with at most kFewRows rows the bytes of
// w.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/linear.h"

namespace h3s::cuda {
namespace {

using kernels::LinearArgs;
constexpr int kKBlock = kernels::kLinearKBlock;

struct Params {
  const void* x;
  const void* w;
  const float* bias;
  const float* x_scale;
  void* y;
  int64_t x_stride, y_stride;
  int64_t m, n, k;
  DType x_dtype, w_dtype, y_dtype;
  bool x_vector, w_vector;  // four neighbours along k may be read at once
  bool add;
};

__device__ __forceinline__ float2 widen(uint32_t pair, DType dtype) {
  if (dtype == DType::kBF16)
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

__device__ __forceinline__ float read_one(const void* base, DType dtype, int64_t idx) {
  switch (dtype) {
    case DType::kF32:
      return __ldg(static_cast<const float*>(base) + idx);
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[idx]);
    default:
      return __half2float(static_cast<const __half*>(base)[idx]);
  }
}

// Elements k .. k + 3 of a row that starts at element `row`, zeros from `end` on.
__device__ __forceinline__ float4 read_four(const void* base, DType dtype, bool vector, int64_t row,
                                            int64_t k, int64_t end) {
  if (vector && k + 4 <= end) {
    if (dtype == DType::kF32)
      return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(base) + row + k));
    const uint2 raw = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(base) + row + k));
    const float2 low = widen(raw.x, dtype), high = widen(raw.y, dtype);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = k + i < end ? read_one(base, dtype, row + k + i) : 0.0f;
  return make_float4(v[0], v[1], v[2], v[3]);
}

// What y holds: not through the read-only cache, for it is about to be written.
__device__ __forceinline__ float read_output(const Params& p, int64_t idx) {
  if (p.y_dtype == DType::kF32) return static_cast<const float*>(p.y)[idx];
  if (p.y_dtype == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p.y)[idx]);
  return __half2float(static_cast<const __half*>(p.y)[idx]);
}

__device__ __forceinline__ void store_total(const Params& p, int64_t row, int64_t column, float total) {
  if (p.x_scale != nullptr) total = __fmul_rn(total, __ldg(p.x_scale + row));
  if (p.bias != nullptr) total = __fadd_rn(total, __ldg(p.bias + column));
  const int64_t idx = row * p.y_stride + column;
  if (p.add) total = __fadd_rn(total, read_output(p, idx));
  if (p.y_dtype == DType::kF32) {
    static_cast<float*>(p.y)[idx] = total;
  } else if (p.y_dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(p.y)[idx] = __float2bfloat16_rn(total);
  } else {
    static_cast<__half*>(p.y)[idx] = __float2half_rn(total);
  }
}

// ---- many rows: tiles ----

constexpr int kBlockM = 128;
constexpr int kBlockK = 16;
constexpr int kThreadM = 8;  // rows of a thread: two runs of four, half a tile apart
static_assert(kKBlock % kBlockK == 0);

// One operand's tile on its way from memory to shared memory [kBlockK][kRows + 4]: a thread carries four
// neighbours along k of kRows / (kThreads / 4) rows; a warp takes 32 rows at one k, so that its transposing
// stores meet no bank twice.
template <int kRows, int kThreads>
struct Carrier {
  static constexpr int kPieces = kRows * (kBlockK / 4) / kThreads;
  static_assert(kPieces >= 1 && kRows % 32 == 0);
  float4 v[kPieces];

  __device__ __forceinline__ static int row(int i) { return (threadIdx.x + i * kThreads) % kRows; }
  __device__ __forceinline__ static int k(int i) { return (threadIdx.x + i * kThreads) / kRows * 4; }

  __device__ __forceinline__ void load(const void* base, DType dtype, bool vector, int64_t stride,
                                       int64_t row0, int64_t rows, int64_t k0, int64_t end) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t r = row0 + row(i);
      v[i] = r < rows ? read_four(base, dtype, vector, r * stride, k0 + k(i), end)
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  __device__ __forceinline__ void store(float (*tile)[kRows + 4]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      tile[k(i) + 0][row(i)] = v[i].x;
      tile[k(i) + 1][row(i)] = v[i].y;
      tile[k(i) + 2][row(i)] = v[i].z;
      tile[k(i) + 3][row(i)] = v[i].w;
    }
  }
};

__device__ __forceinline__ void read_run(const float* src, float* dst) {
  *reinterpret_cast<float4*>(dst) = *reinterpret_cast<const float4*>(src);
}

template <int kBlockN, int kThreadN>
__global__ void __launch_bounds__(kBlockM / kThreadM * (kBlockN / kThreadN))
    linear_fma_tile_kernel(const __grid_constant__ Params p) {
  constexpr int kThreadsN = kBlockN / kThreadN;
  constexpr int kThreads = kBlockM / kThreadM * kThreadsN;
  __shared__ __align__(16) float x_tile[2][kBlockK][kBlockM + 4];
  __shared__ __align__(16) float w_tile[2][kBlockK][kBlockN + 4];
  const int64_t row0 = int64_t{blockIdx.x} * kBlockM, column0 = int64_t{blockIdx.y} * kBlockN;
  const int my_row = threadIdx.x / kThreadsN * 4, my_column = threadIdx.x % kThreadsN * 4;
  const int chunks = static_cast<int>((p.k + kBlockK - 1) / kBlockK);

  Carrier<kBlockM, kThreads> x;
  Carrier<kBlockN, kThreads> w;
  const auto load = [&](int chunk) {
    x.load(p.x, p.x_dtype, p.x_vector, p.x_stride, row0, p.m, int64_t{chunk} * kBlockK, p.k);
    w.load(p.w, p.w_dtype, p.w_vector, p.k, column0, p.n, int64_t{chunk} * kBlockK, p.k);
  };
  const auto store = [&](int chunk) {
    x.store(x_tile[chunk % 2]);
    w.store(w_tile[chunk % 2]);
  };

  float total[kThreadM][kThreadN] = {}, sum[kThreadM][kThreadN] = {};
  load(0);
  store(0);
  __syncthreads();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) load(chunk + 1);
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      float a[kThreadM], b[kThreadN];
      read_run(&x_tile[chunk % 2][k][my_row], a);
      read_run(&x_tile[chunk % 2][k][my_row + kBlockM / 2], a + 4);
#pragma unroll
      for (int j = 0; j < kThreadN; j += 4)
        read_run(&w_tile[chunk % 2][k][my_column + j / 4 * (kBlockN / 2)], b + j);
#pragma unroll
      for (int i = 0; i < kThreadM; ++i)
#pragma unroll
        for (int j = 0; j < kThreadN; ++j) sum[i][j] = __fmaf_rn(a[i], b[j], sum[i][j]);
    }
    if ((chunk + 1) % (kKBlock / kBlockK) == 0 || chunk + 1 == chunks) {
#pragma unroll
      for (int i = 0; i < kThreadM; ++i)
#pragma unroll
        for (int j = 0; j < kThreadN; ++j) {
          total[i][j] = __fadd_rn(total[i][j], sum[i][j]);
          sum[i][j] = 0.0f;
        }
    }
    if (chunk + 1 < chunks) store(chunk + 1);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
    const int64_t row = row0 + my_row + i % 4 + i / 4 * (kBlockM / 2);
#pragma unroll
    for (int j = 0; j < kThreadN; ++j) {
      const int64_t column = column0 + my_column + j % 4 + j / 4 * (kBlockN / 2);
      if (row < p.m && column < p.n) store_total(p, row, column, total[i][j]);
    }
  }
}

// ---- few rows: w streams past once ----

constexpr int kFewRows = 4;
constexpr int kColumns = 32;  // of a block: one a lane
constexpr int kWarps = 8;     // K blocks in flight: their sums are independent chains

// The sums of one K block for this lane's column and all rows. x_block [kFewRows][kKBlock], zeros where x has
// nothing.
template <int kRows>
__device__ __forceinline__ void few_rows_block(const Params& p, int64_t column, int64_t k0,
                                               const float* x_block, float (&sum)[kRows]) {
  constexpr int kRun = 16;  // of k read ahead: 32 bytes of a row of w, one sector
  const int count = static_cast<int>(min(p.k - k0, int64_t{kKBlock}));
  const int64_t row = column * p.k + k0;
  float4 next[kRun / 4];
  const auto read = [&](int k) {
#pragma unroll
    for (int i = 0; i < kRun / 4; ++i) next[i] = read_four(p.w, p.w_dtype, p.w_vector, row, k + 4 * i, count);
  };
  read(0);
  for (int k = 0; k < count; k += kRun) {
    float4 w[kRun / 4];
#pragma unroll
    for (int i = 0; i < kRun / 4; ++i) w[i] = next[i];
    if (k + kRun < count) read(k + kRun);
#pragma unroll
    for (int i = 0; i < kRun / 4; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(x_block + r * kKBlock + k + 4 * i);
        sum[r] = __fmaf_rn(x.x, w[i].x, sum[r]);
        sum[r] = __fmaf_rn(x.y, w[i].y, sum[r]);
        sum[r] = __fmaf_rn(x.z, w[i].z, sum[r]);
        sum[r] = __fmaf_rn(x.w, w[i].w, sum[r]);
      }
  }
}

template <int kRows>
__global__ void __launch_bounds__(32 * kWarps, 2)
    linear_fma_few_rows_kernel(const __grid_constant__ Params p) {
  __shared__ __align__(16) float x_blocks[kWarps][kRows][kKBlock];
  __shared__ float sums[kWarps][kRows][kColumns];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column0 = int64_t{blockIdx.x} * kColumns;
  const int64_t column = min(column0 + lane, p.n - 1);
  const int64_t k_blocks = (p.k + kKBlock - 1) / kKBlock;
  float total = 0.0f;  // of row `warp`, for the first kRows warps

  for (int64_t first = 0; first < k_blocks; first += kWarps) {
    const int64_t k0 = (first + warp) * kKBlock;
    if (k0 < p.k) {
      for (int i = lane; i < kRows * kKBlock; i += 32) {
        const int64_t r = i / kKBlock, k = k0 + i % kKBlock;
        x_blocks[warp][r][i % kKBlock] =
            r < p.m && k < p.k ? read_one(p.x, p.x_dtype, r * p.x_stride + k) : 0.0f;
      }
      __syncwarp();
      float sum[kRows] = {};
      few_rows_block<kRows>(p, column, k0, x_blocks[warp][0], sum);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[warp][r][lane] = sum[r];
    }
    __syncthreads();
    if (warp < kRows) {
      const int64_t count = min(int64_t{kWarps}, k_blocks - first);
      for (int b = 0; b < count; ++b) total = __fadd_rn(total, sums[b][warp][lane]);
    }
    __syncthreads();
  }
  if (warp < min(int64_t{kRows}, p.m) && column0 + lane < p.n) store_total(p, warp, column, total);
}

// ----------------------------------------------------------------------------------------------------

bool vector_rows(const void* base, DType dtype, int64_t stride) {
  const uintptr_t four = 4 * dtype_size(dtype),
                  row_bytes = static_cast<uintptr_t>(stride) * dtype_size(dtype);
  return (reinterpret_cast<uintptr_t>(base) | row_bytes) % four == 0;
}

template <int kBlockN, int kThreadN>
void launch_tiles(const Params& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.m + kBlockM - 1) / kBlockM),
                  static_cast<unsigned>((p.n + kBlockN - 1) / kBlockN));
  H3S_CUDA_ASSERT(grid.y < 65536);
  linear_fma_tile_kernel<kBlockN, kThreadN><<<grid, kBlockM / kThreadM*(kBlockN / kThreadN), 0, stream>>>(p);
  H3S_CUDA_CHECK_LAUNCH();
}

template <int kRows>
void launch_few_rows(const Params& p, cudaStream_t stream) {
  linear_fma_few_rows_kernel<kRows>
      <<<static_cast<unsigned>((p.n + kColumns - 1) / kColumns), 32 * kWarps, 0, stream>>>(p);
  H3S_CUDA_CHECK_LAUNCH();
}

}  // namespace

void linear_fma(const LinearArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.n == 0) return;
  for (const DType dtype : {args.x_dtype, args.w_dtype, args.y_dtype})
    H3S_CUDA_ASSERT(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16);
  const Params p = {args.x,
                    args.w,
                    args.bias,
                    args.x_scale,
                    args.y,
                    args.x_stride,
                    args.y_stride,
                    args.m,
                    args.n,
                    args.k,
                    args.x_dtype,
                    args.w_dtype,
                    args.y_dtype,
                    vector_rows(args.x, args.x_dtype, args.x_stride),
                    vector_rows(args.w, args.w_dtype, args.k),
                    args.add};
  if (args.m == 1) return launch_few_rows<1>(p, stream);
  if (args.m <= kFewRows) return launch_few_rows<kFewRows>(p, stream);
  if (args.n < 128) return launch_tiles<32, 4>(p, stream);
  launch_tiles<128, 8>(p, stream);
}

}  // namespace h3s::cuda
