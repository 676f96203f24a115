// The fast route of the activation quantisers for values that come as bf16 and are rotated by 256, or stand
// in such groups and are not rotated: a block a row, a row in registers.
//
// A warp holds up to eight groups of 256, four threads a group, 64 values each: eight chunks of eight
// neighbours, so that strides 1 and 16 of the rotation are a thread's own, and strides 4 and 64 half its own
// and half an exchange with the thread one or two on. The next row's copies to shared memory are under way
// while a row is worked on.
//
// What the codes are is the business of Codes: rotated_int8.cuh, quantize_int4.cuh.
#pragma once

#include <cstdint>

#include "cp_async.cuh"
#include "quantize.cuh"

namespace h3s::cuda::device {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kRotated = 256;      // values of a group
constexpr int kGroupsOfWarp = 8;   // at the most
constexpr int kThreadValues = 64;  // in chunks of kVector
constexpr int kThreadPairs = kThreadValues / 2;
constexpr int kChunkBytes = 32;  // from a thread's chunk to its next: its neighbour's lies between
// From half a group to the next half in shared memory, with a pad: threads meet no bank twice.
constexpr int kHalfBytes = kRotated + 32;      // of bf16, 16 bytes a thread
constexpr int kHalfCodes = kRotated / 2 + 16;  // of codes, 8 bytes a thread
constexpr int kMaxRotatedWarps = 16;
constexpr float kRotatedLimit = 0x1p110f;  // of magnitudes times 16; far from where anything overflows

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
template <typename Factor>
__device__ __forceinline__ void store_codes(const uint32_t (&pairs)[kThreadPairs], Factor factor,
                                            const WarpPart& part, unsigned char* shared, int8_t* codes) {
  const int lane = threadIdx.x % 32;
  unsigned char* mine = shared + lane / 2 * kHalfCodes + lane % 2 * kVector;
#pragma unroll
  for (int c = 0; c < kThreadValues / kVector; ++c) {
    const uint32_t* p = pairs + 4 * c;
    const uint2 eight = make_uint2(factor.codes(p[0], p[1]), factor.codes(p[2], p[3]));
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
// route, marked by their scale. Source: kRotatedRoute; `data` and `stride` of the rows. Codes:
//   Values        a thread's values before the rotation
//   take()        a thread's chunks to Values, or says that the plain route has to
//   finish()      Values to rotated pairs of bf16, and the bits of their largest magnitude, both by a factor
//                 that is left in; above those of kRotatedLimit where the plain route has to
//   scale()       the row's scale of that magnitude
//   Factor        of a scale; its codes() makes a word of four codes of two pairs
template <typename Codes, typename Source>
__device__ __forceinline__ bool quantize_rotated(const Source& source, int rows, int k,
                                                 unsigned char* shared, uint32_t (*maxima)[32],
                                                 int8_t* codes, float* scales) {
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
    typename Codes::Values v;
    uint32_t pairs[kThreadPairs];
    cp_async_wait<0>();
    __syncwarp();
    const bool usual = Codes::take(source, chunks, input_bytes, works, v);
    __syncwarp();
    start(row + step);
    uint32_t largest = Codes::finish(v, pairs);
    if (!works) largest = 0;
    if (!usual) largest = __float_as_uint(kRotatedLimit);
    largest = largest_of_block(largest, maxima[parity]);
    parity ^= 1;  // the next row's maxima must not meet these

    const bool fast = largest < __float_as_uint(kRotatedLimit);
    const float scale = Codes::scale(__uint_as_float(largest));
    if (threadIdx.x == 0) scales[row] = fast ? scale : kNotDone;
    left_rows |= !fast;
    store_codes(pairs, typename Codes::Factor(scale), part, mine + kInputs * input_bytes,
                codes + int64_t{row} * k + part.first * kRotated);
  }
  cp_async_wait<0>();
  return left_rows;
}

}  // namespace h3s::cuda::device
