// Linear layers on sm_90a: TMA loads, wgmma products, one loading warpgroup and two computing ones.
//
// Formula: y[m][n] = finish(sum over k of x[m][k] w[n][k]); finish is in device/linear_epilogue.cuh.
//   int8        sums in int32, exact (k < 131072);
//               finish: int to float, x scale, w scale, bias, output type, a rounding each
//   bf16, f16   sums in fp32 inside wgmma, one chain over all of k: steps of 16 in ascending order from
//               step 0, the first of which starts from zero; finish: bias, output type, a rounding each.
//               Missing k of the last step are zeros.
//
// Shapes: x [m, k], w [n, k], y [m, n], rows along k on 16 bytes. A block computes 128 x kBlockN of y, 64
// rows a warpgroup.
//
// Equality: int8 is bit-equal to the CPU definition. The others are bitwise independent of m, n and the
// position of a row or column: every output is the same chain of steps, whichever tile, grid or cluster;
// tails are padded with zero rows and never change a step. How the sixteen products of a step are added is
// the hardware's; that it does not depend on the width of the instruction (kBlockN is 128 for parts of n <= 128) is a
// tested property of sm_90, not a documented one.
//
// Floor: 2 m n k operations at 4096 a cycle and multiprocessor (16-bit), 8192 (int8): either way 1024 cycles
// for a stage of 128 bytes along k at 128 x 256. In that time shared memory takes in 48 KiB and gives out 80
// KiB to the products, 128 bytes a cycle, all that it has; 128 x 128 a warpgroup would need more. From L2 a
// block fetches 32 KiB a stage: half of w's tile comes from its neighbour in the cluster. Bytes from memory:
// x and w about once per group of tiles, y once.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/cluster_launch.h"
#include "backend/cuda/device/linear_epilogue.cuh"
#include "backend/cuda/device/mbarrier.cuh"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/warpgroup.cuh"
#include "backend/cuda/device/wgmma_shared.cuh"
#include "backend/cuda/linear.h"
#include "backend/cuda/linear_output.cuh"
#include "backend/cuda/tensor_map.h"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::LinearArgs;
using kernels::LinearInt8Args;

constexpr int kConsumers =
    2;  // a third would leave 128 registers a thread at entry: less than its accumulators and addresses
constexpr int kBlockM = 64 * kConsumers;
constexpr int kRowBytes = 128;     // of k in a stage: one swizzled row
constexpr int kStepBytes = 32;     // of k in one wgmma
constexpr int kClusterBlocks = 2;  // neighbours along m: each fetches half of w's tile, for both
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;  // 40 + 2 x 232 <= 512 = 65,536 / 128
constexpr int kSwizzleAlignment = 1024;
constexpr uint32_t kConsumerWarps = 4 * kConsumers;
constexpr int kXBytes = kBlockM * kRowBytes;
constexpr int kMaxSharedBytes = 232448;

#ifndef H3S_LINEAR_GROUP
#define H3S_LINEAR_GROUP 8
#endif
constexpr int kGroupM = H3S_LINEAR_GROUP;  // cluster rows of tiles that are walked together along n:
                                           // near-square patches reuse L2 best

template <int kBlockN>
struct Layout {
  static constexpr int kWBytes = kBlockN * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWBytes;
  static constexpr int kStages =
      (kMaxSharedBytes - kSwizzleAlignment - 256) / kStageBytes;  // 4 for 256 columns, 7 for 128
  static constexpr int kSharedBytes =
      kSwizzleAlignment + kStages * kStageBytes + 2 * kStages * static_cast<int>(sizeof(uint64_t));
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

struct Params {
  LinearOutput out;
  int32_t k_stages;       // ceil(k bytes / kRowBytes)
  int32_t cluster_rows;   // ceil(m / (kBlockM * kClusterBlocks))
  int32_t tile_columns;   // ceil(n / kBlockN)
  int64_t cluster_tiles;  // cluster_rows * tile_columns
  int32_t part_columns;   // tile columns of a part of w
  int32_t part_gap;       // rows of w between the end of a part and the start of the next
};

template <int kBlockN>
struct Shared {
  char* x;  // [kStages][kBlockM][128 bytes], swizzled
  char* w;  // [kStages][kBlockN][128 bytes], swizzled
  uint64_t* full;
  uint64_t* empty;

  __device__ __forceinline__ explicit Shared(char* raw) {
    using L = Layout<kBlockN>;
    const uint32_t misaligned = shared_address(raw) % kSwizzleAlignment;
    x = raw + (misaligned == 0 ? 0 : kSwizzleAlignment - misaligned);
    w = x + L::kStages * kXBytes;
    full = reinterpret_cast<uint64_t*>(w + L::kStages * L::kWBytes);
    empty = full + L::kStages;
  }
};

// Position in the ring of stages: runs on over all tiles of a block.
template <int kStages>
struct Ring {
  uint32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct TilePosition {
  int32_t cluster_row, column;
};

// Groups of kGroupM cluster rows; inside a group down the rows first, then along n.
__device__ __forceinline__ TilePosition tile_position(const Params& p, int64_t tile) {
  const int64_t group_tiles = int64_t{kGroupM} * p.tile_columns;
  const int64_t group = tile / group_tiles;
  const int32_t rest = static_cast<int32_t>(tile - group * group_tiles);
  const int32_t first_row = static_cast<int32_t>(group) * kGroupM;
  const int32_t rows = min(kGroupM, p.cluster_rows - first_row);
  return {first_row + rest % rows, rest / rows};
}

// Rows of w skipped before the tile's columns: row of w = column of y + gap.
__device__ __forceinline__ int32_t gap_before(const Params& p, int32_t column) {
  return column / p.part_columns * p.part_gap;
}

// ---- loading ----

template <int kBlockN, int kKStep>
__device__ __forceinline__ void load_all_tiles(const Params& p, const Shared<kBlockN>& s,
                                               const CUtensorMap* x_map, const CUtensorMap* w_map) {
  using L = Layout<kBlockN>;
  const uint32_t rank = cluster_rank();
  Ring<L::kStages> ring;
  for (int64_t tile = blockIdx.x / kClusterBlocks; tile < p.cluster_tiles;
       tile += gridDim.x / kClusterBlocks) {
    const TilePosition at = tile_position(p, tile);
    const int row0 = (at.cluster_row * kClusterBlocks + static_cast<int>(rank)) * kBlockM;
    const int half = static_cast<int>(rank) * (kBlockN / 2);
    const int gap = gap_before(p, at.column);
    for (int i = 0; i < p.k_stages; ++i) {
      mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      uint64_t* full = &s.full[ring.stage];
      mbarrier_arrive_expect_tx(full, L::kStageBytes);
      tma_load_3d(s.x + ring.stage * kXBytes, x_map, full, i * kKStep, row0, 0);
      tma_load_3d_multicast(s.w + ring.stage * L::kWBytes + half * kRowBytes, w_map, full, i * kKStep,
                            at.column * kBlockN + gap + half, 0, 0b11);
      ring.next();
    }
  }
}

// ---- computing ----

// Frees a stage, in every block of the cluster that fills it.
__device__ __forceinline__ void release(uint64_t* empty) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane < kClusterBlocks) mbarrier_arrive_cluster(empty, lane);
}

template <typename T, typename TY, int kBlockN>
__device__ __forceinline__ void compute_all_tiles(const Params& p, const Shared<kBlockN>& s, int consumer) {
  using L = Layout<kBlockN>;
  using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
  const uint32_t rank = cluster_rank();
  const uint32_t x_desc = wgmma_descriptor(shared_address(s.x) + consumer * 64 * kRowBytes, 0);
  const uint32_t w_desc = wgmma_descriptor(shared_address(s.w), 0);
  const int warp = threadIdx.x % 128 / 32;
  Ring<L::kStages> ring;

  for (int64_t tile = blockIdx.x / kClusterBlocks; tile < p.cluster_tiles;
       tile += gridDim.x / kClusterBlocks) {
    Sum sums[kBlockN / 2];
    uint32_t previous = 0;
    for (int i = 0; i < p.k_stages; ++i) {
      mbarrier_wait(&s.full[ring.stage], ring.parity);
      wgmma_pin(sums);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kRowBytes / kStepBytes; ++step) {
        wgmma_shared<T>(sums, x_desc + (ring.stage * kXBytes + step * kStepBytes) / 16,
                        w_desc + (ring.stage * L::kWBytes + step * kStepBytes) / 16, i + step > 0);
      }
      wgmma_commit();
      if (i > 0) {
        wgmma_wait<1>();
        release(&s.empty[previous]);
      }
      previous = ring.stage;
      ring.next();
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release(&s.empty[previous]);

    const TilePosition at = tile_position(p, tile);
    const int64_t row0 =
        (int64_t{at.cluster_row} * kClusterBlocks + rank) * kBlockM + consumer * 64 + warp * 16;
    LinearOutput out = p.out;
    const int32_t gap = gap_before(p, at.column);
    out.w_scale += gap;
    if (out.bias != nullptr) out.bias += gap;
#pragma unroll
    for (int j = 0; j < kBlockN / 32; ++j) {
      store_piece<TY>(out, &sums[16 * j], row0, int64_t{at.column} * kBlockN + 32 * j);
    }
  }
}

template <typename T, typename TY, int kBlockN>
__global__ void __launch_bounds__(kThreads, 1)
    linear_sm90_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ Params params) {
  extern __shared__ char raw_shared[];
  const Shared<kBlockN> shared(raw_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Layout<kBlockN>::kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], kConsumerWarps * kClusterBlocks);
    }
    mbarrier_fence_init();
  }
  cluster_sync();

  const int warpgroup =
      __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);  // the compiler, too, sees that a warp agrees on it
  if (warpgroup == 0) {
    registers_shrink<kProducerRegisters>();
    if (threadIdx.x == 0) {
      tma_prefetch_map(&x_map);
      tma_prefetch_map(&w_map);
      load_all_tiles<kBlockN, kRowBytes / static_cast<int>(sizeof(T))>(params, shared, &x_map, &w_map);
    }
  } else {
    registers_grow<kConsumerRegisters>();
    compute_all_tiles<T, TY, kBlockN>(params, shared, warpgroup - 1);
  }
  // A block must not leave while its neighbour can still write into it or arrive on its barriers.
  cluster_sync();
}

// ----------------------------------------------------------------------------------------------------

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kMapType<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<__half> = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

// [rows, k] in boxes of box_rows x 128 bytes, each row of a box one swizzled line. Stride in elements.
template <typename T>
CUtensorMap make_map(const void* data, int64_t rows, int64_t k, int64_t row_stride, int box_rows) {
  const auto row_bytes = static_cast<cuuint64_t>(row_stride) * sizeof(T);
  H3S_CUDA_ASSERT(reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0);
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows), 1};
  const cuuint64_t strides[2] = {row_bytes, row_bytes * static_cast<cuuint64_t>(rows)};
  const cuuint32_t box[3] = {kRowBytes / sizeof(T), static_cast<cuuint32_t>(box_rows), 1};
  return encode_tensor_map(kMapType<T>, data, dims, strides, box);
}

struct Operands {
  const void* x;
  int64_t x_stride;
  const void* w;
  int64_t k;
  kernels::Parts parts;
  int64_t w_rows;  // spanned, gaps between parts included
};

template <typename T, typename TY, int kBlockN>
void launch(const Operands& in, const LinearOutput& out, cudaStream_t stream) {
  const CUtensorMap x_map = make_map<T>(in.x, out.m, in.k, in.x_stride, kBlockM);
  const CUtensorMap w_map = make_map<T>(in.w, in.w_rows, in.k, in.k, kBlockN / kClusterBlocks);

  Params p = {};
  p.out = out;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  p.k_stages = static_cast<int32_t>(ceil_div(in.k * static_cast<int64_t>(sizeof(T)), kRowBytes));
  p.cluster_rows = static_cast<int32_t>(ceil_div(out.m, kBlockM * kClusterBlocks));
  p.tile_columns = static_cast<int32_t>(ceil_div(out.n, kBlockN));
  p.cluster_tiles = int64_t{p.cluster_rows} * p.tile_columns;
  const int64_t part_n = out.n / in.parts.count;
  H3S_CUDA_ASSERT(in.parts.count == 1 || part_n % kBlockN == 0);
  p.part_columns = static_cast<int32_t>(ceil_div(part_n, kBlockN));
  p.part_gap = in.parts.count == 1 ? 0 : static_cast<int32_t>(in.parts.stride - part_n);

  const ClusterLaunch shape = {kClusterBlocks, kThreads, Layout<kBlockN>::kSharedBytes,
                               p.cluster_tiles * kClusterBlocks};
  launch_clusters(linear_sm90_kernel<T, TY, kBlockN>, shape, stream, x_map, w_map, p);
}

// 128 columns: one head's slice of a fused projection would waste half of a wider tile.
template <typename T, typename TY>
void launch_width(const Operands& in, const LinearOutput& out, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 31;
  H3S_CUDA_ASSERT(out.m >= 0 && out.m <= kMaxRows - 1024 && in.w_rows <= kMaxRows - 1024 && in.k >= 1 &&
                  in.k <= kMaxRows - 1024);
  if (out.m == 0 || out.n == 0) return;
  if (out.n / in.parts.count <= kNarrowTile) return launch<T, TY, kNarrowTile>(in, out, stream);
  launch<T, TY, kWideTile>(in, out, stream);
}

}  // namespace

void linear_int8_sm90(const LinearInt8Args& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.k % 16 == 0 && args.k < 131072);
  const LinearOutput out = make_linear_output(args);
  const Operands in = {args.x, args.k, args.w, args.k, args.parts, kernels::spanned_rows(args)};
  switch (args.y_dtype) {
    case DType::kBF16:
      return launch_width<int8_t, __nv_bfloat16>(in, out, stream);
    case DType::kF32:
      return launch_width<int8_t, float>(in, out, stream);
    default:
      H3S_CUDA_ASSERT(!"linear_int8 gives bf16 or f32");
  }
}

void linear_sm90(const LinearArgs& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.k % 8 == 0 && args.x_dtype == args.w_dtype);
  const LinearOutput out = make_linear_output(args);
  const Operands in = {args.x, args.x_stride, args.w, args.k, args.parts, kernels::spanned_rows(args)};
  const bool to_float = args.y_dtype == DType::kF32;
  H3S_CUDA_ASSERT(to_float || args.y_dtype == args.x_dtype);
  switch (args.x_dtype) {
    case DType::kBF16:
      return to_float ? launch_width<__nv_bfloat16, float>(in, out, stream)
                      : launch_width<__nv_bfloat16, __nv_bfloat16>(in, out, stream);
    case DType::kF16:
      return to_float ? launch_width<__half, float>(in, out, stream)
                      : launch_width<__half, __half>(in, out, stream);
    default:
      H3S_CUDA_ASSERT(!"linear_sm90 takes bf16 or f16");
  }
}

}  // namespace h3s::cuda
