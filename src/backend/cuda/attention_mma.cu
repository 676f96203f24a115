// Exact attention on mma.sync: what every card without wgmma runs. sm_80+ for bf16 and fp16, sm_75 for fp16.
//
// Formula, per head and query row, over tiles of kTileKeys keys in ascending order from key 0
// (state m = -inf, l = 0, o = 0):
//
//   s_j = q . k_j                      fp32 accumulation inside mma, head dim in steps of 16 (sm_75: 8)
//   m' = max(m, f(c * max_j s_j))      c = f(scale * log2 e)
//   p_j = exp2(fma(s_j, c, -m'))       special function unit, denormals flushed
//   a = exp2(m - m')
//   l = a l + sum_j p_j                p_j unrounded; each lane of a quad sums its own columns, ascending
//   o = a o + sum_j round16(p_j) v_j   fp32 accumulation inside mma, keys in steps of 16 (sm_75: 8)
//   m = m'
//
// and at the end l = (l0 + l1) + (l2 + l3) over the quad, O = round16(o * f(1 / l)),
// lse = f(f(m + log2 l) * ln 2). Keys past the last one get s = -inf; their K and V are zeros. round16 is to
// nearest even, f is one fp32 rounding.
//
// Shapes: Q [H, Sq, 128], K and V [H, Sk, 128], O [Sq, H, 128] by strides. A warp owns 32 query rows, a block
// kWarps times as many, and walks all keys of its head.
//
// Equality: a row's bits depend on that row of Q and on K, V of its head alone. Tiles start at absolute key 0
// and have one width; nothing is split over keys; row tails are padded with zero rows and never change the
// instruction shape. kWarps and kStages only choose who computes a row and when its keys arrive, so cards
// with less shared memory give the same bits. The one decision taken for a whole warp, not to rescale o, is
// taken when a is exactly 1 in all of its rows, where rescaling would change nothing.
//
// Floor: 4 Sq Sk 128 H flop on the tensor cores. Beside them, per 32 rows and 64 keys a warp reads 40 KiB of
// shared memory (K, V and Q, 26 flop a byte) and evaluates 2,048 exp2; on data-centre cards each comes near
// half of the time of the products, so they must overlap. With 192 registers of accumulators a warp cannot
// hold two tiles; the two warps of a scheduler overlap instead.
//
// Bytes: Q and O once; K and V once a block of 32 kWarps rows, from L2: 1 byte for 32 kWarps flop.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/attention.h"
#include "backend/cuda/check.h"
#include "backend/cuda/device/cp_async.cuh"
#include "backend/cuda/device/ldmatrix.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/named_barrier.cuh"
#include "backend/cuda/device/softmax.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::AttentionArgs;

constexpr int kHeadDim = 128;
constexpr int kRowBytes = kHeadDim * 2;
constexpr int kChunksPerRow = kRowBytes / 16;
// Two m16 tiles: each K and V fragment that is read feeds two products. O is 128 registers a thread.
constexpr int kWarpRows = 32;
constexpr int kTileKeys = 64;  // S is 64 registers, with O 192 of 255
constexpr int kTileBytes = kTileKeys * kRowBytes;
constexpr int kMTiles = kWarpRows / 16;
constexpr int kNTiles = kTileKeys / 8;
constexpr int kOTiles = kHeadDim / 8;
// sm_75 has products of half the depth, and eight steps of them in a row would not leave ptxas enough registers.
#if __CUDA_ARCH__ >= 800
constexpr int kScoreStepsUnrolled = kHeadDim / 16;
#else
constexpr int kScoreStepsUnrolled = 2;
#endif

constexpr int shared_bytes(int warps, int stages) {
  return warps * kWarpRows * kRowBytes + 2 * stages * kTileBytes;
}

struct Params {
  const char* q;
  const char* k;
  const char* v;
  char* o;
  float* lse;
  // Strides in bytes.
  int64_t q_head_stride, q_token_stride, k_head_stride, k_token_stride, v_head_stride, v_token_stride,
      o_head_stride, o_token_stride;
  int64_t q_tokens;
  int32_t kv_tokens;
  int32_t num_tiles;
  float score_scale;  // scale * log2 e
};

// Rows of 256 bytes; the 16-byte chunk c of row r lies at chunk c ^ (r % 8), so that eight rows at one c
// cover all 32 banks.
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * kRowBytes + (chunk ^ (row % 8)) * 16;
}

// The address `steps` x 16 elements further along a swizzled row, from one in its first 16. Four steps stay
// within the eight chunks that are permuted; half a row further the permutation repeats.
__device__ __forceinline__ uint32_t along_row(uint32_t address, int steps) {
  return (address ^ (32 * (steps % 4))) + 128 * (steps / 4);
}

using Scores = float[kMTiles][kNTiles][4];
using Output = float[kMTiles][kOTiles][4];

// Row r of a thread: r = 2 * m_tile + half; half 0 is row lane / 4 of the m tile, half 1 the row 8 below.
constexpr int kThreadRows = 2 * kMTiles;
struct RowState {
  float minus_max2[kThreadRows];  // running maximum times c, negated: the addend of the exponent
  float sum[kThreadRows];         // this lane's share of l
  float rescale[kThreadRows];     // exp2 of the last change of the maximum: still to be applied to sum and o
};

// threadIdx.x, read anew wherever it is written.
__device__ __forceinline__ int opaque_thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ void mask_tail(Scores& s, int valid_keys) {
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (8 * n + 2 * (opaque_thread_index() % 4) + i < valid_keys) continue;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) s[m][n][i] = s[m][n][2 + i] = -INFINITY;
    }
  }
}

// Keeps the compiler from computing all variants of an address before the loop: they would cost registers,
// and making one takes a single instruction.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Operands of one 16-wide step of S += Q K^T.
struct ScoreFragments {
  uint32_t a[kMTiles][4], b[kNTiles / 2][4];
};

__device__ __forceinline__ void load_query_fragments(ScoreFragments& f, uint32_t q, int step) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) ldmatrix_x4(f.a[m], along_row(q, step) + m * 16 * kRowBytes);
}

__device__ __forceinline__ void load_key_fragments(ScoreFragments& f, uint32_t k, int step) {
#pragma unroll
  for (int n = 0; n < kNTiles / 2; ++n) ldmatrix_x4(f.b[n], along_row(k, step) + n * 16 * kRowBytes);
}

template <typename T>
__device__ __forceinline__ void score_step(Scores& s, const ScoreFragments& f) {
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m)
      mma_m16n8k16<T>(s[m][n], f.a[m], f.b[n / 2][n % 2 * 2], f.b[n / 2][n % 2 * 2 + 1]);
  }
}

// Exponentials of one 16x8 tile of scores, added to the sums and packed into its half of a P fragment.
template <typename T>
__device__ __forceinline__ void exponentials(const float (&s)[4], uint32_t* p, RowState& row, int m,
                                             float c) {
  float e[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    e[i] = exp2_unit(__fmaf_rn(s[i], c, row.minus_max2[2 * m + i / 2]));
    row.sum[2 * m + i / 2] = __fadd_rn(row.sum[2 * m + i / 2], e[i]);
  }
  p[0] = pack16<T>(e[0], e[1]);
  p[1] = pack16<T>(e[2], e[3]);
}

__device__ __forceinline__ void rescale_sums(RowState& row) {
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) row.sum[r] = __fmul_rn(row.sum[r], row.rescale[r]);
}

__device__ __forceinline__ void rescale_output(Output& o, const RowState& row) {
  bool changed = false;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) changed |= row.rescale[r] != 1.0f;
  if (!__any_sync(0xffffffffu, changed)) return;  // exact to skip: x * 1 is x
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kOTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][n][i] = __fmul_rn(o[m][n][i], row.rescale[2 * m + i / 2]);
    }
  }
}

// One 16-key step of O += P V for 16 columns of O.
template <typename T>
__device__ __forceinline__ void value_step(Output& o, const uint32_t (&p)[kMTiles][4], uint32_t v,
                                           int key_step, int column_step) {
  uint32_t b[4];
  ldmatrix_x4_transposed(b, along_row(v, column_step) + key_step * 16 * kRowBytes);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m)
      mma_m16n8k16<T>(o[m][2 * column_step + n], p[m], b[2 * n], b[2 * n + 1]);
  }
}

__device__ __forceinline__ void update_maxima(const float (&tile_max)[kThreadRows], RowState& row, float c) {
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const float minus_max2 = fminf(row.minus_max2[r], __fmul_rn(quad_max(tile_max[r]), -c));
    row.rescale[r] = exp2_unit(minus_max2 - row.minus_max2[r]);
    row.minus_max2[r] = minus_max2;
  }
}

__device__ __forceinline__ void find_maxima(const Scores& s, RowState& row, float c) {
  float tile_max[kThreadRows];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tile_max[2 * m + h] = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kNTiles; ++n) {
        tile_max[2 * m + h] = fmaxf(tile_max[2 * m + h], fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
      }
    }
  }
  update_maxima(tile_max, row, c);
}

template <typename T>
__device__ __forceinline__ void store_rows(const Params& p, const Output& o, const RowState& row,
                                           int64_t head, int64_t row0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const int64_t token = row0 + 8 * r + lane / 4;
    const float sum = quad_sum(row.sum[r]);
    const float inverse = __frcp_rn(sum);
    if (token >= p.q_tokens) continue;
    uint32_t* dst =
        reinterpret_cast<uint32_t*>(p.o + head * p.o_head_stride + token * p.o_token_stride) + lane % 4;
#pragma unroll
    for (int n = 0; n < kOTiles; ++n) {
      const float* pair = &o[r / 2][n][r % 2 * 2];
      dst[4 * n] = pack16<T>(__fmul_rn(pair[0], inverse), __fmul_rn(pair[1], inverse));
    }
    if (p.lse != nullptr && lane % 4 == 0)
      p.lse[head * p.q_tokens + token] = lse_from_base2(-row.minus_max2[r], sum);
  }
}

// S = Q K^T. Calls after_last_key() once all keys are in registers; the last products come after it.
template <typename T, typename AfterLastKey>
__device__ __forceinline__ void scores(Scores& s, uint32_t q, uint32_t k, AfterLastKey after_last_key) {
  constexpr int kSteps = kHeadDim / 16;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0f;
    }
  }
#pragma unroll kScoreStepsUnrolled
  for (int step = 0; step < kSteps; ++step) {
    ScoreFragments f;
    load_key_fragments(f, k, step);
    if (step == kSteps - 1) after_last_key();
    load_query_fragments(f, q, step);
    score_step<T>(s, f);
  }
}

template <typename T>
__device__ __forceinline__ void key_step_exponentials(const Scores& s, uint32_t (&p)[kMTiles][4],
                                                      RowState& row, int key_step, float c) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 2; ++n) exponentials<T>(s[m][2 * key_step + n], &p[m][2 * n], row, m, c);
  }
}

template <typename T>
__device__ __forceinline__ void key_step_values(Output& o, const uint32_t (&p)[kMTiles][4], uint32_t v,
                                                int key_step) {
#pragma unroll
  for (int column_step = 0; column_step < kHeadDim / 16; ++column_step)
    value_step<T>(o, p, v, key_step, column_step);
}

// Copies rows [row0, row0 + kRows) of a [*, 128] matrix, zeros from row `end` on. Loader i of kLoaders moves
// one 16-byte chunk of every kLoaders / 16-th row: its place within a pass is a 32-bit offset, the rest of
// the address is the same for all threads.
template <int kRows, int kLoaders>
__device__ __forceinline__ void load_rows(uint32_t dst, const char* src, int64_t token_stride, int64_t row0,
                                          int64_t end, int loader) {
  constexpr int kRowsPerPass = kLoaders / kChunksPerRow;
  static_assert(kRowsPerPass % 8 == 0, "the swizzle of a chunk is the same in every pass");
  const int row = loader / kChunksPerRow, chunk = loader % kChunksPerRow;
  const uint32_t offset = row * static_cast<uint32_t>(token_stride) + chunk * 16;
  src += row0 * token_stride;
  dst += swizzled(row, chunk);
  if (end - row0 >= kRows) {
#pragma unroll
    for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
      cp_async_16(dst + pass * kRowsPerPass * kRowBytes, src + pass * kRowsPerPass * token_stride + offset);
    }
  } else {
#pragma unroll 1
    for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
      cp_async_16_or_zero(dst + pass * kRowsPerPass * kRowBytes,
                          src + pass * kRowsPerPass * token_stride + offset,
                          row + pass * kRowsPerPass < end - row0);
    }
  }
}

// Where a thread reads its fragments: at one pattern of rows and chunks in the warp's part of Q and in a tile of
// V, and in a tile of K at that with the roles of two bits of the lane exchanged. Three addresses, for the loop
// that has registers for them.
struct FragmentPlaces {
  uint32_t q_place, k_place, v_place;

  __device__ __forceinline__ FragmentPlaces(uint32_t q, uint32_t k, uint32_t v, int warp, int lane)
      : q_place(q + warp * kWarpRows * kRowBytes + swizzled(lane % 16, lane / 16)),
        k_place(k + swizzled(lane % 8 + lane / 16 * 8, lane / 8 % 2)),
        v_place(v + swizzled(lane % 16, lane / 16)) {}
  __device__ __forceinline__ uint32_t q() const { return opaque(q_place); }
  __device__ __forceinline__ uint32_t k() const { return opaque(k_place); }
  __device__ __forceinline__ uint32_t v() const { return opaque(v_place); }
};

// The same from one register and a predicate. Without room for three registers, ptxas would make the addresses
// anew from the thread's index in every turn, and the products would wait for that; what is opaque it cannot.
struct PackedFragmentPlaces {
  uint32_t q_shared, k_tile, v_tile, place;  // place: in Q
  bool exchanged;

  __device__ __forceinline__ PackedFragmentPlaces(uint32_t q, uint32_t k, uint32_t v, int warp, int lane)
      : q_shared(q), k_tile(k), v_tile(v),
        place(opaque(warp * kWarpRows * kRowBytes + swizzled(lane % 16, lane / 16))),
        exchanged(static_cast<int>(opaque(lane)) / 8 % 2 != lane / 16) {}
  __device__ __forceinline__ uint32_t in_tile() const { return opaque(place) % (16 * kRowBytes); }
  __device__ __forceinline__ uint32_t q() const { return q_shared + opaque(place); }
  __device__ __forceinline__ uint32_t k() const {
    const uint32_t p = in_tile();
    return k_tile + (exchanged ? p ^ (8 * kRowBytes + 16) : p);
  }
  __device__ __forceinline__ uint32_t v() const { return v_tile + in_tile(); }
};

// All of a block's work.
template <typename T, int kWarps, int kStages>
__device__ __forceinline__ void attend(const Params& params) {
  extern __shared__ __align__(1024) char raw_shared[];
  constexpr int kThreads = kWarps * 32;
  constexpr int kBlockRows = kWarps * kWarpRows;
  const uint32_t q_shared = static_cast<uint32_t>(__cvta_generic_to_shared(raw_shared));
  const uint32_t k_shared = q_shared + kBlockRows * kRowBytes;
  const uint32_t v_shared = k_shared + kStages * kTileBytes;
  const int64_t head = blockIdx.y;
  const int64_t block_row0 = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int tiles = params.num_tiles;
  const float c = params.score_scale;

  // Tile `tile` of K or V into stage `stage`, by the first `loaders` threads or by each such part of the
  // block for itself. The thread index is read anew for every copy: keeping what follows from it would cost
  // registers.
  auto load_keys = [&](auto loaders, int tile, int stage) {
    load_rows<kTileKeys, loaders.value>(k_shared + stage * kTileBytes, params.k + head * params.k_head_stride,
                                        params.k_token_stride, tile * kTileKeys, params.kv_tokens,
                                        opaque_thread_index() % loaders.value);
  };
  auto load_values = [&](auto loaders, int tile, int stage) {
    load_rows<kTileKeys, loaders.value>(v_shared + stage * kTileBytes, params.v + head * params.v_head_stride,
                                        params.v_token_stride, tile * kTileKeys, params.kv_tokens,
                                        opaque_thread_index() % loaders.value);
  };
  using AllThreads = std::integral_constant<int, kThreads>;

  load_rows<kBlockRows, kThreads>(q_shared, params.q + head * params.q_head_stride, params.q_token_stride,
                                  block_row0, params.q_tokens, threadIdx.x);
  load_keys(AllThreads{}, 0, 0);
  cp_async_commit();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::conditional_t<kStages == 2, PackedFragmentPlaces, FragmentPlaces> at(q_shared, k_shared, v_shared,
                                                                                 warp, lane);

  Output o;
  RowState row;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kOTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    row.minus_max2[r] = INFINITY;
    row.sum[r] = 0.0f;
  }
  Scores s;

  if constexpr (kStages == 2) {
    // Two halves of the block take turns at the tensor cores. In turn j a half multiplies P V of tile j - 1
    // and Q K^T of tile j; then, while the other has its turn, it fetches and does the softmax of tile j. The
    // barrier that passes the turn also publishes what the other half has fetched and tells it what may be
    // overwritten.
    constexpr int kHalfThreads = kThreads / 2;
    using HalfThreads = std::integral_constant<int, kHalfThreads>;
    const int half = threadIdx.x / kHalfThreads;
    auto wait_turn = [&] {
      cp_async_wait<0>();
      named_barrier_sync(1 + half, kThreads);
    };
    // This half reads K and V of its turn no more.
    auto pass_turn = [&] { named_barrier_arrive(2 - half, kThreads); };
    // After its turn j the first half fetches V of tile j, for turn j + 1, over V of tile j - 2: all were
    // done with that in turn j - 1. The second half fetches K of tile j + 2, a turn earlier than the first
    // could, over K of tile j: the first half is done with that, its own warps have to make sure.
    auto fetch = [&](int j) {
      if (half == 0) {
        load_values(HalfThreads{}, j, j % 2);
      } else if (j + 2 < tiles) {
        named_barrier_sync(3, kHalfThreads);
        load_keys(HalfThreads{}, j + 2, j % 2);
      }
      cp_async_commit();
    };
    uint32_t p[kTileKeys / 16][kMTiles][4];
    auto softmax = [&] {
      find_maxima(s, row, c);
      rescale_sums(row);
#pragma unroll
      for (int key_step = 0; key_step < kTileKeys / 16; ++key_step)
        key_step_exponentials<T>(s, p[key_step], row, key_step, c);
      rescale_output(o, row);
    };

    if (tiles > 1) load_keys(AllThreads{}, 1, 1);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    if (half == 1) pass_turn();
    wait_turn();
    scores<T>(s, at.q(), at.k(), pass_turn);
    for (int j = 1; j < tiles; ++j) {
      fetch(j - 1);
      softmax();
      wait_turn();
      const uint32_t q = at.q(), k = at.k() + j % 2 * kTileBytes,
                     v = at.v() + (j - 1) % 2 * kTileBytes;
#pragma unroll
      for (int key_step = 0; key_step < kTileKeys / 16; ++key_step)
        key_step_values<T>(o, p[key_step], v, key_step);
      __syncwarp();  // keeps the products of the scores, and their registers, behind this point
      scores<T>(s, q, k, pass_turn);
    }
    fetch(tiles - 1);
    mask_tail(s, params.kv_tokens - (tiles - 1) * kTileKeys);
    softmax();
    wait_turn();
    const uint32_t v = at.v() + (tiles - 1) % 2 * kTileBytes;
#pragma unroll
    for (int key_step = 0; key_step < kTileKeys / 16; ++key_step)
      key_step_values<T>(o, p[key_step], v, key_step);
    if (half == 0) pass_turn();
  } else {
    // Shared memory for one tile of keys and one of values: each is fetched as soon as all warps are done
    // with its predecessor.
    load_values(AllThreads{}, 0, 0);
    cp_async_commit();
    auto step = [&](int j, auto is_last) {
      cp_async_wait<1>();
      __syncthreads();
      scores<T>(s, at.q(), at.k(), [] {});
      __syncthreads();
      if (!is_last.value) load_keys(AllThreads{}, j + 1, 0);
      cp_async_commit();
      if (is_last.value) mask_tail(s, params.kv_tokens - j * kTileKeys);
      find_maxima(s, row, c);
      rescale_sums(row);
      rescale_output(o, row);
      cp_async_wait<1>();
      __syncthreads();
      const uint32_t v = at.v();
#pragma unroll
      for (int key_step = 0; key_step < kTileKeys / 16; ++key_step) {
        uint32_t p[kMTiles][4];
        key_step_exponentials<T>(s, p, row, key_step, c);
        key_step_values<T>(o, p, v, key_step);
      }
      __syncthreads();
      if (!is_last.value) load_values(AllThreads{}, j + 1, 0);
      cp_async_commit();
    };
    for (int j = 0; j + 1 < tiles; ++j) step(j, std::false_type{});
    step(tiles - 1, std::true_type{});
  }
  store_rows<T>(params, o, row, head, block_row0 + warp * kWarpRows);
}

template <typename T, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32, 8 / kWarps)
    attention_mma_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH__ >= 800
  attend<T, kWarps, kStages>(params);
#else
  // sm_75 multiplies fp16 alone and has shared memory for four warps; the launcher asks for nothing else.
  if constexpr (std::is_same_v<T, __half> && kWarps == 4) {
    attend<T, kWarps, kStages>(params);
  } else {
    __trap();
  }
#endif
}

// ---------------------------------------------------------------------------------------------------------

Params make_params(const AttentionArgs& args) {
  Params p = {};
  p.q = static_cast<const char*>(args.q);
  p.k = static_cast<const char*>(args.k);
  p.v = static_cast<const char*>(args.v);
  p.o = static_cast<char*>(args.o);
  p.lse = args.lse;
  p.q_head_stride = args.q_head_stride * 2;
  p.q_token_stride = args.q_token_stride * 2;
  p.k_head_stride = args.k_head_stride * 2;
  p.k_token_stride = args.k_token_stride * 2;
  p.v_head_stride = args.v_head_stride * 2;
  p.v_token_stride = args.v_token_stride * 2;
  p.o_head_stride = args.o_head_stride * 2;
  p.o_token_stride = args.o_token_stride * 2;
  p.q_tokens = args.q_tokens;
  p.kv_tokens = static_cast<int32_t>(args.kv_tokens);
  p.num_tiles = static_cast<int32_t>((args.kv_tokens + kTileKeys - 1) / kTileKeys);
  p.score_scale = args.scale * 1.4426950408889634f;
  return p;
}

template <typename T, int kWarps, int kStages>
void launch(const AttentionArgs& args, cudaStream_t stream) {
  constexpr int kBlockRows = kWarps * kWarpRows;
  const auto kernel = attention_mma_kernel<T, kWarps, kStages>;
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      shared_bytes(kWarps, kStages)));
  const Params p = make_params(args);
  const dim3 grid(static_cast<unsigned>((args.q_tokens + kBlockRows - 1) / kBlockRows),
                  static_cast<unsigned>(args.heads));
  kernel<<<grid, kWarps * 32, shared_bytes(kWarps, kStages), stream>>>(p);
  H3S_CUDA_CHECK_LAUNCH();
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

template <typename T>
void launch_shape(const AttentionArgs& args, AttentionMmaShape shape, cudaStream_t stream) {
  if (shape == AttentionMmaShape{8, 2}) return launch<T, 8, 2>(args, stream);
  if (shape == AttentionMmaShape{8, 1}) return launch<T, 8, 1>(args, stream);
  H3S_CUDA_ASSERT((shape == AttentionMmaShape{4, 1}));
  return launch<T, 4, 1>(args, stream);
}

}  // namespace

AttentionMmaShape attention_mma_shape(int64_t shared_bytes_per_sm) {
  constexpr int64_t kReservedBytes = 1024;  // taken by the system from every block
  if (shared_bytes(8, 2) + kReservedBytes <= shared_bytes_per_sm) return {8, 2};  // 129 KiB: sm_80, 90, 100
  if (shared_bytes(8, 1) + kReservedBytes <= shared_bytes_per_sm) return {8, 1};  // 97 KiB: sm_86, 89, 120
  return {4, 1};                                                                  // 64 KiB: sm_75, four warps
}

void attention_mma(const AttentionArgs& args, AttentionMmaShape shape, cudaStream_t stream) {
  constexpr int64_t kMaxTokenStride = int64_t{1} << 26;  // 16 rows of it, in bytes, are a 32-bit offset
  H3S_CUDA_ASSERT(args.kv_tokens >= 1 && args.kv_tokens < (int64_t{1} << 31) - 256);
  H3S_CUDA_ASSERT(args.q_tokens >= 0 && args.q_tokens < (int64_t{1} << 31) - 256);
  H3S_CUDA_ASSERT(args.q_token_stride < kMaxTokenStride && args.k_token_stride < kMaxTokenStride &&
                  args.v_token_stride < kMaxTokenStride);
  H3S_CUDA_ASSERT(args.heads < 65536);
  H3S_CUDA_ASSERT(args.scale > 0);
  if (args.q_tokens == 0 || args.heads == 0) return;
  switch (args.dtype) {
    case DType::kBF16:
      H3S_CUDA_ASSERT(device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8);
      return launch_shape<__nv_bfloat16>(args, shape, stream);
    case DType::kF16:
      return launch_shape<__half>(args, shape, stream);
    default:
      H3S_CUDA_ASSERT(!"attention takes BF16 or F16");
  }
}

void attention_mma(const AttentionArgs& args, cudaStream_t stream) {
  attention_mma(args, attention_mma_shape(device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)),
                stream);
}

}  // namespace h3s::cuda
