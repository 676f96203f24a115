// qkv_norm_rope: projected q, k, v rows to the attention layout, q and k normalised per head and rotated.
//
// Source [m, heads * 128], destination [heads][...][128], both in the compute type; rope [m, 96]. Per head of
// q and k:
//   v = round((x r) w), r over the 128 values as in rms_norm.cu;
//   y_i = round(fma(c, v_i, -f(s v_{i+48}))), y_{i+48} = round(fma(c, v_{i+48}, f(s v_i))) for i < 48;
//   dimensions 96 .. 127 keep v.
// v rows are copied. Equal to cpu::qkv_norm_rope_definition bit for bit, hence under any chunking of rows or
// heads. Bytes moved per row: 3 x heads x 256 in and out (bf16), 192 of the rope table once a row.
//
// A block is a row of the sequence, or as many rows as its eight groups of threads have heads for; 16 threads
// work on a head, thread u on columns [8u, 8u + 8), and its weights, cosines and sines stay in registers over the heads. The sum's 64 chains have two terms each
// (columns l and l + 64, threads u and u + 8): the fold halves the chains a thread holds with the distance it
// exchanges over, so it takes 11 exchanges, not 27.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/row_norm.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kHeadDim = kernels::kHeadDim;
constexpr int kPairs = kernels::kRopePairs;
constexpr int kGroup = kHeadDim / kVector;  // threads of a head
constexpr int kThreads = 128;
constexpr int kGroups = kThreads / kGroup;  // 8 heads at a time: 56 heads are seven steps
constexpr int kBatch = 4;  // heads a thread loads before it works on the first
constexpr int kPairThreads =
    kPairs / kVector;  // threads of the first elements of pairs; as many hold the second

template <typename T>
struct Part {
  const T* src;
  T* dst;
  int64_t dst_head_stride;
  const float* weight;
};

template <typename T>
struct Params {
  Part<T> part[3];
  int64_t src_stride;
  const T* rope;
  int64_t m;
  int heads;
  int heads_at_once;  // 1, 2, 4 or 8, not more than the heads need: the other groups take further rows
};

// From the other of two threads `distance` apart: this thread's half of what the two hold together. Both end
// with kCount / 2 values, the lower thread the first ones, summed over the pair.
template <int kCount>
__device__ __forceinline__ void exchange_and_halve(float (&v)[kCount], float (&sum)[kCount / 2], bool upper,
                                                   int distance) {
#pragma unroll
  for (int j = 0; j < kCount / 2; ++j) {
    const float mine = upper ? v[j + kCount / 2] : v[j];
    const float theirs = __shfl_xor_sync(kWarpMask, upper ? v[j] : v[j + kCount / 2], distance);
    sum[j] = __fadd_rn(mine, theirs);
  }
}

// Sum of squares over the 16 threads of a head, in the order of kernels/row_ops.h.
__device__ __forceinline__ float head_sum_of_squares(const float (&x)[kVector], int u) {
  // Chains 8 (u mod 8) + j: threads u and u + 8 share eight, the lower takes the first four.
  float chain[4];
  const bool high = u >= 8;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float theirs = __shfl_xor_sync(kWarpMask, high ? x[j] : x[j + 4], 8);
    const float low_column = high ? theirs : x[j], high_column = high ? x[j + 4] : theirs;
    chain[j] = __fmaf_rn(high_column, high_column, __fmaf_rn(low_column, low_column, 0.0f));
  }
  // Chains l and l + 32, then l + 16, then l + 8.
  float two[2], one[1];
  exchange_and_halve(chain, two, (u & 4) != 0, 4);
  exchange_and_halve(two, one, (u & 2) != 0, 2);
  float sum = __fadd_rn(one[0], __shfl_xor_sync(kWarpMask, one[0], 1));
  // Now bit 3 of u says which half of eight chains, bit 2 which of four, bit 1 which of two.
  sum = __fadd_rn(sum, __shfl_xor_sync(kWarpMask, sum, 8));
  sum = __fadd_rn(sum, __shfl_xor_sync(kWarpMask, sum, 4));
  return __fadd_rn(sum, __shfl_xor_sync(kWarpMask, sum, 2));
}

// The eight values of v that the thread holding the other elements of this one's pairs has.
template <typename T>
__device__ __forceinline__ void partner_values(const float (&v)[kVector], int partner_lane,
                                               float (&other)[kVector]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) other[j] = __shfl_sync(kWarpMask, v[j], partner_lane);
  } else {
    Packed<T> packed;  // v is rounded to T already
    pack(v, packed);
    packed.words.x = __shfl_sync(kWarpMask, packed.words.x, partner_lane);
    packed.words.y = __shfl_sync(kWarpMask, packed.words.y, partner_lane);
    packed.words.z = __shfl_sync(kWarpMask, packed.words.z, partner_lane);
    packed.words.w = __shfl_sync(kWarpMask, packed.words.w, partner_lane);
    unpack(packed, other);
  }
}

// What a thread keeps over all heads of a row.
struct Rotation {
  float cosine[kVector], sine[kVector];
  int partner_lane;
  bool first, rotates;  // holds first elements of pairs; holds elements of pairs at all
};

template <typename T, bool kWide>
__device__ __forceinline__ Rotation load_rotation(const T* rope, int u) {
  Rotation rotation;
  rotation.first = u < kPairThreads;
  rotation.rotates = rope != nullptr && u < 2 * kPairThreads;
  const int partner = u < kPairThreads ? u + kPairThreads : u < 2 * kPairThreads ? u - kPairThreads : u;
  rotation.partner_lane = (threadIdx.x % 32) / kGroup * kGroup + partner;
  if (rotation.rotates) {
    const int i = (u % kPairThreads) * kVector;
    load<kWide, Use::kReuse>(rope + i, kVector, rotation.cosine);
    load<kWide, Use::kReuse>(rope + kPairs + i, kVector, rotation.sine);
  }
  return rotation;
}

template <typename T>
__device__ __forceinline__ void norm_and_rotate(float (&x)[kVector], const float (&weight)[kVector],
                                                const Rotation& rotation, int u) {
  const float r = rms_scale(head_sum_of_squares(x, u), kHeadDim);
#pragma unroll
  for (int j = 0; j < kVector; ++j) x[j] = round_to<T>(__fmul_rn(__fmul_rn(x[j], r), weight[j]));
  float other[kVector];
  partner_values<T>(x, rotation.partner_lane, other);
  if (!rotation.rotates) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float product = __fmul_rn(rotation.sine[j], other[j]);
    x[j] = __fmaf_rn(rotation.cosine[j], x[j], rotation.first ? -product : product);
  }
}

// blockIdx.x: the rows; blockIdx.y: q, k or v.
template <typename T, bool kWide>
__global__ void __launch_bounds__(kThreads) qkv_norm_rope_kernel(const __grid_constant__ Params<T> p) {
  const Part<T>& part = p.part[blockIdx.y];
  if (part.src == nullptr) return;
  const int u = threadIdx.x % kGroup, group = threadIdx.x / kGroup;
  const int first_head = group % p.heads_at_once;
  const int64_t row = int64_t{blockIdx.x} * (kGroups / p.heads_at_once) + group / p.heads_at_once;
  const bool inside = row < p.m;
  const int64_t m = inside ? row : p.m - 1;
  const bool is_v = blockIdx.y == 2;
  const T* src = part.src + m * p.src_stride + u * kVector;
  T* dst = part.dst + m * kHeadDim + u * kVector;

  float weight[kVector];
  Rotation rotation;
  if (!is_v) {
    load<kWide, Use::kReuse>(part.weight + u * kVector, kVector, weight);
    rotation = load_rotation<T, kWide>(p.rope == nullptr ? nullptr : p.rope + m * 2 * kPairs, u);
  }
  // All threads take every step: exchanges need them. Heads past the last are neither loaded nor stored, a row
  // past the last is not stored.
  for (int h0 = 0; h0 < p.heads; h0 += kBatch * p.heads_at_once) {
    Packed<T> raw[kBatch] = {};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int h = h0 + b * p.heads_at_once + first_head;
      if (h < p.heads) raw[b] = load<kWide, Use::kStream>(src + h * kHeadDim, kVector);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int h = h0 + b * p.heads_at_once + first_head;
      if (h0 + b * p.heads_at_once >= p.heads) break;
      float x[kVector];
      unpack(raw[b], x);
      if (!is_v) norm_and_rotate<T>(x, weight, rotation, u);
      if (inside && h < p.heads) store<kWide>(x, dst + h * part.dst_head_stride, kVector);
    }
  }
}

// ----------------------------------------------------------------------------------------------------

int heads_at_once(int64_t heads) {
  int count = kGroups;
  while (count / 2 >= heads) count /= 2;
  return count;
}

template <typename T>
bool wide(const Params<T>& p) {
  constexpr int kPerAccess = 16 / sizeof(T);
  bool all = p.src_stride % kPerAccess == 0 && aligned16(p.rope);
  for (const Part<T>& part : p.part)
    if (part.src != nullptr)
      all = all && aligned16(part.src) && aligned16(part.dst) && part.dst_head_stride % kPerAccess == 0 &&
            aligned16(part.weight);
  return all;
}

template <typename T>
Part<T> make_part(const kernels::QkvArgs::Part& part, const float* weight) {
  return {static_cast<const T*>(part.src), static_cast<T*>(part.dst), part.dst_head_stride, weight};
}

}  // namespace

void qkv_norm_rope(const kernels::QkvArgs& a, cudaStream_t stream) {
  with_compute_type(a.dtype, [&]<typename T>() {
    const Params<T> p{
        {make_part<T>(a.q, a.q_weight), make_part<T>(a.k, a.k_weight), make_part<T>(a.v, nullptr)},
        a.src_stride,
        static_cast<const T*>(a.rope),
        a.m,
        static_cast<int>(a.heads),
        heads_at_once(a.heads)};
    const int64_t rows_per_block = kGroups / p.heads_at_once;
    const auto blocks = static_cast<unsigned>((a.m + rows_per_block - 1) / rows_per_block);
    with_flag(wide(p), [&]<bool kWide>() {
      qkv_norm_rope_kernel<T, kWide><<<dim3(blocks, 3), kThreads, 0, stream>>>(p);
      H3S_CUDA_CHECK_LAUNCH();
    });
  });
}

}  // namespace h3s::cuda
