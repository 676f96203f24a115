// Exact attention on sm_90a: TMA loads, wgmma products, one loading warpgroup and two computing ones.
//
// Formula, per head and query row, over tiles of kBlockN keys in ascending order from key 0
// (state m = -inf, l = 0, o = 0):
//
//   s_j = q . k_j                      fp32 accumulation inside wgmma, head dim in steps of 16
//   m' = max(m, f(c * max_j s_j))      c = f(scale * log2 e)
//   p_j = exp2(fma(s_j, c, -m'))       special function unit, denormals flushed
//   a = exp2(m - m')
//   l = a l + sum_j p_j                p_j unrounded; each lane of a quad sums its own columns, ascending
//   o = a o + sum_j round16(p_j) v_j   fp32 accumulation inside wgmma, keys in steps of 16
//   m = m'
//
// and at the end l = (l0 + l1) + (l2 + l3) over the quad, O = round16(o * f(1 / l)),
// lse = f(f(m + log2 l) * ln 2). Keys past the last one get s = -inf; their K and V are zeros. round16 is to
// nearest even, f is one fp32 rounding.
//
// Shapes: Q [H, Sq, 128], K and V [H, Sk, 128], O [Sq, H, 128] by strides. A block works on 64 query rows per
// computing warpgroup and walks all keys of its head.
//
// Equality: a row's bits depend on that row of Q and on K, V of its head alone. Tiles start at absolute key 0
// and have one width; nothing is split over keys; row tails are padded with zero rows and never change the
// instruction shape; grid, cluster and schedule only choose which block computes a row. The one decision
// taken for a whole warp, not to rescale o, is taken when a is exactly 1 in all of its rows, where rescaling
// would change nothing.
//
// Floor: 4 Sq Sk 128 H flop at 4096 a cycle and multiprocessor. exp2 needs Sq Sk H results at 16 a cycle and
// multiprocessor, half of that time, so it must run beside the products: a warpgroup takes the exponentials
// of tile j while its P V of tile j - 1 runs, and while the other warpgroup multiplies.
//
// Bytes, per tile of keys and 128 rows: 64 KiB arrive in shared memory and 2 x 64 KiB are read by products of
// 2,048 cycles, 96 of the 128 bytes a cycle that shared memory gives. This is why Q stays in registers: from
// shared memory it would take 16 more, and 32 while Q K^T runs. From L2, K and V come once for 256 rows (see
// kClusterBlocks): 1 byte for 256 flop.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention.h"
#include "backend/cuda/check.h"
#include "backend/cuda/cluster_launch.h"
#include "backend/cuda/device/ldmatrix.cuh"
#include "backend/cuda/device/mbarrier.cuh"
#include "backend/cuda/device/softmax.cuh"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/warpgroup.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/tensor_map.h"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::AttentionArgs;

constexpr int kHeadDim = 128;
constexpr int kHalfDim = 64;  // 128 bytes: one swizzled row; a tile is stored as two such halves
constexpr int kHalfRowBytes = 128;
constexpr int kConsumers = 2;
constexpr int kBlockM = 64 * kConsumers;
constexpr int kBlockN = 128;  // a thread holds S 64, P 32, O 64 and Q 32 registers: 192 of 232
constexpr int kStages = 3;    // K and V each: 6 x 32 KiB, with Q 32 KiB: 224 of 227 KiB
// The blocks of a cluster share K and V: each fetches half of a tile, for both.
constexpr int kClusterBlocks = 2;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kProducerRegisters = 40;   // 24 would spill
constexpr int kConsumerRegisters = 232;  // 40 + 2 x 232 <= 512 = 65,536 / 128
constexpr int kStepK = 16;               // reduction length of one wgmma

constexpr int kQHalfBytes = kBlockM * kHalfRowBytes;
constexpr int kKvHalfBytes = kBlockN * kHalfRowBytes;
constexpr int kQBytes = 2 * kQHalfBytes;
constexpr int kKvBytes = 2 * kKvHalfBytes;
constexpr int kSwizzleAlignment = 1024;
constexpr uint32_t kConsumerWarps = 4 * kConsumers;  // each arrives once when it is done with a buffer

struct Barriers {
  uint64_t q_full, q_empty;
  uint64_t k_full[kStages], k_empty[kStages];
  uint64_t v_full[kStages], v_empty[kStages];
};
constexpr int kSharedBytes =
    kSwizzleAlignment + kQBytes + 2 * kStages * kKvBytes + static_cast<int>(sizeof(Barriers));
static_assert(kSharedBytes <= 232448, "a block of sm_90 has at most 227 KiB of shared memory");

struct Params {
  char* o;
  float* lse;
  int64_t o_head_stride, o_token_stride;  // bytes
  int64_t q_tokens;
  int32_t kv_tokens;
  int32_t num_kv_tiles;
  int32_t num_m_tiles;  // a multiple of kClusterBlocks, so that the blocks of a cluster share a head
  int64_t num_tiles;    // num_m_tiles * heads
  float score_scale;    // scale * log2 e
};

struct Shared {
  char* q;  // [2][kBlockM][64], swizzled
  char* k;  // [kStages][2][kBlockN][64], swizzled
  char* v;  // the same
  Barriers* bars;
};

__device__ __forceinline__ Shared carve_shared(char* raw) {
  const uint32_t misaligned = shared_address(raw) % kSwizzleAlignment;
  Shared s;
  s.q = raw + (misaligned == 0 ? 0 : kSwizzleAlignment - misaligned);
  s.k = s.q + kQBytes;
  s.v = s.k + kStages * kKvBytes;
  s.bars = reinterpret_cast<Barriers*>(s.v + kStages * kKvBytes);
  return s;
}

__device__ __forceinline__ void init_barriers(Barriers* bars) {
  mbarrier_init(&bars->q_full, 1);
  mbarrier_init(&bars->q_empty, kConsumerWarps);
  for (int i = 0; i < kStages; ++i) {
    mbarrier_init(&bars->k_full[i], 1);
    mbarrier_init(&bars->v_full[i], 1);
    mbarrier_init(&bars->k_empty[i], kConsumerWarps * kClusterBlocks);
    mbarrier_init(&bars->v_empty[i], kConsumerWarps * kClusterBlocks);
  }
  mbarrier_fence_init();
}

// Position in the ring of K or V buffers: runs on over all tiles of a block.
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

// ---- loading ----

// Fetches this block's half of a tile of K or V, for the whole cluster; both halves complete on `full`.
__device__ __forceinline__ void load_kv_tile(char* dst, const CUtensorMap* map, uint64_t* full, int key,
                                             int head, uint32_t rank) {
  static_assert(kClusterBlocks == 2);
  mbarrier_arrive_expect_tx(full, kKvBytes);
  tma_load_3d_multicast(dst + rank * kKvHalfBytes, map, full, static_cast<int>(rank) * kHalfDim, key, head,
                        0b11);
}

__device__ __forceinline__ void load_all_tiles(const Params& p, const Shared& s, const CUtensorMap* q_map,
                                               const CUtensorMap* k_map, const CUtensorMap* v_map) {
  const uint32_t rank = cluster_rank();
  Ring k_ring, v_ring;
  uint32_t q_parity = 0;
  for (int64_t tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
    const int head = static_cast<int>(tile / p.num_m_tiles);
    const int row0 = static_cast<int>(tile % p.num_m_tiles) * kBlockM;

    mbarrier_wait(&s.bars->q_empty, q_parity ^ 1);
    mbarrier_arrive_expect_tx(&s.bars->q_full, kQBytes);
    tma_load_3d(s.q, q_map, &s.bars->q_full, 0, row0, head);
    tma_load_3d(s.q + kQHalfBytes, q_map, &s.bars->q_full, kHalfDim, row0, head);
    q_parity ^= 1;

    // In the order of use: K0, K1, V0, K2, V1, ...
    for (int t = 0; t <= p.num_kv_tiles; ++t) {
      if (t < p.num_kv_tiles) {
        mbarrier_wait(&s.bars->k_empty[k_ring.stage], k_ring.parity ^ 1);
        load_kv_tile(s.k + k_ring.stage * kKvBytes, k_map, &s.bars->k_full[k_ring.stage], t * kBlockN, head,
                     rank);
        k_ring.next();
      }
      if (t > 0) {
        mbarrier_wait(&s.bars->v_empty[v_ring.stage], v_ring.parity ^ 1);
        load_kv_tile(s.v + v_ring.stage * kKvBytes, v_map, &s.bars->v_full[v_ring.stage], (t - 1) * kBlockN,
                     head, rank);
        v_ring.next();
      }
    }
  }
}

// ---- computing ----

// Frees a K or V buffer, in every block of the cluster that fills it.
__device__ __forceinline__ void release_kv(uint64_t* empty) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane < kClusterBlocks) mbarrier_arrive_cluster(empty, lane);
}

// The A fragments of this warp's 16 rows, all eight steps; then frees Q's buffer.
__device__ __forceinline__ void take_queries(uint32_t (&q)[kHeadDim / 4], const Shared& s, int consumer) {
  const int lane = threadIdx.x % 32;
  const uint32_t row = consumer * 64 + (threadIdx.x % 128) / 32 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kHeadDim / kStepK; ++step) {
    const uint32_t chunk = step % 4 * 2 + lane / 16;
    ldmatrix_x4(&q[4 * step], shared_address(s.q) + step / 4 * kQHalfBytes + row * kHalfRowBytes +
                                  (chunk ^ (row % 8)) * 16);
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(&s.bars->q_empty);
}

// S = Q K^T for the 64 rows of this warpgroup. Issues only; one group.
template <typename T>
__device__ __forceinline__ void issue_scores(float (&s)[kBlockN / 2], const uint32_t (&q)[kHeadDim / 4],
                                             uint32_t k_desc) {
  wgmma_pin(s);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kHeadDim / kStepK; ++step) {
    const uint32_t k = k_desc + (step / 4 * kKvHalfBytes + step % 4 * kStepK * 2) / 16;
    wgmma_m64n128k16<T, 0>(s, &q[4 * step], k, step > 0);
  }
  wgmma_commit();
}

// O += P V. Issues only; one group.
template <typename T>
__device__ __forceinline__ void issue_values(float (&o)[kHeadDim / 2], const uint32_t (&p)[kBlockN / 4],
                                             uint32_t v_desc) {
  wgmma_pin(o);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBlockN / kStepK; ++step) {
    wgmma_m64n128k16<T, 1>(o, &p[4 * step], v_desc + step * kStepK * kHalfRowBytes / 16, 1);
  }
  wgmma_commit();
}

__device__ __forceinline__ void mask_tail(float (&s)[kBlockN / 2], int valid_keys) {
  const int column0 = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kBlockN / 2; ++i) {
    const int column = 8 * (i / 4) + column0 + i % 2;
    if (column >= valid_keys) s[i] = -INFINITY;
  }
}

// The two rows of a thread: index 0 is row lane / 4 of the warp's 16, index 1 the row 8 below.
struct RowState {
  float max2[2] = {-INFINITY, -INFINITY};  // running maximum times c, base-2 units
  float sum[2] = {0.0f, 0.0f};             // this lane's share of l
  float rescale[2];  // exp2 of the last change of max2: what o still has to be multiplied by
};

// Turns scores into p in place and updates the row state.
__device__ __forceinline__ void softmax_tile(float (&s)[kBlockN / 2], RowState& row, float c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int j = 1; j < kBlockN / 8; ++j) m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    const float max2 = fmaxf(row.max2[r], __fmul_rn(quad_max(m), c));
    row.rescale[r] = exp2_unit(row.max2[r] - max2);
    row.max2[r] = max2;
    row.sum[r] = __fmul_rn(row.sum[r], row.rescale[r]);
  }
#pragma unroll
  for (int i = 0; i < kBlockN / 2; ++i) {
    const int r = i / 2 % 2;
    s[i] = exp2_unit(__fmaf_rn(s[i], c, -row.max2[r]));
    row.sum[r] = __fadd_rn(row.sum[r], s[i]);
  }
}

__device__ __forceinline__ void rescale_output(float (&o)[kHeadDim / 2], const RowState& row) {
  // Exact to skip: x * 1 is x. Late in a long row new maxima are rare.
  if (!__any_sync(0xffffffffu, (row.rescale[0] != 1.0f) | (row.rescale[1] != 1.0f))) return;
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) o[i] = __fmul_rn(o[i], row.rescale[i / 2 % 2]);
}

template <typename T>
__device__ __forceinline__ void pack_probabilities(uint32_t (&p)[kBlockN / 4],
                                                   const float (&s)[kBlockN / 2]) {
#pragma unroll
  for (int i = 0; i < kBlockN / 4; ++i) p[i] = pack16<T>(s[2 * i], s[2 * i + 1]);
}

template <typename T>
__device__ __forceinline__ void store_rows(const Params& p, const float (&o)[kHeadDim / 2],
                                           const RowState& row, int64_t head, int64_t row0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t token = row0 + 8 * r + lane / 4;
    const float sum = quad_sum(row.sum[r]);
    const float inverse = __frcp_rn(sum);
    if (token >= p.q_tokens) continue;
    uint32_t* dst =
        reinterpret_cast<uint32_t*>(p.o + head * p.o_head_stride + token * p.o_token_stride) + lane % 4;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      dst[4 * j] = pack16<T>(__fmul_rn(o[4 * j + 2 * r], inverse), __fmul_rn(o[4 * j + 2 * r + 1], inverse));
    }
    if (p.lse != nullptr && lane % 4 == 0)
      p.lse[head * p.q_tokens + token] = lse_from_base2(row.max2[r], sum);
  }
}

template <typename T>
__device__ __forceinline__ void compute_all_tiles(const Params& p, const Shared& s, int consumer) {
  const float c = p.score_scale;
  const uint32_t k_desc = wgmma_descriptor(shared_address(s.k), 0);
  const uint32_t v_desc = wgmma_descriptor(shared_address(s.v), kKvHalfBytes);
  const int tail_keys = p.kv_tokens - (p.num_kv_tiles - 1) * kBlockN;
  Ring k_ring, v_ring;
  uint32_t q_parity = 0;

  for (int64_t tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
    float o[kHeadDim / 2];
    float scores[kBlockN / 2];
    uint32_t probs[kBlockN / 4];
    uint32_t q[kHeadDim / 4];
    RowState row;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;

    mbarrier_wait(&s.bars->q_full, q_parity);
    q_parity ^= 1;
    take_queries(q, s, consumer);

    // Tile 0: scores and probabilities; its V product is issued one step later, beside the scores of tile 1.
    mbarrier_wait(&s.bars->k_full[k_ring.stage], k_ring.parity);
    issue_scores<T>(scores, q, k_desc + k_ring.stage * (kKvBytes / 16));
    wgmma_wait<0>();
    wgmma_pin(scores);
    release_kv(&s.bars->k_empty[k_ring.stage]);
    k_ring.next();
    if (p.num_kv_tiles == 1 && tail_keys < kBlockN) mask_tail(scores, tail_keys);
    softmax_tile(scores, row, c);
    pack_probabilities<T>(probs, scores);

    auto step = [&](auto is_last) {
      mbarrier_wait(&s.bars->k_full[k_ring.stage], k_ring.parity);
      issue_scores<T>(scores, q, k_desc + k_ring.stage * (kKvBytes / 16));
      mbarrier_wait(&s.bars->v_full[v_ring.stage], v_ring.parity);
      issue_values<T>(o, probs, v_desc + v_ring.stage * (kKvBytes / 16));
      wgmma_wait<1>();
      wgmma_pin(scores);
      release_kv(&s.bars->k_empty[k_ring.stage]);
      k_ring.next();
      if constexpr (is_last.value) {
        if (tail_keys < kBlockN) mask_tail(scores, tail_keys);
      }
      softmax_tile(scores, row, c);
      wgmma_wait<0>();
      wgmma_pin(o);
      wgmma_pin(probs);
      wgmma_pin(scores);
      release_kv(&s.bars->v_empty[v_ring.stage]);
      v_ring.next();
      rescale_output(o, row);
      pack_probabilities<T>(probs, scores);
    };
    for (int t = 1; t < p.num_kv_tiles - 1; ++t) step(std::false_type{});
    if (p.num_kv_tiles > 1) step(std::true_type{});

    mbarrier_wait(&s.bars->v_full[v_ring.stage], v_ring.parity);
    issue_values<T>(o, probs, v_desc + v_ring.stage * (kKvBytes / 16));
    wgmma_wait<0>();
    wgmma_pin(o);
    release_kv(&s.bars->v_empty[v_ring.stage]);
    v_ring.next();

    const int64_t row0 = (tile % p.num_m_tiles) * kBlockM + consumer * 64 + (threadIdx.x % 128) / 32 * 16;
    store_rows<T>(p, o, row, tile / p.num_m_tiles, row0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    attention_sm90_kernel(const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map, const __grid_constant__ Params params) {
  extern __shared__ char raw_shared[];
  const Shared shared = carve_shared(raw_shared);
  if (threadIdx.x == 0) init_barriers(shared.bars);
  cluster_sync();

  const int warpgroup =
      __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);  // the compiler, too, sees that a warp agrees on it
  if (warpgroup == 0) {
    registers_shrink<kProducerRegisters>();
    if (threadIdx.x == 0) {
      tma_prefetch_map(&q_map);
      tma_prefetch_map(&k_map);
      tma_prefetch_map(&v_map);
      load_all_tiles(params, shared, &q_map, &k_map, &v_map);
    }
  } else {
    registers_grow<kConsumerRegisters>();
    compute_all_tiles<T>(params, shared, warpgroup - 1);
  }
  // A block must not leave while its neighbour can still write into it or arrive on its barriers.
  cluster_sync();
}

// ---------------------------------------------------------------------------------------------------------

// [heads, tokens, 128] in boxes of [1, box_tokens, 64], each row of a box one swizzled line of 128 bytes.
// Strides in elements.
CUtensorMap make_map(const void* data, DType dtype, int64_t tokens, int64_t heads, int64_t token_stride,
                     int64_t head_stride, int box_tokens) {
  const cuuint64_t dims[3] = {kHeadDim, static_cast<cuuint64_t>(tokens), static_cast<cuuint64_t>(heads)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(token_stride) * 2,
                                 static_cast<cuuint64_t>(head_stride) * 2};
  const cuuint32_t box[3] = {kHalfDim, static_cast<cuuint32_t>(box_tokens), 1};
  return encode_tensor_map(
      dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, data, dims,
      strides, box);
}

Params make_params(const AttentionArgs& args) {
  Params p = {};
  p.o = static_cast<char*>(args.o);
  p.lse = args.lse;
  p.o_head_stride = args.o_head_stride * 2;
  p.o_token_stride = args.o_token_stride * 2;
  p.q_tokens = args.q_tokens;
  p.kv_tokens = static_cast<int32_t>(args.kv_tokens);
  p.num_kv_tiles = static_cast<int32_t>((args.kv_tokens + kBlockN - 1) / kBlockN);
  const int64_t m_tiles = (args.q_tokens + kBlockM - 1) / kBlockM;
  p.num_m_tiles = static_cast<int32_t>((m_tiles + kClusterBlocks - 1) / kClusterBlocks * kClusterBlocks);
  p.num_tiles = p.num_m_tiles * args.heads;
  p.score_scale = args.scale * 1.4426950408889634f;
  return p;
}

template <typename T>
void launch(const AttentionArgs& args, cudaStream_t stream) {
  const Params p = make_params(args);
  const CUtensorMap q_map = make_map(args.q, args.dtype, args.q_tokens, args.heads, args.q_token_stride,
                                     args.q_head_stride, kBlockM);
  const CUtensorMap k_map = make_map(args.k, args.dtype, args.kv_tokens, args.heads, args.k_token_stride,
                                     args.k_head_stride, kBlockN);
  const CUtensorMap v_map = make_map(args.v, args.dtype, args.kv_tokens, args.heads, args.v_token_stride,
                                     args.v_head_stride, kBlockN);
  launch_clusters(attention_sm90_kernel<T>, {kClusterBlocks, kThreads, kSharedBytes, p.num_tiles}, stream,
                  q_map, k_map, v_map, p);
}

}  // namespace

void attention_sm90(const AttentionArgs& args, cudaStream_t stream) {
  H3S_CUDA_ASSERT(args.kv_tokens >= 1 && args.kv_tokens < (int64_t{1} << 31) - 256);
  H3S_CUDA_ASSERT(args.q_tokens >= 0 && args.q_tokens < (int64_t{1} << 31) - 256);
  H3S_CUDA_ASSERT(args.scale > 0);
  if (args.q_tokens == 0 || args.heads == 0) return;
  switch (args.dtype) {
    case DType::kBF16:
      return launch<__nv_bfloat16>(args, stream);
    case DType::kF16:
      return launch<__half>(args, stream);
    default:
      H3S_CUDA_ASSERT(!"attention takes BF16 or F16");
  }
}

}  // namespace h3s::cuda
