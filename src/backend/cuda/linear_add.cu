// A product of few k onto what y holds: a LoRA's second product. mma.sync, sm_80 and up.
//
// Formula: y[m][n] = round(f(sum over k of x[m][k] w[n][k] + y[m][n])), sums in fp32 by mma, one chain from
// zero: steps of 16 in ascending order. Bit for bit what linear_mma gives.
//
// Shapes: x [m, k], w [n, k], y [m, n], bf16 or f16 alike, k up to 128 and a multiple of 8, n a multiple of
// 8, all rows on 16 bytes. A block keeps 128 rows of w as fragments in registers, 64 a thread, and walks
// 1,024 rows of y in tiles of 64, whose copies to shared memory are under way while others are worked on. A
// warp computes 32 x 32 of a tile.
//
// Floor: 4 m n bytes of y at the copy rate; x comes from L2, 2 m k n / 128 bytes. 2 m n k operations at k =
// 128 take about half of that time at the rate of mma.sync.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/cp_async.cuh"
#include "backend/cuda/device/ldmatrix.cuh"
#include "backend/cuda/device/linear_epilogue.cuh"
#include "backend/cuda/device/mbarrier.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/linear.h"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::LinearArgs;

constexpr int kTileRows = 64;
constexpr int kTileColumns = 128;
constexpr int kBlockTiles = 16;  // that a block walks
constexpr int kWarpTile = 32;    // rows and columns of a warp
constexpr int kWarpsN = kTileColumns / kWarpTile;
constexpr int kThreads = 32 * kWarpsN * (kTileRows / kWarpTile);
constexpr int kSteps = static_cast<int>(kMaxAddedK) / 16;
constexpr int kRowBytes = 256;  // 128 elements: k of x and w, columns of y
constexpr int kChunks = kRowBytes / 16;
constexpr int kTileBytes = kTileRows * kRowBytes;
constexpr int kStageBytes = 2 * kTileBytes;  // of x and of y; also the block's rows of w
constexpr int kStages = 3;                   // 96 KiB: a block on consumer cards, two on sm_80 and sm_90
constexpr int kSharedBytes = kStages * kStageBytes;
static_assert(kMaxAddedK * 2 == kRowBytes && kTileColumns * kRowBytes == kStageBytes);

struct Params {
  const char *x, *w;
  char* y;
  int64_t x_row_bytes, y_row_bytes;
  int64_t m, n;
  int32_t k;
  int32_t strips;  // of kTileColumns columns
};

// Where 16-byte chunk `chunk` of a row lies: eight neighbouring rows' equal chunks cover all banks.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ row % 8) * 16;
}

// Starts copies of rows [0, kRows) from `src`, zeros from row `rows` and chunk `chunks` on.
template <int kRows>
__device__ __forceinline__ void copy_rows(uint32_t dst, const char* src, int64_t row_bytes, int64_t rows,
                                          int chunks) {
  const int chunk = threadIdx.x % kChunks;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int row = threadIdx.x / kChunks + i * (kThreads / kChunks);
    const bool valid = row < rows && chunk < chunks;
    cp_async_16_or_zero(dst + chunk_offset(row, chunk), src + (valid ? row * row_bytes + chunk * 16 : 0),
                        valid);
  }
}

// The warp's 32 rows of w.
struct Fragments {
  uint32_t b[kSteps][kWarpTile / 16][4];

  __device__ __forceinline__ Fragments(uint32_t w, int warp_column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int j = 0; j < kWarpTile / 16; ++j)
        ldmatrix_x4(b[step][j], w + chunk_offset(warp_column + 16 * j + lane / 16 * 8 + lane % 8,
                                                 2 * step + lane / 8 % 2));
  }
};

// 16 x 32 sums from `row` of x on, in the layout of linear_epilogue.cuh.
template <typename T>
__device__ __forceinline__ void multiply(const Fragments& w, uint32_t x, int row, int k,
                                         float (&sums)[kWarpTile / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (16 * step >= k) break;
    uint32_t a[4];
    ldmatrix_x4(a, x + chunk_offset(row + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int j = 0; j < kWarpTile / 8; ++j)
      mma_m16n8k16<T>(sums[j], a, w.b[step][j / 2][j % 2 * 2], w.b[step][j / 2][j % 2 * 2 + 1]);
  }
}

// Row r of a quad of lanes (0 or 8 below lane / 4): eight columns of `held`, plus the sums, rounded.
template <typename T>
__device__ __forceinline__ uint4 add_row(const float (&sums)[kWarpTile / 8][4], int r, uint4 held) {
  uint32_t v[4] = {held.x, held.y, held.z, held.w};
  transpose_quad(v);
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float2 before = unpack_output<T>(v[t]);
    v[t] = pack_output<T>(__fadd_rn(sums[t][2 * r], before.x), __fadd_rn(sums[t][2 * r + 1], before.y));
  }
  transpose_quad(v);
  return make_uint4(v[0], v[1], v[2], v[3]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) linear_add_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t stages = shared_address(shared);
  const int64_t row0 = int64_t{blockIdx.x / p.strips} * (kBlockTiles * kTileRows);
  const int64_t column0 = int64_t{blockIdx.x % p.strips} * kTileColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / kWarpsN * kWarpTile, warp_column = warp % kWarpsN * kWarpTile;
  const int x_chunks = p.k / 8, y_chunks = static_cast<int>(min(p.n - column0, int64_t{kTileColumns})) / 8;
  const int tiles = static_cast<int>(min((p.m - row0 + kTileRows - 1) / kTileRows, int64_t{kBlockTiles}));
  char* y0 = p.y + column0 * 2;

  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      const int64_t row = row0 + tile * kTileRows;
      const uint32_t x = stages + tile % kStages * kStageBytes;
      copy_rows<kTileRows>(x, p.x + row * p.x_row_bytes, p.x_row_bytes, p.m - row, x_chunks);
      copy_rows<kTileRows>(x + kTileBytes, y0 + row * p.y_row_bytes, p.y_row_bytes, p.m - row, y_chunks);
    }
    cp_async_commit();
  };

  const uint32_t w = stages + (kStages - 1) * kStageBytes;  // the stage that is fetched into last
  copy_rows<kTileColumns>(w, p.w + column0 * p.k * 2, p.k * 2, p.n - column0, x_chunks);
  cp_async_commit();
  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  cp_async_wait<kStages - 1>();
  __syncthreads();
  const Fragments fragments(w, warp_column);

  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage has arrived for all, and all are done with the one that is fetched into
                      // next
    fetch(tile + kStages - 1);
    const int stage = tile % kStages * kStageBytes;
#pragma unroll
    for (int i = 0; i < kWarpTile / 16; ++i) {
      float sums[kWarpTile / 8][4] = {};
      multiply<T>(fragments, stages + stage, warp_row + 16 * i, p.k, sums);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + 16 * i + 8 * r + lane / 4, chunk = warp_column / 8 + lane % 4;
        const uint4 sum = add_row<T>(
            sums, r, *reinterpret_cast<const uint4*>(shared + stage + kTileBytes + chunk_offset(row, chunk)));
        const int64_t y_row = row0 + tile * kTileRows + row;
        if (y_row < p.m && chunk < y_chunks)
          *reinterpret_cast<uint4*>(y0 + y_row * p.y_row_bytes + chunk * 16) = sum;
      }
    }
  }
  cp_async_wait<0>();
}

// ----------------------------------------------------------------------------------------------------

template <typename T>
void launch(const Params& p, cudaStream_t stream) {
  const auto kernel = linear_add_kernel<T>;
  const int64_t rows = kBlockTiles * kTileRows, blocks = (p.m + rows - 1) / rows * p.strips;
  H3S_CUDA_ASSERT(blocks < int64_t{1} << 31);
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, stream>>>(p);
  H3S_CUDA_CHECK_LAUNCH();
}

}  // namespace

bool takes_linear_add(const LinearArgs& args) {
  const auto address = reinterpret_cast<uintptr_t>(args.y);
  return args.add && args.bias == nullptr && args.x_scale == nullptr && args.k <= kMaxAddedK &&
         args.y_dtype == args.x_dtype && args.n % 8 == 0 && args.y_stride % 8 == 0 && address % 16 == 0;
}

void linear_add(const LinearArgs& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(takes_linear_add(args) && args.k % 8 == 0 && args.w_dtype == args.x_dtype);
  H3S_CUDA_ASSERT(args.x_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.x) % 16 == 0 &&
                  reinterpret_cast<uintptr_t>(args.w) % 16 == 0);
  if (args.m == 0 || args.n == 0) return;
  const Params p = {.x = static_cast<const char*>(args.x),
                    .w = static_cast<const char*>(args.w),
                    .y = static_cast<char*>(args.y),
                    .x_row_bytes = args.x_stride * 2,
                    .y_row_bytes = args.y_stride * 2,
                    .m = args.m,
                    .n = args.n,
                    .k = static_cast<int32_t>(args.k),
                    .strips = static_cast<int32_t>((args.n + kTileColumns - 1) / kTileColumns)};
  args.x_dtype == DType::kBF16 ? launch<__nv_bfloat16>(p, stream) : launch<__half>(p, stream);
}

}  // namespace h3s::cuda
