// swiglu_quantize_rows: the quantiser of quantize_rows.cu fed with f(silu(gate) up), not rounded further.
//
// gate_up [m, 2k] (gate, then up) bf16 or f32, codes [m, k], scale [m]. silu is f(gate / f(1 + exp(-gate)))
// with the exp of device/exp.cuh. Equal to the CPU definition bit for bit, hence under any chunking of rows.
// Bytes moved per row: gate_up in, k codes and a scale out. 47 instructions a value, rotated
// by 256, against 40 that pass on sm_90 while its five bytes (bf16) do: bound by instructions.

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize.cuh"
#include "backend/cuda/device/silu.cuh"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::SwigluQuantizeRowsArgs;

template <typename T>
struct SwigluSource {
  static constexpr bool kExactHalves = false;
  static constexpr bool kWalk = false;
  static constexpr int kBatch = sizeof(T) == 2 ? 2 : 1;  // 16 registers a run, 32 for f32
  struct Raw {
    Packed<T> gate[2], up[2];
  };
  const T* gate_up;
  int64_t k;

  __device__ __forceinline__ float one(int64_t m, int64_t i) const {
    const T* gate = gate_up + m * 2 * k + i;
    return __fmul_rn(silu(to_float(gate[0])), to_float(gate[k]));
  }
  __device__ __forceinline__ Raw raw(int64_t m, int64_t i) const {
    const T* gate = gate_up + m * 2 * k + i;
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
          SwigluSource<__nv_bfloat16>{static_cast<const __nv_bfloat16*>(args.gate_up), args.k}, out, aligned,
          stream);
    case DType::kF32:
      return launch_quantize(SwigluSource<float>{static_cast<const float*>(args.gate_up), args.k}, out,
                             aligned, stream);
    default:
      H3S_CUDA_ASSERT(!"swiglu_quantize_rows takes bf16 or f32");
  }
}

}  // namespace h3s::cuda
