// swiglu_quantize_rows: the quantiser of quantize_rows.cu fed with f(silu(gate) up), not rounded further.
//
// gate_up [m, 2k] (gate, then up) bf16 or f32, codes [m, k], scale [m]. silu is f(gate / f(1 + exp(-gate)))
// with the exp of device/exp.cuh. Equal to the CPU definition bit for bit, hence under any chunking of rows.
// Bytes moved per row: gate_up in, k codes and a scale out. silu of bf16 comes from a table
// (device/silu_table.cuh): the formula would make this bound by instructions.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize_team.cuh"
#include "backend/cuda/device/silu.cuh"
#include "backend/cuda/device/silu_table.cuh"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::SwigluQuantizeRowsArgs;

// False for a gate outside of what silu_fast takes; what is not finite shows in the product.
__device__ __forceinline__ bool multiply(const float* gate, const float* up, float (&v)[kRun]) {
  float least = 0;
#pragma unroll
  for (int i = 0; i < kRun; i += 4) {
    const float4 z = *reinterpret_cast<const float4*>(gate + i), u = *reinterpret_cast<const float4*>(up + i);
    least = fminf(fminf(least, fminf(z.x, z.y)), fminf(z.z, z.w));
    v[i] = __fmul_rn(silu_fast(z.x), u.x), v[i + 1] = __fmul_rn(silu_fast(z.y), u.y);
    v[i + 2] = __fmul_rn(silu_fast(z.z), u.z), v[i + 3] = __fmul_rn(silu_fast(z.w), u.w);
  }
  return least >= kSiluFastMin;
}

// Magnitudes of bf16, as bits: within them silu_bf16 holds, and products are at least 2^-119, so that halving
// is exact: silu of these is at least 64 e^-64 > 2^-87.
constexpr uint32_t kSmallestGate = 0x3480, kLargestGate = 0x4280, kSmallestUp = 0x2f80;  // 2^-22, 64, 2^-32

// The smallest ones' negatives, in both halves of a word.
constexpr uint32_t kMinusGate = (0x10000 - kSmallestGate) * 0x10001, kMinusUp = (0x10000 - kSmallestUp) * 0x10001;

// What `multiply` cannot take for granted, one pair after the other and in place: the first value of a pair
// where its gates were, the second where its ups were. False when halving could be inexact.
__device__ __noinline__ bool multiply_in_place(uint32_t* gate, uint32_t* up) {
  Smallest smallest;
  for (int i = 0; i < kRun / 2; ++i) {
    const float low = __fmul_rn(silu(low_bf16(gate[i])), low_bf16(up[i])),
                high = __fmul_rn(silu(high_bf16(gate[i])), high_bf16(up[i]));
    smallest.take(low), smallest.take(high);
    gate[i] = __float_as_uint(low), up[i] = __float_as_uint(high);
  }
  return smallest.halves_exactly();
}

template <int kTabled>
__device__ __forceinline__ bool multiply(__nv_bfloat16* gate, __nv_bfloat16* up, bool works,
                                         float (&v)[kRun]) {
  uint32_t gate_reach = 0, up_reach = 0;  // the largest distance above the smallest that is usual
#pragma unroll
  for (int i = 0; i < kRun; i += kVector) {
    const uint4 gates = *reinterpret_cast<const uint4*>(gate + i),
                ups = *reinterpret_cast<const uint4*>(up + i);
    const uint32_t z[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t magnitude = magnitudes(z[j]);
      gate_reach = __viaddmax_u16x2(magnitude, kMinusGate, gate_reach);
      up_reach = __viaddmax_u16x2(magnitudes(u[j]), kMinusUp, up_reach);
      const float2 activated = 2 * j < kTabled ? silu_pair(z[j], magnitude)
                                               : make_float2(silu_bf16(low_bf16(z[j])),
                                                             silu_bf16(high_bf16(z[j])));
      v[i + 2 * j] = __fmul_rn(activated.x, low_bf16(u[j]));
      v[i + 2 * j + 1] = __fmul_rn(activated.y, high_bf16(u[j]));
    }
  }
  constexpr uint32_t kGates = kLargestGate - kSmallestGate, kUps = 0x7fff - kSmallestUp;
  const bool usual = max(gate_reach & 0xffffu, gate_reach >> 16) <= kGates &&
                     max(up_reach & 0xffffu, up_reach >> 16) <= kUps;
  if (usual || !works) return true;
  uint32_t *low = reinterpret_cast<uint32_t*>(gate), *high = reinterpret_cast<uint32_t*>(up);
  const bool exact = multiply_in_place(low, high);
#pragma unroll
  for (int i = 0; i < kRun; i += 2)
    v[i] = __uint_as_float(low[i / 2]), v[i + 1] = __uint_as_float(high[i / 2]);
  return exact;
}

template <typename T, int kTabled>
struct SwigluSource {
  using Element = T;
  static constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static constexpr int kInputs = 2, kRunsInFlight = 1;
  static constexpr bool kExactHalves = kBf16;  // bf16: `multiply` sees to it
  const T* data;
  int64_t stride, k;

  __device__ __forceinline__ auto row(int64_t m) const {
    return [gate = data + m * stride, k = k](int64_t i) {
      return __fmul_rn(silu(to_float(gate[i])), to_float(gate[i + k]));
    };
  }
  __device__ __forceinline__ void begin() const {
    if constexpr (kTabled > 0) fill_silu_table();
  }
  __device__ __forceinline__ bool take(unsigned char* run, int input_bytes, bool works,
                                       float (&v)[kRun]) const {
    T *gate = reinterpret_cast<T*>(run), *up = reinterpret_cast<T*>(run + input_bytes);
    if constexpr (kBf16)
      return multiply<kTabled>(gate, up, works, v);
    else
      return multiply(gate, up, v);
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
          SwigluSource<__nv_bfloat16, 4>{static_cast<const __nv_bfloat16*>(args.gate_up), 2 * args.k, args.k},
          out, aligned, stream);
    case DType::kF32:
      return launch_quantize(SwigluSource<float, 0>{static_cast<const float*>(args.gate_up), 2 * args.k, args.k},
                             out, aligned, stream);
    default:
      H3S_CUDA_ASSERT(!"swiglu_quantize_rows takes bf16 or f32");
  }
}

}  // namespace h3s::cuda
