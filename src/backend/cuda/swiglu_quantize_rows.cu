// swiglu_quantize_rows: the quantiser of quantize_rows.cu fed with f(silu(gate) up), not rounded further.
//
// gate_up [m, 2k] (gate, then up) bf16 or f32, codes [m, k], scale [m]. silu is f(gate / f(1 + exp(-gate)))
// with the exp of device/exp.cuh. Equal to the CPU definition bit for bit, hence under any chunking of rows.
// Bytes moved per row: gate_up in, k codes and a scale out. Where rows are whole groups of 256, rotated by
// them or not at all, silu of bf16 comes from a table (device/silu_table.cuh): the formula would make this
// bound by instructions.

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize.cuh"
#include "backend/cuda/device/quantize_rotated.cuh"
#include "backend/cuda/device/silu.cuh"
#include "backend/cuda/device/silu_table.cuh"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::SwigluQuantizeRowsArgs;

// silu of `gate` by table, times `up`, of a thread's chunks. False when the table does not have a gate or a
// product may be so small that halving it is inexact: when a gate or an up is of magnitude 2^-25 or less, 0
// too, or a gate of 64 or more. Other products are at least 64 e^-64 2^-25 > 2^-112, far above 2^-121.
__device__ __forceinline__ bool multiply(const unsigned char* gate, const unsigned char* up,
                                         float (&v)[kThreadValues]) {
  constexpr uint32_t k64 = 0x4280;
  uint32_t least = 0xffffffffu, largest = 0;  // magnitudes, of a word's halves each
#pragma unroll
  for (int c = 0; c < kThreadValues / kVector; ++c) {
    const uint4 gates = *reinterpret_cast<const uint4*>(gate + c * kChunkBytes),
                ups = *reinterpret_cast<const uint4*>(up + c * kChunkBytes);
    const uint32_t z[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w};
    uint32_t magnitude[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      magnitude[j] = magnitudes(z[j]);
      least = __vimin3_u16x2(least, magnitude[j], magnitudes(u[j]));
      const float2 activated = silu_pair(z[j], magnitude[j]);
      v[c * kVector + 2 * j] = __fmul_rn(activated.x, low_bf16(u[j]));
      v[c * kVector + 2 * j + 1] = __fmul_rn(activated.y, high_bf16(u[j]));
    }
    largest = __vimax3_u16x2(__vimax3_u16x2(largest, magnitude[0], magnitude[1]), magnitude[2],
                             magnitude[3]);
  }
  return min(least & 0xffffu, least >> 16) > kSiluFirst && max(largest & 0xffffu, largest >> 16) < k64;
}

// The products of one chunk word by word and in place: the first of a pair where its gates were, the second
// where its ups were. False when halving could be inexact.
__device__ __noinline__ bool multiply_words(uint32_t* gate, uint32_t* up) {
  Smallest smallest;
  for (int i = 0; i < kVector / 2; ++i) {
    const float low = __fmul_rn(silu(low_bf16(gate[i])), low_bf16(up[i])),
                high = __fmul_rn(silu(high_bf16(gate[i])), high_bf16(up[i]));
    smallest.take(low), smallest.take(high);
    gate[i] = __float_as_uint(low), up[i] = __float_as_uint(high);
  }
  return smallest.halves_exactly();
}

// What `multiply` does, for any values.
__device__ __forceinline__ bool multiply_in_place(unsigned char* gate, unsigned char* up,
                                                  float (&v)[kThreadValues]) {
  bool exact = true;
#pragma unroll 1
  for (int c = 0; c < kThreadValues / kVector; ++c)
    exact &= multiply_words(reinterpret_cast<uint32_t*>(gate + c * kChunkBytes),
                            reinterpret_cast<uint32_t*>(up + c * kChunkBytes));
#pragma unroll
  for (int c = 0; c < kThreadValues / kVector; ++c) {
    const float4 low = *reinterpret_cast<const float4*>(gate + c * kChunkBytes),
                 high = *reinterpret_cast<const float4*>(up + c * kChunkBytes);
    float* eight = v + c * kVector;
    eight[0] = low.x, eight[1] = high.x, eight[2] = low.y, eight[3] = high.y;
    eight[4] = low.z, eight[5] = high.z, eight[6] = low.w, eight[7] = high.w;
  }
  return exact;
}

template <typename T>
struct SwigluSource {
  static constexpr bool kExactHalves = false;
  static constexpr bool kWalk = false;
  static constexpr int kBatch = sizeof(T) == 2 ? 2 : 1;  // 16 registers a run, 32 for f32
  struct Raw {
    Packed<T> gate[2], up[2];
  };
  // 112 registers: 18 warps on a multiprocessor of sm_90; shared memory allows 14 of the network's rows.
  static constexpr RotatedRoute kRotatedRoute = {sizeof(T) == 2 ? 2 : 0, 112, sizeof(T) == 2};
  const T* data;
  int64_t stride, k;

  __device__ __forceinline__ float one(int64_t m, int64_t i) const {
    const T* gate = data + m * stride + i;
    return __fmul_rn(silu(to_float(gate[0])), to_float(gate[k]));
  }
  __device__ __forceinline__ Raw raw(int64_t m, int64_t i) const {
    const T* gate = data + m * stride + i;
    return {
        {load<true, Use::kReuse>(gate, kVector), load<true, Use::kReuse>(gate + kVector, kVector)},
        {load<true, Use::kReuse>(gate + k, kVector), load<true, Use::kReuse>(gate + k + kVector, kVector)}};
  }
  // False when a gate is outside of what silu_fast takes.
  __device__ __forceinline__ bool from_raw(const Raw& raw, float (&v)[kRun]) const {
    bool usual = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float gate[kVector], up[kVector];
      unpack(raw.gate[half], gate);
      unpack(raw.up[half], up);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[kVector * half + i] = __fmul_rn(silu_fast(gate[i]), up[i]);
        usual &= gate[i] >= kSiluFastMin;
      }
    }
    return usual;
  }
  __device__ __forceinline__ void begin() const { fill_silu_table(); }
  __device__ __forceinline__ bool take(unsigned char* chunks, int input_bytes, bool works,
                                       float (&v)[kThreadValues]) const {
    const bool usual = multiply(chunks, chunks + input_bytes, v);
    __syncwarp();  // idle threads read what is about to be written
    return usual || !works || multiply_in_place(chunks, chunks + input_bytes, v);
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------

void swiglu_quantize_rows(const SwigluQuantizeRowsArgs& args, cudaStream_t stream) {
  const QuantizeOutput out = {args.codes, args.scale, args.m, args.k, args.rotate_group};
  const bool aligned =
      reinterpret_cast<uintptr_t>(args.gate_up) % 16 == 0;  // k % 16 == 0 is asked for anyway
  switch (args.dtype) {
    case DType::kBF16:
      return launch_quantize(
          SwigluSource<__nv_bfloat16>{static_cast<const __nv_bfloat16*>(args.gate_up), 2 * args.k, args.k},
          out, aligned, stream);
    case DType::kF32:
      return launch_quantize(SwigluSource<float>{static_cast<const float*>(args.gate_up), 2 * args.k, args.k},
                             out, aligned, stream);
    default:
      H3S_CUDA_ASSERT(!"swiglu_quantize_rows takes bf16 or f32");
  }
}

}  // namespace h3s::cuda
