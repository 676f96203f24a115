// Linear layers by mma.sync: sm_80 and up, sm_75 for int8 and f16.
//
// Formula: y[m][n] = finish(sum over k of x[m][k] w[n][k]); finish is in device/linear_epilogue.cuh.
//   int8        sums in int32, exact (k < 131072);
//               finish: int to float, x scale, w scale, bias, output type, a rounding each
//   bf16, f16   sums in fp32 by mma, one chain over all of k from zero: steps of 16 in ascending order
//               (sm_75: of 8); finish: bias, output type, a rounding each.
//               Missing k of the last step are zeros.
//
// Shapes: x [m, k], w [n, k], y [m, n], rows along k on 16 bytes. A block computes 128 x 128 of y, a warp 64
// x 32.
//
// Equality: int8 is bit-equal to the CPU definition. The others are bitwise independent of m, n and the
// position of a row or column: every output is the same chain of steps; tails are padded with zero rows.
//
// Floor: 2 m n k operations at the rate of mma.sync. A warp's step of 32 bytes along k reads 3 KiB of shared
// memory for 16 products. Bytes from memory: x and w about once per group of tiles, y once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/device/cp_async.cuh"
#include "backend/cuda/device/ldmatrix.cuh"
#include "backend/cuda/device/linear_epilogue.cuh"
#include "backend/cuda/device/mbarrier.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/mma_int8.cuh"
#include "backend/cuda/linear.h"
#include "backend/cuda/linear_output.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::LinearArgs;
using kernels::LinearInt8Args;

constexpr int kBlockM = 128;
constexpr int kBlockN = 128;
constexpr int kWarpM = 64;  // a thread holds 64 accumulators: two blocks of 256 threads fit a multiprocessor
constexpr int kWarpN = 32;
constexpr int kWarpsN = kBlockN / kWarpN;
constexpr int kThreads = 256;
constexpr int kRowBytes = 64;  // of k in a stage
constexpr int kChunks = kRowBytes / 16;
constexpr int kStepBytes = 32;  // of k in one product
constexpr int kTileBytes = kBlockM * kRowBytes;
constexpr int kStages = 3;  // 48 KiB: what every card gives a block without asking
#if __CUDA_ARCH__ >= 800
constexpr int kResident = 2;  // blocks on a multiprocessor: 128 registers a thread
#else
constexpr int kResident = 1;  // sm_75 has shared memory for one
#endif
constexpr int kGroupM = 8;  // rows of tiles that are walked together along n
static_assert(kBlockM == kBlockN && kThreads == 32 * (kBlockM / kWarpM) * kWarpsN);

struct Params {
  LinearOutput out;
  const char* x;
  const char* w;
  int64_t x_row_bytes, w_row_bytes;
  int64_t k_bytes;
  int32_t tile_rows, tile_columns;
};

// Where 16-byte chunk `chunk` of a row lies in a tile: eight neighbouring rows' equal chunks cover all banks.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return row * kRowBytes + (chunk ^ (row / 2 % 4)) * 16;
}

struct Tile {
  int64_t row0, column0;
};

__device__ __forceinline__ Tile block_tile(const Params& p) {
  const int64_t tile = blockIdx.x, group_tiles = int64_t{kGroupM} * p.tile_columns;
  const int64_t first_row = tile / group_tiles * kGroupM;
  const int32_t rest = static_cast<int32_t>(tile % group_tiles);
  const int32_t rows = static_cast<int32_t>(min(int64_t{kGroupM}, p.tile_rows - first_row));
  return {(first_row + rest % rows) * kBlockM, int64_t{rest / rows} * kBlockN};
}

// The source of one operand's tile for this thread: two chunks a stage, kRowStep rows apart, which have the
// same swizzle.
constexpr int kRowStep = kThreads / kChunks;
static_assert(kRowStep % 8 == 0 && 2 * kRowStep == kBlockM);

struct Source {
  const char* base;
  uint32_t offset;
  int32_t rows;  // that exist, from this thread's first on

  __device__ __forceinline__ Source(const char* data, int64_t row_bytes, int64_t row0, int64_t num_rows) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    rows = static_cast<int32_t>(min(num_rows - row0 - row, int64_t{kBlockM}));
    base = data + (rows > 0 ? (row0 + row) * row_bytes : 0) + chunk * 16;
    offset = chunk_offset(row, chunk);
  }

  // `left`: bytes of k from this thread's chunk on. Where nothing exists the address is not used.
  __device__ __forceinline__ void copy(uint32_t tile, int64_t row_bytes, int64_t k_byte, int64_t left) const {
    cp_async_16_or_zero(tile + offset, base + k_byte, rows > 0 && left > 0);
    cp_async_16_or_zero(tile + offset + kRowStep * kRowBytes, base + k_byte + kRowStep * row_bytes,
                        rows > kRowStep && left > 0);
  }
};

template <typename T>
struct Sums {
  using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
  Sum tiles[kWarpM / 16][kWarpN / 8][4] = {};

  __device__ __forceinline__ void multiply(int i, int j, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, int8_t>) {
      mma_m16n8k32(tiles[i][j], a, b0, b1);
    } else {
      mma_m16n8k16<T>(tiles[i][j], a, b0, b1);
    }
  }
};

template <typename T>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, uint32_t x_tile, uint32_t w_tile, int warp_row,
                                               int warp_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kRowBytes / kStepBytes; ++step) {
    uint32_t b[kWarpN / 16][4];
#pragma unroll
    for (int j = 0; j < kWarpN / 16; ++j)
      ldmatrix_x4(b[j], w_tile + chunk_offset(warp_column + 16 * j + lane / 16 * 8 + lane % 8,
                                              2 * step + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) {
      uint32_t a[4];
      ldmatrix_x4(a, x_tile + chunk_offset(warp_row + 16 * i + lane % 16, 2 * step + lane / 16));
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j)
        sums.multiply(i, j, a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// Brings what the tile is added to into L2 while its products are made: those of few k take less time than
// that.
template <typename TY>
__device__ __forceinline__ void prefetch_output(const LinearOutput& out, const Tile& tile) {
  constexpr int kLineBytes = 128, kLineValues = kLineBytes / sizeof(TY), kLines = kBlockN / kLineValues;
  for (int i = threadIdx.x; i < kBlockM * kLines; i += kThreads) {
    const int64_t row = tile.row0 + i / kLines, column = tile.column0 + i % kLines * kLineValues;
    if (row < out.m && column < out.n)
      prefetch_l2(static_cast<const TY*>(out.y) + row * out.y_stride + column);
  }
}

template <typename T, typename TY>
__global__ void __launch_bounds__(kThreads, kResident) linear_mma_kernel(const __grid_constant__ Params p) {
  __shared__ __align__(128) char shared[kStages * 2 * kTileBytes];
  const uint32_t x_tiles = shared_address(shared), w_tiles = x_tiles + kStages * kTileBytes;
  const Tile tile = block_tile(p);
  const Source x(p.x, p.x_row_bytes, tile.row0, p.out.m), w(p.w, p.w_row_bytes, tile.column0, p.out.n);
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / kWarpsN * kWarpM, warp_column = warp % kWarpsN * kWarpN;
  const int stages = static_cast<int>((p.k_bytes + kRowBytes - 1) / kRowBytes);

  const auto fetch = [&](int stage) {
    if (stage < stages) {
      const int64_t k_byte = int64_t{stage} * kRowBytes,
                    left = p.k_bytes - k_byte - threadIdx.x % kChunks * 16;
      x.copy(x_tiles + stage % kStages * kTileBytes, p.x_row_bytes, k_byte, left);
      w.copy(w_tiles + stage % kStages * kTileBytes, p.w_row_bytes, k_byte, left);
    }
    cp_async_commit();
  };

  Sums<T> sums;
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
  if (p.out.add) prefetch_output<TY>(p.out, tile);
  for (int stage = 0; stage < stages; ++stage) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage has arrived for all, and all are done with the one that is fetched into
                      // next
    fetch(stage + kStages - 1);
    multiply_stage<T>(sums, x_tiles + stage % kStages * kTileBytes, w_tiles + stage % kStages * kTileBytes,
                      warp_row, warp_column);
  }
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i)
    store_piece<TY>(p.out, &sums.tiles[i][0][0], tile.row0 + warp_row + 16 * i, tile.column0 + warp_column);
}

// ----------------------------------------------------------------------------------------------------

template <typename T, typename TY>
void launch(Params p, const LinearOutput& out, int64_t x_stride, int64_t k, cudaStream_t stream) {
  if (out.m == 0 || out.n == 0) return;
  p.out = out;
  p.k_bytes = k * static_cast<int64_t>(sizeof(T));
  p.w_row_bytes = p.k_bytes;
  p.x_row_bytes = x_stride * static_cast<int64_t>(sizeof(T));
  H3S_CUDA_ASSERT(reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.x_row_bytes % 16 == 0);
  H3S_CUDA_ASSERT(reinterpret_cast<uintptr_t>(p.w) % 16 == 0 && p.w_row_bytes % 16 == 0);
  p.tile_rows = static_cast<int32_t>((out.m + kBlockM - 1) / kBlockM);
  p.tile_columns = static_cast<int32_t>((out.n + kBlockN - 1) / kBlockN);
  const int64_t tiles = int64_t{p.tile_rows} * p.tile_columns;
  H3S_CUDA_ASSERT(tiles < int64_t{1} << 31);
  linear_mma_kernel<T, TY><<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(p);
  H3S_CUDA_CHECK_LAUNCH();
}

Params make_params(const void* x, const void* w) {
  Params p = {};
  p.x = static_cast<const char*>(x);
  p.w = static_cast<const char*>(w);
  return p;
}

}  // namespace

void linear_int8_mma(const LinearInt8Args& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.k % 16 == 0 && args.k < 131072);
  const LinearOutput out = make_linear_output(args);
  const Params p = make_params(args.x, args.w);
  switch (args.y_dtype) {
    case DType::kBF16:
      return launch<int8_t, __nv_bfloat16>(p, out, args.k, args.k, stream);
    case DType::kF32:
      return launch<int8_t, float>(p, out, args.k, args.k, stream);
    default:
      H3S_CUDA_ASSERT(!"linear_int8 gives bf16 or f32");
  }
}

void linear_mma(const LinearArgs& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.k % 8 == 0 && args.x_dtype == args.w_dtype);
  const LinearOutput out = make_linear_output(args);
  const Params p = make_params(args.x, args.w);
  const bool to_float = args.y_dtype == DType::kF32;
  H3S_CUDA_ASSERT(to_float || args.y_dtype == args.x_dtype);
  switch (args.x_dtype) {
    case DType::kBF16:
      return to_float ? launch<__nv_bfloat16, float>(p, out, args.x_stride, args.k, stream)
                      : launch<__nv_bfloat16, __nv_bfloat16>(p, out, args.x_stride, args.k, stream);
    case DType::kF16:
      return to_float ? launch<__half, float>(p, out, args.x_stride, args.k, stream)
                      : launch<__half, __half>(p, out, args.x_stride, args.k, stream);
    default:
      H3S_CUDA_ASSERT(!"linear_mma takes bf16 or f16");
  }
}

}  // namespace h3s::cuda
