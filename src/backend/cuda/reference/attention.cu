// reference::attention: softmax(scale Q K^T) V per head, non-causal, head width 128, with the log-sum-exp on
// request.
//
// Contract, per query: keys in tiles of 64, ascending from key 0; c = f(scale log2(e)); at the start m =
// -inf, l = 0, o[d] = 0; exp2 of device/exp.cuh; fused chains run from zero in the stated order:
//   t_j = f(c f(q . k_j))             q . k_j one chain over d = 0 .. 127
//   m'  = max(m, t_j of the tile)     a = exp2(m - m'), p_j = exp2(t_j - m')
//   l   = fma(l, a, sum of p_j)       sum from zero, in order of j
//   o_d = fma(o_d, a, partial_d)      partial_d one chain of round(p_j) v_j[d] over the tile's j
// and at the end O = round(o / l), LSE = f(f(m + f(log2 l)) ln 2), log2 in double. Equal to
// cpu::attention_definition bit for bit (LSE: but where CUDA's double log2 is off across a float midpoint),
// hence under any split of queries or heads. Shapes: Q [H, Sq, 128], K and V [H, Sk, 128], O [Sq, H, 128] by
// strides; float, bf16, fp16. Bytes moved: Q and O once, K and V once for 16 queries.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/exp.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/reference/reference.h"
#include "kernels/row_ops.h"

namespace h3s::cuda::reference {
namespace {

using namespace device;

constexpr int kHeadDim = kernels::kHeadDim;
constexpr int kKeys = 64;      // a tile: part of the contract
constexpr int kQueries = 16;   // a block
constexpr int kThreads = 128;  // one a dimension of O
constexpr int kPitch = kHeadDim + 1;
constexpr float kLn2 = 0x1.62e43p-1f;

struct Shared {
  float q[kQueries][kHeadDim];
  float kv[kKeys][kPitch];  // K of the tile, then V
  float p[kQueries][kKeys];
  float m[kQueries], l[kQueries], rescale[kQueries];
};
static_assert(sizeof(Shared) <= 48 << 10);

// Rows [0, num) of a tile, as floats.
template <typename T>
__device__ __forceinline__ void load_tile(const T* src, int64_t stride, int num,
                                          float (&tile)[kKeys][kPitch]) {
  for (int j = 0; j < num; ++j) tile[j][threadIdx.x] = to_float(src[j * stride + threadIdx.x]);
}

// Scores of all queries with the keys of the tile, times c.
__device__ __forceinline__ void score(Shared& s, float c, int num_keys) {
  constexpr int kPerThread = kQueries * kKeys / kThreads;
  const int j = threadIdx.x % kKeys, first = threadIdx.x / kKeys * kPerThread;
  if (j >= num_keys) return;
  float sum[kPerThread] = {};
  for (int d = 0; d < kHeadDim; ++d)
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) sum[i] = __fmaf_rn(s.kv[j][d], s.q[first + i][d], sum[i]);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) s.p[first + i][j] = __fmul_rn(c, sum[i]);
}

// One thread a query: scores become rounded probabilities; m, l and the rescale factor move on.
template <typename T>
__device__ __forceinline__ void softmax(Shared& s, int query, int num_keys) {
  float* p = s.p[query];
  const float old_m = s.m[query];
  float m = old_m, sum = 0;
  for (int j = 0; j < num_keys; ++j) m = fmaxf(m, p[j]);
  for (int j = 0; j < num_keys; ++j) {
    const float weight = device::exp2(__fsub_rn(p[j], m));
    sum = __fadd_rn(sum, weight);
    p[j] = round_to<T>(weight);
  }
  const float a = device::exp2(__fsub_rn(old_m, m));
  s.l[query] = __fmaf_rn(s.l[query], a, sum);
  s.m[query] = m;
  s.rescale[query] = a;
}

// blockIdx.x: 16 queries; blockIdx.y: the head.
template <typename T>
__global__ void __launch_bounds__(kThreads) attention_kernel(const kernels::AttentionArgs a, float c) {
  __shared__ Shared s;
  const int d = threadIdx.x;
  const int64_t head = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kQueries;
  const int num_queries = static_cast<int>(min(static_cast<int64_t>(kQueries), a.q_tokens - first));
  const T* q = static_cast<const T*>(a.q) + head * a.q_head_stride + first * a.q_token_stride;
  const T* k = static_cast<const T*>(a.k) + head * a.k_head_stride;
  const T* v = static_cast<const T*>(a.v) + head * a.v_head_stride;
  for (int i = 0; i < kQueries; ++i)
    s.q[i][d] = i < num_queries ? to_float(q[i * a.q_token_stride + d]) : 0.0f;
  if (d < kQueries) s.m[d] = __int_as_float(0xff800000), s.l[d] = 0;
  float o[kQueries] = {};

  for (int64_t j0 = 0; j0 < a.kv_tokens; j0 += kKeys) {
    const int num_keys = static_cast<int>(min(static_cast<int64_t>(kKeys), a.kv_tokens - j0));
    __syncthreads();
    load_tile(k + j0 * a.k_token_stride, a.k_token_stride, num_keys, s.kv);
    __syncthreads();
    score(s, c, num_keys);
    __syncthreads();
    load_tile(v + j0 * a.v_token_stride, a.v_token_stride, num_keys, s.kv);
    if (d < kQueries) softmax<T>(s, d, num_keys);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float partial = 0;
      for (int j = 0; j < num_keys; ++j) partial = __fmaf_rn(s.p[i][j], s.kv[j][d], partial);
      o[i] = __fmaf_rn(o[i], s.rescale[i], partial);
    }
  }

  T* out = static_cast<T*>(a.o) + head * a.o_head_stride + first * a.o_token_stride + d;
#pragma unroll
  for (int i = 0; i < kQueries; ++i)
    if (i < num_queries) out[i * a.o_token_stride] = from_float<T>(__fdiv_rn(o[i], s.l[i]));
  if (a.lse != nullptr && d < num_queries) {
    const float log2_l = __double2float_rn(log2(static_cast<double>(s.l[d])));
    a.lse[head * a.q_tokens + first + d] = __fmul_rn(__fadd_rn(s.m[d], log2_l), kLn2);
  }
}

template <typename T>
void launch(const kernels::AttentionArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.q_tokens + kQueries - 1) / kQueries),
                  static_cast<unsigned>(a.heads));
  attention_kernel<T><<<grid, kThreads, 0, stream>>>(a, a.scale * kLog2e);
  H3S_CUDA_CHECK_LAUNCH();
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void attention(const kernels::AttentionArgs& a, cudaStream_t stream) {
  if (a.dtype == DType::kF16) return launch<__half>(a, stream);
  with_compute_type(a.dtype, [&]<typename T>() { launch<T>(a, stream); });
}

}  // namespace h3s::cuda::reference
