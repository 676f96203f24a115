// The activation quantiser to codes from -7 to 7 of kernels::QuantizeRowsArgs (RowCode::kInt4): one block a
// row.
//
//   v rotated in stages of stride 1, 4, 16, 64 (group 0: none), every step rounded to the type of x,
//   a = max |v|, s = f(max(a, 1e-10) / 7), code = clamp(rne(f(v f(1 / s))), -7, 7); with a NaN among the v:
//   s NaN, codes 0
//
// The plain route follows that word by word. Int4Codes has the same bits for bf16, in arithmetic of pairs, on
// the route of quantize_rotated.cuh. What it leaves out:
//   - Halving. Where no value but 0 is below 2^-100, all sums are multiples of 2^-111, and halving them is
//     exact and commutes with the roundings: values are 16 times too large in the end, and so is their
//     maximum.
//   - The clamp. |v f(1 / s)| is at most 7 (1 + 2^-22), which rounds to 7.
//   - Range cases. Rows with a value other than 0 below 2^-100, with |v| of 2^106 or more or a NaN are left
//     to the plain route.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "plain_quantize.cuh"
#include "quantize_rotated.cuh"

namespace h3s::cuda::device {

constexpr int kInt4Piece = 1024;  // values in shared memory at a time: whole groups
constexpr float kSmallestInt4Peak = 1e-10f;

__device__ __forceinline__ float int4_scale(float largest) {
  return __fdiv_rn(fmaxf(largest, kSmallestInt4Peak), 7.0f);
}

// ---- the plain route ----

// The whole block; x [k], `piece` [kInt4Piece] and `warp_maxima` [32] in shared memory.
template <typename T>
__device__ __noinline__ void quantize_int4_row(const T* x, int64_t k, int group, float* piece,
                                               uint32_t* warp_maxima, int8_t* codes, float* scale_out) {
  const auto for_pieces = [&](auto work) {
    for (int64_t first = 0; first < k; first += kInt4Piece) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kInt4Piece), k - first));
      load_rotated<T>([at = x + first](int i) { return to_float(at[i]); }, count, group, piece);
      for (int i = threadIdx.x; i < count; i += blockDim.x) work(first + i, piece[i]);
    }
  };
  float largest = 0;
  for_pieces([&](int64_t, float v) { largest = max_magnitude(largest, v); });
  largest = block_max(largest, warp_maxima);
  const bool nan = isnan(largest);
  const float scale = nan ? kNan : int4_scale(largest);
  const float inverse = __fdiv_rn(1.0f, scale);
  if (threadIdx.x == 0) *scale_out = scale;
  for_pieces([&](int64_t i, float v) {
    const float code = nan ? 0.0f : fminf(fmaxf(rintf(__fmul_rn(v, inverse)), -7.0f), 7.0f);
    codes[i] = static_cast<int8_t>(static_cast<int>(code));
  });
}

// ---- pairs of bf16 in a word ----

__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 sum =
      __hadd2_rn(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(sum);
}
__device__ __forceinline__ uint32_t subtract_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 difference =
      __hsub2_rn(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(difference);
}

// Rotates the quad of each half of four words, times 2.
__device__ __forceinline__ void rotate_pairs(uint32_t& x0, uint32_t& x1, uint32_t& x2, uint32_t& x3) {
  const uint32_t s = add_pairs(x0, x1), d = subtract_pairs(x0, x1);
  const uint32_t e = subtract_pairs(x2, x3), f = add_pairs(x2, x3);
  x0 = add_pairs(s, e), x1 = subtract_pairs(s, e), x2 = add_pairs(d, f), x3 = subtract_pairs(f, d);
}

// The quad of neighbours in two words, times 2: values 0 and 2 come out in `a`, 1 and 3 in `b`.
__device__ __forceinline__ void rotate_neighbours(uint32_t& a, uint32_t& b) {
  const uint32_t even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
  const uint32_t sums = add_pairs(even, odd), differences = subtract_pairs(even, odd);  // s f, d e
  const uint32_t crossed = __byte_perm(differences, 0, 0x1032);
  a = add_pairs(sums, crossed), b = subtract_pairs(sums, crossed);
}

// A stage of which this thread holds two of four words and the one kDistance on the others, times 2.
template <int kDistance>
__device__ __forceinline__ void rotate_exchanged(uint32_t& x0, uint32_t& x1) {
  const uint32_t sum = add_pairs(x0, x1);
  const uint32_t other = __shfl_xor_sync(kAllLanes, subtract_pairs(x0, x1), kDistance);
  x0 = add_pairs(sum, other), x1 = subtract_pairs(sum, other);
}

// ---- the codes ----

// Of rows that are rotated. Pairs are (0, 2), (1, 3) of each four neighbours.
struct Int4Codes {
  using Values = uint32_t[kThreadPairs];
  static constexpr float kFactor = 16.0f;  // four stages, not halved
  static constexpr int kChunkWords = kVector / 2;

  struct Factor {
    float inverse;
    __device__ __forceinline__ explicit Factor(float scale) {
      inverse = __fmul_rn(__fdiv_rn(1.0f, scale), 1.0f / kFactor);
    }
    __device__ __forceinline__ uint32_t codes(uint32_t even, uint32_t odd) const {
      // The low byte of an integer in the lowest bits of a float, where its last place is 1.
      constexpr float kAlign = 12582912.0f;  // 1.5 2^23
      const auto code = [this](float v) {
        return __float_as_uint(__fadd_rn(__fmul_rn(v, inverse), kAlign));
      };
      const uint32_t first = __byte_perm(code(low_bf16(even)), code(low_bf16(odd)), 0x0040),
                     second = __byte_perm(code(high_bf16(even)), code(high_bf16(odd)), 0x0040);
      return __byte_perm(first, second, 0x5410);
    }
  };

  // False for a value other than 0 below 2^-100.
  template <typename Source>
  static __device__ __forceinline__ bool take(const Source&, const unsigned char* chunks, int, bool,
                                              Values& v) {
    constexpr uint32_t kSmallest = 27 << 7;  // 2^-100 as bf16
    uint32_t least = 0x7fff7fffu;            // magnitudes - 1 with the sign bit set, 0 the largest
#pragma unroll
    for (int c = 0; c < kThreadPairs; c += kChunkWords) {
      const uint4 words = *reinterpret_cast<const uint4*>(chunks + c / kChunkWords * kChunkBytes);
      v[c] = words.x, v[c + 1] = words.y, v[c + 2] = words.z, v[c + 3] = words.w;
#pragma unroll
      for (int i = c; i < c + kChunkWords; i += 2)
        least = __vimin3_s16x2(least, (v[i] | 0x80008000u) - 0x00010001u,
                               (v[i + 1] | 0x80008000u) - 0x00010001u);
    }
    const auto fits = [](uint32_t half) { return static_cast<int16_t>(half) + 32769 >= int{kSmallest}; };
    return fits(least & 0xffffu) && fits(least >> 16);
  }
  static __device__ __forceinline__ uint32_t finish(Values& v, uint32_t (&pairs)[kThreadPairs]) {
    constexpr int kHalf = kThreadPairs / 2;
#pragma unroll
    for (int c = 0; c < kThreadPairs; c += kChunkWords) {
      rotate_neighbours(v[c], v[c + 1]);
      rotate_neighbours(v[c + 2], v[c + 3]);
      rotate_exchanged<1>(v[c], v[c + 2]);
      rotate_exchanged<1>(v[c + 1], v[c + 3]);
    }
#pragma unroll
    for (int i = 0; i < kThreadPairs; ++i)
      if (i / kChunkWords % 4 == 0)
        rotate_pairs(v[i], v[i + kChunkWords], v[i + 2 * kChunkWords], v[i + 3 * kChunkWords]);
    uint32_t largest = 0;  // of a word's halves each
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      pairs[i] = v[i], pairs[i + kHalf] = v[i + kHalf];
      rotate_exchanged<2>(pairs[i], pairs[i + kHalf]);
      largest = __vimax3_u16x2(largest, pairs[i] & 0x7fff7fffu, pairs[i + kHalf] & 0x7fff7fffu);
    }
    return max(largest & 0xffffu, largest >> 16) << 16;
  }
  static __device__ __forceinline__ float scale(float largest) {
    return int4_scale(__fmul_rn(largest, 1.0f / kFactor));
  }
  static int plain_bytes(int) { return kInt4Piece * 4; }  // of shared memory
  template <typename Source>
  static __device__ __forceinline__ void plain_rows(const Source& source, int64_t rows, int64_t k,
                                                    float* piece, uint32_t* warp_maxima, int8_t* codes,
                                                    float* scales) {
    for (int64_t m = blockIdx.x; m < rows; m += gridDim.x) {
      __syncthreads();  // the shared memory is free again, and what this block wrote to scales can be read
      if (scales[m] == kNotDone)
        quantize_int4_row(source.data + m * source.stride, k, kRotated, piece, warp_maxima, codes + m * k,
                          scales + m);
    }
  }
};

}  // namespace h3s::cuda::device
