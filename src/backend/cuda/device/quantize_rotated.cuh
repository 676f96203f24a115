// The fast route of the activation quantisers for values that come as bf16 and are rotated by 256, or stand
// in such groups and are not rotated: a block a row, a row in registers.
//
// A warp holds up to eight groups of 256, four threads a group, 64 values each: eight chunks of eight
// neighbours, so that strides 1 and 16 of the rotation are a thread's own, and strides 4 and 64 half its own
// and half an exchange with the thread one or two on. The next row's copies to shared memory are under way
// while a row is worked on.
//
// The bits are those of quantize_plain; beside the halvings and range cases of quantize_fast, what is left
// out is
//   - the last stage's maximum: max(|f(p + r)|, |f(p - r)|) is f(|p| + |r|);
//   - the quotient's division: see Divisor.
#pragma once

#include <cstdint>

#include "cp_async.cuh"
#include "quantize.cuh"

namespace h3s::cuda::device {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kRotated = 256;      // values of a group
constexpr int kGroupsOfWarp = 8;   // at the most
constexpr int kThreadValues = 64;  // in chunks of kVector
constexpr int kChunkBytes = 32;    // from a thread's chunk to its next: its neighbour's lies between
// From half a group to the next half in shared memory, with a pad: threads meet no bank twice.
constexpr int kHalfBytes = kRotated + 32;      // of bf16, 16 bytes a thread
constexpr int kHalfCodes = kRotated / 2 + 16;  // of codes, 8 bytes a thread
constexpr int kMaxRotatedWarps = 16;
constexpr float kRotatedLimit = 0x1p110f;  // of magnitudes times 16; far from where bf16 underflow in Divisor

// ---- the quotient ----

#if __CUDA_ARCH__ >= 800
// The inverse of a divisor as a sum of two bf16, each twice in a word.
//
// bf16(f(v / d)) is bf16(v / d) and is had from any approximation of the quotient within 2^-17 of it: with
// significands of 8 bits v / d is never half way between two bf16 nor, unless it is one, nearer to such a
// point than 2^-17 of itself (|256 v - m d| >= 1 in units of the last place, m odd of 9 bits). A product with
// the two halves, the second rounded, stays within: just so, hence all pairs are tried in
// quantize_exhaustive_cuda_test.cu.
struct Divisor {
  uint32_t high, low;

  __device__ __forceinline__ explicit Divisor(float divisor) : Divisor(divisor, reciprocal_approx(divisor)) {}
  // `approximate` within two ulps of the inverse, which is rounded right before it is split: with one ulp less
  // 226 / 251 would come out wrong.
  __device__ __forceinline__ Divisor(float divisor, float approximate) {
    const float inverse = __fmaf_rn(__fmaf_rn(-divisor, approximate, 1.0f), approximate, approximate),
                h = round_to<__nv_bfloat16>(inverse), l = __fsub_rn(inverse, h);
    high = pack_bf16(h, h), low = pack_bf16(l, l);
  }
};

// bf16(f(v / divisor)) of two bf16 in a word, for finite quotients.
__device__ __forceinline__ uint32_t quotient_pair(uint32_t pair, Divisor divisor) {
  const auto& v = reinterpret_cast<const __nv_bfloat162&>(pair);
  const __nv_bfloat162 low = __hmul2_rn(v, reinterpret_cast<const __nv_bfloat162&>(divisor.low));
  const __nv_bfloat162 q = __hfma2(v, reinterpret_cast<const __nv_bfloat162&>(divisor.high), low);
  return reinterpret_cast<const uint32_t&>(q);
}
#else
// Without arithmetic of bf16: the way of quantize.cuh.
struct Divisor {
  float divisor, inverse;

  __device__ __forceinline__ explicit Divisor(float d) : divisor(d), inverse(1.0f / d) {}
  __device__ __forceinline__ Divisor(float d, float) : Divisor(d) {}
};

__device__ __forceinline__ uint32_t quotient_pair(uint32_t pair, Divisor divisor) {
  return quotient_pair(low_bf16(pair), high_bf16(pair), divisor.divisor, divisor.inverse);
}
#endif

// The nearest integers of two bf16, ties to even.
__device__ __forceinline__ int2 round_pair(uint32_t pair) {
  int2 n;
#if __CUDA_ARCH__ >= 900
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rni.s32.bf16 %0, low; cvt.rni.s32.bf16 %1, high;}"
      : "=r"(n.x), "=r"(n.y)
      : "r"(pair));
#else
  n.x = __float2int_rn(low_bf16(pair)), n.y = __float2int_rn(high_bf16(pair));
#endif
  return n;
}

// Four codes, in order from the low byte, of values in two words.
__device__ __forceinline__ uint32_t four_codes(uint32_t first, uint32_t second, Divisor divisor) {
  const int2 a = round_pair(quotient_pair(first, divisor)), b = round_pair(quotient_pair(second, divisor));
  return pack_bytes(a.y, a.x, pack_bytes(b.y, b.x, 0));
}

// ---- the rotation ----

// A stage of which this thread holds two of four values and the one kDistance on the others. From its own sum
// p and difference m every thread needs the other's m alone: s + e, s - e here, f + d, f - d there.
struct Exchanged {
  float sum, other;
};
template <int kDistance>
__device__ __forceinline__ Exchanged exchange(float x0, float x1) {
  return {__fadd_rn(x0, x1), __shfl_xor_sync(kAllLanes, __fsub_rn(x0, x1), kDistance)};
}

// Strides 1, 4 and 16, each times 2.
__device__ __forceinline__ void rotate_but_last(float (&v)[kThreadValues]) {
  rotate_all<1>(v);
#pragma unroll
  for (int c = 0; c < kThreadValues; c += kVector)
#pragma unroll
    for (int i = c; i < c + kVector / 2; ++i) {
      const Exchanged x = exchange<1>(v[i], v[i + 4]);
      v[i] = __fadd_rn(x.sum, x.other), v[i + 4] = __fsub_rn(x.sum, x.other);
    }
  rotate_all<kVector>(v);
}

// Stride 64, times 2, rounded to pairs of bf16. Returns the largest magnitude's bits, above infinity's for
// NaN.
__device__ __forceinline__ uint32_t rotate_last(const float (&v)[kThreadValues],
                                                uint32_t (&pairs)[kThreadValues / 2]) {
  constexpr int kHalf = kThreadValues / 2;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kHalf; i += 2) {
    const Exchanged x = exchange<2>(v[i], v[i + kHalf]), y = exchange<2>(v[i + 1], v[i + 1 + kHalf]);
    pairs[i / 2] = pack_bf16(__fadd_rn(x.sum, x.other), __fadd_rn(y.sum, y.other));
    pairs[(kHalf + i) / 2] = pack_bf16(__fsub_rn(x.sum, x.other), __fsub_rn(y.sum, y.other));
    largest = max(largest, max(__float_as_uint(__fadd_rn(fabsf(x.sum), fabsf(x.other))),
                               __float_as_uint(__fadd_rn(fabsf(y.sum), fabsf(y.other)))));
  }
  return largest;
}

// No rotation, the rest alike.
__device__ __forceinline__ uint32_t round_unrotated(const float (&v)[kThreadValues],
                                                    uint32_t (&pairs)[kThreadValues / 2]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kThreadValues; i += 2) {
    pairs[i / 2] = pack_bf16(v[i], v[i + 1]);
    largest = max(largest, max(__float_as_uint(fabsf(v[i])), __float_as_uint(fabsf(v[i + 1]))));
  }
  return largest;
}

// ---- a warp's part of the rows ----

// Where a warp stands in its block and a thread in its warp. Groups of a row are dealt out to the warps, the
// same number to all but the last.
struct WarpPart {
  int first, count, most;  // groups of this warp, and of any warp

  __device__ __forceinline__ explicit WarpPart(int groups) {
    const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    most = (groups + warps - 1) / warps, first = warp * most, count = min(groups - first, most);
  }
};

// Starts copies of the warp's groups of one input; a lane copies 16 bytes of each.
__device__ __forceinline__ void copy_groups(const __nv_bfloat16* src, int count, uint32_t dst) {
  const int lane = threadIdx.x % 32;
  src += lane * kVector, dst += lane / 16 * kHalfBytes + lane % 16 * 16;
#pragma unroll
  for (int i = 0; i < kGroupsOfWarp; ++i)
    if (i < count) cp_async_16(dst + i * 2 * kHalfBytes, src + i * kRotated);
}

// A thread's codes to shared memory, from there in whole lines to `codes`.
__device__ __forceinline__ void store_codes(const uint32_t (&pairs)[kThreadValues / 2], Divisor divisor,
                                            const WarpPart& part, unsigned char* shared, int8_t* codes) {
  const int lane = threadIdx.x % 32;
  unsigned char* mine = shared + lane / 2 * kHalfCodes + lane % 2 * kVector;
#pragma unroll
  for (int c = 0; c < kThreadValues / kVector; ++c) {
    const uint32_t* p = pairs + 4 * c;
    const uint2 eight = make_uint2(four_codes(p[0], p[1], divisor), four_codes(p[2], p[3], divisor));
    if (lane / 4 < part.most) *reinterpret_cast<uint2*>(mine + c * 2 * kVector) = eight;
  }
  __syncwarp();
#pragma unroll
  for (int c = lane; c < kGroupsOfWarp * kRotated / 16; c += 32)
    if (c < part.count * kRotated / 16)
      reinterpret_cast<uint4*>(codes)[c] =
          *reinterpret_cast<const uint4*>(shared + c / 8 * kHalfCodes + c % 8 * 16);
  __syncwarp();
}

// The largest of the block. warp_maxima is 0 beyond the block's warps.
__device__ __forceinline__ uint32_t largest_of_block(uint32_t largest, uint32_t* warp_maxima) {
  largest = __float_as_uint(warp_max(__uint_as_float(largest)));
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = largest;
  __syncthreads();
  return __float_as_uint(warp_max(__uint_as_float(warp_maxima[threadIdx.x % 32])));
}

// What a source asks of this route.
struct RotatedRoute {
  int inputs;      // rows that lie side by side, k apart; 0: the route is not for this source
  int registers;   // of a thread
  bool unrotated;  // for rows that are not rotated too
};

// Shared memory for a group: its part of every input, and its codes.
template <typename Source>
constexpr int kGroupBytes = 2 * (Source::kRotatedRoute.inputs * kHalfBytes + kHalfCodes);

// The rows blockIdx.x, blockIdx.x + gridDim.x, ..., rotated or not; true when rows were left for the plain
// route, marked by their scale. Source: kRotatedRoute; `data` and `stride` of the rows; take() turns a
// thread's chunks into values or says that the plain route has to.
template <bool kRotate, typename Source>
__device__ __forceinline__ bool quantize_rotated(const Source& source, int rows, int k,
                                                 unsigned char* shared, uint32_t (*maxima)[32],
                                                 int8_t* codes, float* scales) {
  constexpr float kFactor = kRotate ? 16.0f : 1.0f;  // four stages, not halved
  constexpr int kInputs = Source::kRotatedRoute.inputs;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const WarpPart part(k / kRotated);
  const int input_bytes = part.most * 2 * kHalfBytes;
  unsigned char* mine = shared + warp * part.most * kGroupBytes<Source>;
  const auto start = [&](int row) {
    if (row < rows) {
      const __nv_bfloat16* src = source.data + row * source.stride + part.first * kRotated;
      const uint32_t dst = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
#pragma unroll
      for (int i = 0; i < kInputs; ++i) copy_groups(src + i * k, part.count, dst + i * input_bytes);
    }
    cp_async_commit();
  };

  const bool works = lane / 4 < part.count;
  const int place = min(lane, part.most * 4 - 1);  // what is idle repeats the last thread
  unsigned char* chunks = mine + place / 2 * kHalfBytes + place % 2 * 16;
  for (int i = static_cast<int>(threadIdx.x); i < 64; i += static_cast<int>(blockDim.x)) maxima[0][i] = 0;
  __syncthreads();
  bool left_rows = false;
  int parity = 0;
  int row = static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x);
  start(row);
  for (; row < rows; row += step) {
    float v[kThreadValues];
    uint32_t pairs[kThreadValues / 2];
    cp_async_wait<0>();
    __syncwarp();
    const bool usual = source.take(chunks, input_bytes, works, v);
    __syncwarp();
    start(row + step);
    if constexpr (kRotate) rotate_but_last(v);
    uint32_t largest = kRotate ? rotate_last(v, pairs) : round_unrotated(v, pairs);
    if (!works) largest = 0;
    if (!usual) largest = __float_as_uint(kRotatedLimit);
    largest = largest_of_block(largest, maxima[parity]);
    parity ^= 1;  // the next row's maxima must not meet these

    const bool fast = largest < __float_as_uint(kRotatedLimit);
    const float scale = row_scale(__fmul_rn(__uint_as_float(largest), 1.0f / kFactor));
    if (threadIdx.x == 0) scales[row] = fast ? scale : kNotDone;
    left_rows |= !fast;
    store_codes(pairs, Divisor(__fmul_rn(row_divisor(scale), kFactor)), part,
                mine + kInputs * input_bytes, codes + int64_t{row} * k + part.first * kRotated);
  }
  cp_async_wait<0>();
  return left_rows;
}

}  // namespace h3s::cuda::device
