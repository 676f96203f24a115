// The activation quantiser of kernels::QuantizeRowsArgs: one block a row, one scale a row.
//
//   v rotated in stages of stride 1, 4, 16, 64 (group 0: none), a = max |v|,
//   s = max(min(a, 3.38953139e38) f(1/127), 1e-30), d = bf16(s),
//   code = clamp(rne(bf16(f(bf16(v) / d))), -128, 127); with a NaN among the v: s NaN, codes 0
//
// Two routes with the same bits. The plain one keeps the row in shared memory and follows the definition word
// by word. The fast one keeps it in registers, 64 values a thread, 2048 a warp, and leaves out what cannot
// change a bit:
//   - Halving. Where all values of a row are multiples of 2^-145 (any bf16 is; a float of 2^-122 or more is),
//     every halving is exact and commutes with the roundings: the fast route works with v 2^stages and
//     divides by d 2^stages instead.
//   - The quotient's division: with y = f(1/d), q0 = f(v y) and r = v - q0 d, exact, f(q0 + r y) is f(v/d)
//     for all 8-bit significands of v and d (tested exhaustively).
//   - Range cases. A row with |v| 2^stages >= 2^120, a NaN, a float other than 0 below 2^-121 or a gate below
//     -87 is done again by the plain route.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "magnitude.cuh"

namespace h3s::cuda::device {

constexpr float kLargestBf16 = 3.38953139e38f;
constexpr float kInverse127 = 1.0f / 127.0f;
constexpr float kSmallestScale = 1e-30f;
constexpr float kFastLimit = 0x1p120f;

__device__ __forceinline__ float row_scale(float largest) {
  return fmaxf(__fmul_rn(fminf(largest, kLargestBf16), kInverse127), kSmallestScale);
}

// Never 0: the smallest scale is far above the smallest bf16.
__device__ __forceinline__ float row_divisor(float scale) {
  return round_to<__nv_bfloat16>(scale);
}

// ---- the butterfly ----

template <bool kHalve>
__device__ __forceinline__ void rotate_quad(float& x0, float& x1, float& x2, float& x3) {
  const float s = __fadd_rn(x0, x1), d = __fsub_rn(x0, x1), e = __fsub_rn(x2, x3), f = __fadd_rn(x2, x3);
  x0 = __fadd_rn(s, e), x1 = __fsub_rn(s, e), x2 = __fadd_rn(d, f), x3 = __fsub_rn(f, d);
  if constexpr (kHalve)
    x0 = __fmul_rn(0.5f, x0), x1 = __fmul_rn(0.5f, x1), x2 = __fmul_rn(0.5f, x2), x3 = __fmul_rn(0.5f, x3);
}

// All quads of v at this stride, times 2.
template <int kStride, int kCount>
__device__ __forceinline__ void rotate_all(float (&v)[kCount]) {
#pragma unroll
  for (int first = 0; first < kCount; first += 4 * kStride)
#pragma unroll
    for (int i = first; i < first + kStride; ++i)
      rotate_quad<false>(v[i], v[i + kStride], v[i + 2 * kStride], v[i + 3 * kStride]);
}

__device__ __forceinline__ float block_max(float v, uint32_t* warp_maxima) {
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = __float_as_uint(v);
  __syncthreads();
  uint32_t bits = 0;
  for (uint32_t i = 0; i < blockDim.x / 32; ++i) bits = max(bits, warp_maxima[i]);
  return __uint_as_float(bits);
}

// ---- codes ----

__device__ __forceinline__ int8_t plain_code(float v, float divisor) {
  const float q = rintf(round_to<__nv_bfloat16>(__fdiv_rn(round_to<__nv_bfloat16>(v), divisor)));
  return static_cast<int8_t>(q < 127.0f ? (q > -128.0f ? q : -128.0f) : 127.0f);
}

// b, a as signed bytes with saturation below the low half of c.
__device__ __forceinline__ uint32_t pack_bytes(int32_t a, int32_t b, uint32_t c) {
  uint32_t d;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// bf16(f(bf16(v) / divisor)) of two values in one word, for finite quotients. Roundings go in pairs: the
// conversion unit is slow.
__device__ __forceinline__ uint32_t quotient_pair(float v0, float v1, float divisor, float inverse) {
  const uint32_t rounded = pack_bf16(v0, v1);
  v0 = low_bf16(rounded), v1 = high_bf16(rounded);
  const float q0 = __fmul_rn(v0, inverse), q1 = __fmul_rn(v1, inverse);
  return pack_bf16(__fmaf_rn(__fmaf_rn(-divisor, q0, v0), inverse, q0),
                   __fmaf_rn(__fmaf_rn(-divisor, q1, v1), inverse, q1));
}

// Four codes, in order from the low byte.
__device__ __forceinline__ uint32_t fast_codes(const float* v, float divisor, float inverse) {
  const uint32_t low = quotient_pair(v[0], v[1], divisor, inverse),
                 high = quotient_pair(v[2], v[3], divisor, inverse);
  const uint32_t upper = pack_bytes(__float2int_rn(high_bf16(high)), __float2int_rn(low_bf16(high)), 0);
  return pack_bytes(__float2int_rn(high_bf16(low)), __float2int_rn(low_bf16(low)), upper);
}

// ---- the plain route ----

// The whole block; `row` [k] floats and `warp_maxima` [32] in shared memory. Source: float one(row, idx).
template <typename Source>
__device__ __noinline__ void quantize_plain(const Source& source, int64_t m, int64_t k, int64_t group,
                                            float* row, uint32_t* warp_maxima, int8_t* codes,
                                            float* scale_out) {
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) row[i] = source.one(m, i);
  __syncthreads();
  for (int64_t stride = 1; stride < group; stride *= 4) {
    for (int64_t i = threadIdx.x; i < k / 4; i += blockDim.x) {
      float* v = row + i / stride * 4 * stride + i % stride;
      rotate_quad<true>(v[0], v[stride], v[2 * stride], v[3 * stride]);
    }
    __syncthreads();
  }
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) largest = max_magnitude(largest, row[i]);
  largest = block_max(largest, warp_maxima);
  const bool nan = isnan(largest);
  const float scale = nan ? kNan : row_scale(largest);
  if (threadIdx.x == 0) *scale_out = scale;
  const float divisor = row_divisor(scale);
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
    codes[i] = nan ? int8_t{0} : plain_code(row[i], divisor);
}

// ---- the fast route ----

constexpr int kRun = 16;  // neighbours that a thread loads together: the first two stages are its own
constexpr int kRuns = 4;  // of a thread
constexpr int kWarpValues = 32 * kRun * kRuns;
constexpr int kMaxQuantizeWarps = 14;  // 144 registers a thread, at the most, of 65,536
constexpr int kFastMaxK = kWarpValues * kMaxQuantizeWarps;
constexpr int kRunPad = 20;  // floats from run to run in shared memory: four banks on, for 16-byte stores
constexpr int kGroupPad =
    16 * kRunPad + 16;        // from group of 256 to group: half of the banks on, for 16-byte loads
constexpr int kCodePad = 68;  // words of codes from group to group: four banks on
constexpr int kWarpFloats = kWarpValues / 256 * kGroupPad;

template <int kGroup>
constexpr int kStages = kGroup == 256  ? 4
                        : kGroup == 64 ? 3
                        : kGroup == 16 ? 2
                        : kGroup == 4  ? 1
                                       : 0;

// A warp's values on their way from runs of 16 neighbours to the thread's columns of a group: thread 4g + a
// takes values 16 j + 4 a + {0..3}, j = 0..15, of group g, so that strides 16 and 64 are its own.
__device__ __forceinline__ void put_run(float* shared, int run, const float (&v)[kRun]) {
  const int idx = 32 * run + threadIdx.x % 32;  // of the warp's 128 runs
  float4* dst = reinterpret_cast<float4*>(shared + idx / 16 * kGroupPad + idx % 16 * kRunPad);
#pragma unroll
  for (int i = 0; i < kRun / 4; ++i) dst[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
}

__device__ __forceinline__ void take_columns(const float* shared, float (&v)[64]) {
  const float* src = shared + threadIdx.x % 32 / 4 * kGroupPad + threadIdx.x % 4 * 4;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float4 four = *reinterpret_cast<const float4*>(src + j * kRunPad);
    v[4 * j] = four.x, v[4 * j + 1] = four.y, v[4 * j + 2] = four.z, v[4 * j + 3] = four.w;
  }
}

// The smallest magnitude but 0 of a thread's values so far, as 2 x its bits - 1: 0 comes out largest.
struct Smallest {
  uint32_t bits = 0xffffffffu;
  __device__ __forceinline__ void take(float v) { bits = min(bits, 2 * __float_as_uint(v) - 1); }
  __device__ __forceinline__ bool halves_exactly() const {
    return bits >= 2 * __float_as_uint(0x1p-121f) - 1;
  }
};

// The largest magnitude of a thread's values; anything from inf up, NaN too, comes out as not finite.
// Infinite or NaN sums of a rotation's last stage fill a quad or leave an infinity in it, so one value of
// each quad is asked for NaN.
template <int kGroup>
__device__ __forceinline__ float thread_max(const float (&v)[64]) {
  float plain[2] = {}, asked[2] = {};
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const bool first_of_quad = kGroup == 256  ? i < 16
                               : kGroup >= 16 ? i % 16 < 4
                               : kGroup == 4  ? i % 4 == 0
                                              : true;
    float& largest = (first_of_quad ? asked : plain)[i % 2];
    largest = first_of_quad ? max_magnitude(largest, v[i]) : fmaxf(largest, fabsf(v[i]));
  }
  return max_magnitude(max_magnitude(asked[0], asked[1]), fmaxf(plain[0], plain[1]));
}

constexpr float kNotDone = -1.0f;  // no scale is negative

// The rows m, m + step, ... of a block; true when rows were left for the plain route, marked by their scale.
// Source: raw loads 16 neighbours and from_raw turns them into values, or says that the plain route has to;
// kBatch of a thread's four such loads are in flight together. kWalk: a block takes many rows, and all loads
// of a row are made while the one before is worked on; else a block takes one row. kExactHalves: no halving
// can be inexact.
template <int kGroup, typename Source>
__device__ __forceinline__ bool quantize_fast(const Source& source, int64_t m, int64_t step, int64_t rows,
                                              int k, float* shared, uint32_t (*warp_maxima)[32],
                                              int8_t* codes, float* scales) {
  constexpr float kFactor = static_cast<float>(1 << kStages<kGroup>);
  constexpr bool kAskSmallest = !Source::kExactHalves && kGroup >= 4;
  const int lane = threadIdx.x % 32;
  float* mine = shared + threadIdx.x / 32 * kWarpFloats;
  const int first = threadIdx.x / 32 * kWarpValues + lane * kRun;
  const auto run_start = [&](int run) { return first + run * (32 * kRun); };

  typename Source::Raw raw[Source::kBatch];
  const auto fetch = [&](int64_t row, int from) {
#pragma unroll
    for (int i = 0; i < Source::kBatch; ++i)
      if (run_start(from + i) < k) raw[i] = source.raw(row, run_start(from + i));
  };
  bool left_rows = false;
  int parity = 0;
  if constexpr (Source::kWalk) fetch(m, 0);
  do {
    float v[64];
    Smallest smallest;
    bool usual = true;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (!Source::kWalk && run % Source::kBatch == 0) fetch(m, run);
      float part[kRun];
      if (run_start(run) < k) {
        usual &= source.from_raw(raw[run % Source::kBatch], part);
      } else {
#pragma unroll
        for (int i = 0; i < kRun; ++i) part[i] = 0.0f;
      }
      if constexpr (kAskSmallest) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) smallest.take(part[i]);
      }
      if constexpr (kGroup >= 4) rotate_all<1>(part);
      if constexpr (kGroup >= 16) rotate_all<4>(part);
      if constexpr (kGroup >= 64) {
        put_run(mine, run, part);
      } else {
#pragma unroll
        for (int i = 0; i < kRun; ++i) v[kRun * run + i] = part[i];
      }
    }
    const int64_t row = m;
    m += step;
    if (Source::kWalk && m < rows) fetch(m, 0);
    if constexpr (kGroup >= 64) {
      __syncwarp();
      take_columns(mine, v);
      __syncwarp();
      rotate_all<4>(v);  // stride 16 of the group
      if constexpr (kGroup >= 256) rotate_all<16>(v);
    }

    float largest = thread_max<kGroup>(v);
    if (!usual || (kAskSmallest && !smallest.halves_exactly())) largest = __int_as_float(0x7f800000);
    largest = block_max(largest, warp_maxima[parity]);
    parity ^= 1;  // the next row's maxima must not meet these
    if (!(largest < kFastLimit)) {
      if (threadIdx.x == 0) scales[row] = kNotDone;
      left_rows = true;
      continue;  // to the next row
    }
    int8_t* row_codes = codes + row * k;
    const float scale = row_scale(__fmul_rn(largest, 1.0f / kFactor));
    if (threadIdx.x == 0) scales[row] = scale;
    const float divisor = __fmul_rn(row_divisor(scale), kFactor), inverse = __frcp_rn(divisor);

    uint32_t words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = fast_codes(v + 4 * i, divisor, inverse);
    if constexpr (kGroup >= 64) {
      uint32_t* out = reinterpret_cast<uint32_t*>(mine);
#pragma unroll
      for (int j = 0; j < 16; ++j) out[lane / 4 * kCodePad + 4 * j + lane % 4] = words[j];
      __syncwarp();
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int idx = 32 * run + lane;
        const uint4 four = *reinterpret_cast<const uint4*>(out + idx / 16 * kCodePad + idx % 16 * 4);
        if (run_start(run) < k) *reinterpret_cast<uint4*>(row_codes + run_start(run)) = four;
      }
      __syncwarp();
    } else {
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
        if (run_start(run) < k)
          *reinterpret_cast<uint4*>(row_codes + run_start(run)) =
              make_uint4(words[4 * run], words[4 * run + 1], words[4 * run + 2], words[4 * run + 3]);
    }
  } while (Source::kWalk && m < rows);
  return left_rows;
}

// The rows m, m + step, ... of a block by the plain route: all, or those that the fast one left.
template <typename Source>
__device__ __forceinline__ void quantize_plain_rows(const Source& source, int64_t m, int64_t step,
                                                    int64_t rows, int64_t k, int64_t group, bool all,
                                                    float* shared, uint32_t* warp_maxima, int8_t* codes,
                                                    float* scales) {
  for (; m < rows; m += step) {
    __syncthreads();  // the shared memory is free again, and what this block wrote to scales can be read
    if (all || scales[m] == kNotDone)
      quantize_plain(source, m, k, group, shared, warp_maxima, codes + m * k, scales + m);
  }
}

}  // namespace h3s::cuda::device
