// RMS normalisation of a row by one block: staging, the sum of squares in the fixed order of
// kernels/row_ops.h, and the scale.
//
// The order of the sum is 64 chains (lane = column mod 64, columns ascending, fused multiply-add), folded by
// halves. Thread t of the first warp runs chains 2t and 2t + 1, so it reads the row in words of two elements;
// no other work split changes a bit, because a chain is serial. The block first copies its row to shared
// memory: the copies are all in flight at once, the chains and the second pass then read from there, and
// device memory sees the row once. The chains of a row of 5376 take about 600 cycles of one warp; blocks of
// other rows use the multiprocessor meanwhile.
#pragma once

#include <cstdint>

#include "cp_async.cuh"
#include "element.cuh"

namespace h3s::cuda::device {

constexpr unsigned kWarpMask = 0xffffffffu;
constexpr int kReduceLanes = 64;
constexpr float kNormEps = 1e-5f;

__device__ __forceinline__ float2 load_pair(const float* p) {
  return *reinterpret_cast<const float2*>(p);
}
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16* p) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(p);
  return make_float2(low_bf16(word), high_bf16(word));
}

// Four neighbours in one access, of 16 bytes for float and 8 for bf16: a warp's accesses are whole lines for
// both, where eight floats a thread would be two accesses that touch each line twice. The cache's rate, not
// device memory's, is the limit of ops that read several vectors of float beside the row.
constexpr int kQuad = 4;

// Elements [0, left) of a quad at p, the missing ones zero. kWide: all four exist and p is aligned to them.
template <bool kWide, Use kUse, typename T>
__device__ __forceinline__ void load_quad(const T* p, int left, float (&v)[kQuad]) {
  if constexpr (!kWide) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) v[i] = i < left ? to_float(p[i]) : 0.0f;
  } else if constexpr (std::is_same_v<T, float>) {
    const float4 four = load_words<kUse>(reinterpret_cast<const float4*>(p));
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
    const uint2 words = load_words<kUse>(reinterpret_cast<const uint2*>(p));
    v[0] = low_bf16(words.x), v[1] = high_bf16(words.x), v[2] = low_bf16(words.y), v[3] = high_bf16(words.y);
  }
}

// Stores elements [0, left), each rounded to T.
template <bool kWide, typename T>
__device__ __forceinline__ void store_quad(const float (&v)[kQuad], T* p, int left) {
  if constexpr (!kWide) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i)
      if (i < left) p[i] = from_float<T>(v[i]);
  } else if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
    *reinterpret_cast<uint2*>(p) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
  }
}

// Copies x[c] to `row` in shared memory and returns when the block may read all of it. Both 16-byte aligned,
// c a multiple of 8.
template <typename T>
__device__ __forceinline__ void stage_row(const T* x, int c, T* row) {
  constexpr int kPerCopy = 16 / sizeof(T);
  const uint32_t dst = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  for (int i = threadIdx.x; i < c / kPerCopy; i += blockDim.x) cp_async_16(dst + 16 * i, x + i * kPerCopy);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// lane i += lane i + n / 2 until one is left. In: chains 2t and 2t + 1 of thread t. All threads get the sum:
// addition commutes, so both partners of an exchange compute the same bits.
__device__ __forceinline__ float fold_chains(float even, float odd) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    even = __fadd_rn(even, __shfl_xor_sync(kWarpMask, even, distance));
    odd = __fadd_rn(odd, __shfl_xor_sync(kWarpMask, odd, distance));
  }
  return __fadd_rn(even, odd);
}

// kPairs: x is even-aligned and c even, so that two neighbours are one load. Missing columns are zeros: they
// add nothing.
template <bool kPairs, typename T>
__device__ __forceinline__ float sum_of_squares(const T* x, int c, int lane) {
  float even = 0, odd = 0;
  int i = 2 * lane;
  if constexpr (kPairs) {
#pragma unroll 16
    for (; i < c; i += kReduceLanes) {
      const float2 v = load_pair(x + i);
      even = __fmaf_rn(v.x, v.x, even);
      odd = __fmaf_rn(v.y, v.y, odd);
    }
  } else {
    for (; i < c; i += kReduceLanes) {
      const float a = to_float(x[i]), b = i + 1 < c ? to_float(x[i + 1]) : 0.0f;
      even = __fmaf_rn(a, a, even);
      odd = __fmaf_rn(b, b, odd);
    }
  }
  return fold_chains(even, odd);
}

// 1 / sqrt(sum / c + eps), a rounding each.
__device__ __forceinline__ float rms_scale(float sum, int c) {
  const float mean = __fdiv_rn(sum, static_cast<float>(c));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, kNormEps)));
}

// The scale of the block's row, in every thread. After it, nothing reads the row for the sum any more.
template <bool kPairs, typename T>
__device__ __forceinline__ float block_rms_scale(const T* x, int c) {
  __shared__ float scale;
  if (threadIdx.x < 32) {
    const float r = rms_scale(sum_of_squares<kPairs>(x, c, threadIdx.x), c);
    if (threadIdx.x == 0) scale = r;
  }
  __syncthreads();
  return scale;
}

}  // namespace h3s::cuda::device
