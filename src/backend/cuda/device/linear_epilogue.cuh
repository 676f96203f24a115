// What a linear layer does with its finished sums, shared by the tensor-core kernels so that they cannot
// drift apart.
//
// Sums come as 16 x 32 pieces of a warp in the layout of mma.cuh: four neighbouring 16 x 8 tiles, lane = 4g +
// q, sums[4t + 0, 1] are row g, columns 8t + 2q + {0, 1}; sums[4t + 2, 3] the row g + 8.
//   int8:     y = round(f(f(f(sum) x_scale[row]) w_scale[column]) (+ bias[column]))
//   floating: y = round(f(f(f(sum (x_scale[row])) (+ bias[column])) (+ y before)))
// each f one fp32 rounding to nearest even, never contracted.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace h3s::cuda::device {

struct LinearOutput {
  void* y;               // [m, n]
  int64_t y_stride;      // elements
  const float* x_scale;  // [m]; floating: may be null
  const float* w_scale;  // [n], int8 only
  const float* bias;     // [n] or null
  int64_t m, n;
  bool aligned;  // every row of y starts on 16 bytes
  bool add;      // floating only: to what y holds
};

template <typename TY>
__device__ __forceinline__ TY round_output(float v) {
  if constexpr (std::is_same_v<TY, float>) return v;
  if constexpr (std::is_same_v<TY, __nv_bfloat16>) return __float2bfloat16_rn(v);
  if constexpr (std::is_same_v<TY, __half>) return __float2half_rn(v);
}

template <typename TY>
__device__ __forceinline__ uint32_t pack_output(float low, float high) {
  if constexpr (std::is_same_v<TY, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// v[t] of lane q becomes v[q] of lane t, in each quad of lanes: two exchanges of half of the values.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int t = 0; t < 4; t += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? v[t] : v[t + 1], 1);
    (odd ? v[t] : v[t + 1]) = other;
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? v[t] : v[t + 2], 2);
    (upper ? v[t] : v[t + 2]) = other;
  }
}

// The factors of the columns of one 16 x 32 piece that this lane holds; zero where there is no column.
struct ColumnTerms {
  float scale[8], bias[8];
};

__device__ __forceinline__ void load_columns(const float* src, int64_t column, int64_t n, float (&dst)[8]) {
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    const int64_t c = column + t / 2 * 8 + t % 2;
    dst[t] = c < n ? __ldg(src + c) : 0.0f;
  }
}

template <typename Sum>
__device__ __forceinline__ float finish_sum(Sum sum, float x_scale, const ColumnTerms& terms, int t,
                                            bool has_bias) {
  float v;
  if constexpr (std::is_same_v<Sum, int32_t>) {
    v = __fmul_rn(__fmul_rn(__int2float_rn(sum), x_scale), terms.scale[t]);
  } else {
    v = __fmul_rn(sum, x_scale);
  }
  return has_bias ? __fadd_rn(v, terms.bias[t]) : v;
}

// Eight finished columns of a row, 16 bits each, `column` a multiple of 8.
template <typename TY>
__device__ __forceinline__ void store_eight(const LinearOutput& out, int64_t row, int64_t column,
                                            const uint32_t (&v)[4]) {
  TY* dst = static_cast<TY*>(out.y) + row * out.y_stride + column;
  if (out.aligned && column + 8 <= out.n) {
    *reinterpret_cast<uint4*>(dst) = make_uint4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < out.n)
      reinterpret_cast<unsigned short*>(dst)[i] = static_cast<unsigned short>(v[i / 2] >> (16 * (i % 2)));
  }
}

template <typename TY>
__device__ __forceinline__ float2 unpack_output(uint32_t pair) {
  if constexpr (std::is_same_v<TY, __nv_bfloat16>)
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  else
    return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// What store_eight would overwrite; zeros where there is no column.
template <typename TY>
__device__ __forceinline__ void load_eight(const LinearOutput& out, int64_t row, int64_t column,
                                           uint32_t (&v)[4]) {
  const TY* src = static_cast<const TY*>(out.y) + row * out.y_stride + column;
  if (out.aligned && column + 8 <= out.n) {
    const uint4 whole = *reinterpret_cast<const uint4*>(src);
    v[0] = whole.x, v[1] = whole.y, v[2] = whole.z, v[3] = whole.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < out.n)
      v[i / 2] |= uint32_t{reinterpret_cast<const unsigned short*>(src)[i]} << (16 * (i % 2));
  }
}

// Adds to this lane's eight values of a row, of store_piece, what y holds there. The whole warp takes part.
template <typename TY>
__device__ __forceinline__ void add_output(const LinearOutput& out, int64_t row, int64_t column0, int q,
                                           bool inside, float (&v)[8]) {
  if constexpr (std::is_same_v<TY, float>) {
    const float* src = static_cast<const float*>(out.y) + row * out.y_stride;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const int64_t column = column0 + 2 * q + t / 2 * 8 + t % 2;
      if (inside && column < out.n) v[t] = __fadd_rn(v[t], src[column]);
    }
  } else {
    uint32_t held[4] = {};
    if (inside) load_eight<TY>(out, row, column0 + 8 * q, held);
    transpose_quad(held);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 pair = unpack_output<TY>(held[t]);
      v[2 * t] = __fadd_rn(v[2 * t], pair.x);
      v[2 * t + 1] = __fadd_rn(v[2 * t + 1], pair.y);
    }
  }
}

// Finishes and stores a warp's 16 x 32 piece at (row0, column0); all lanes of the warp take part.
template <typename TY, typename Sum>
__device__ __forceinline__ void store_piece(const LinearOutput& out, const Sum* sums, int64_t row0,
                                            int64_t column0) {
  const int lane = threadIdx.x % 32, q = lane % 4;
  if (row0 >= out.m || column0 >= out.n) return;  // the same for the whole warp
  const bool has_bias = out.bias != nullptr;
  ColumnTerms terms;
  if constexpr (std::is_same_v<Sum, int32_t>) load_columns(out.w_scale, column0 + 2 * q, out.n, terms.scale);
  if (has_bias) load_columns(out.bias, column0 + 2 * q, out.n, terms.bias);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = row0 + lane / 4 + 8 * r;
    const bool inside = row < out.m;
    const bool scaled = std::is_same_v<Sum, int32_t> || out.x_scale != nullptr;
    const float x_scale = inside && scaled ? __ldg(out.x_scale + row) : 1.0f;
    float v[8];
#pragma unroll
    for (int t = 0; t < 8; ++t)
      v[t] = finish_sum(sums[t / 2 * 4 + 2 * r + t % 2], x_scale, terms, t, has_bias);
    if constexpr (std::is_same_v<Sum, float>) {
      if (out.add) add_output<TY>(out, row, column0, q, inside, v);
    }
    if constexpr (std::is_same_v<TY, float>) {
      // A quad's pairs make whole 32-byte sectors.
      float* dst = static_cast<float*>(out.y) + row * out.y_stride + column0 + 2 * q;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int64_t left = inside ? out.n - (column0 + 8 * t + 2 * q) : 0;
        if (out.aligned && left >= 2) {
          *reinterpret_cast<float2*>(dst + 8 * t) = make_float2(v[2 * t], v[2 * t + 1]);
        } else {
          if (left >= 1) dst[8 * t] = v[2 * t];
          if (left >= 2) dst[8 * t + 1] = v[2 * t + 1];
        }
      }
    } else {
      uint32_t packed[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) packed[t] = pack_output<TY>(v[2 * t], v[2 * t + 1]);
      transpose_quad(packed);
      if (inside) store_eight<TY>(out, row, column0 + 8 * q, packed);
    }
  }
}

}  // namespace h3s::cuda::device
