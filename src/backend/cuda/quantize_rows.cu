// quantize_rows: int8 codes of each row with one float scale, optionally rotated first. Contract in
// kernels/linear.h.
//
// x [m, k] bf16 or f32, codes [m, k], scale [m]. Rotation and maximum in float, the quotient by way of bf16;
// device/quantize.cuh has the formula and two routes, device/quantize_rotated.cuh the one for bf16 rotated
// by 256. Equal to the CPU definition bit for bit, hence under any chunking of rows. Bytes moved per row: x
// in, k codes and a scale out.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize.cuh"
#include "backend/cuda/device/quantize_rotated.cuh"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::QuantizeRowsArgs;

template <typename T>
struct RowSource {
  static constexpr bool kExactHalves = std::is_same_v<T, __nv_bfloat16>;
  static constexpr bool kWalk = sizeof(T) == 2;  // 32 registers; the 64 of f32 would not fit
  static constexpr int kBatch = kRuns;
  struct Raw {
    Packed<T> half[2];
  };
  // 80 registers: 24 warps on a multiprocessor of sm_90. Rows that are not rotated need no shared memory.
  static constexpr RotatedRoute kRotatedRoute = {sizeof(T) == 2 ? 1 : 0, 80, false};
  const T* data;
  int64_t stride;

  __device__ __forceinline__ float one(int64_t m, int64_t i) const { return to_float(data[m * stride + i]); }
  __device__ __forceinline__ Raw raw(int64_t m, int64_t i) const {
    const T* p = data + m * stride + i;
    return {load<true, Use::kReuse>(p, kVector), load<true, Use::kReuse>(p + kVector, kVector)};
  }
  __device__ __forceinline__ bool from_raw(const Raw& raw, float (&v)[kRun]) const {
    unpack(raw.half[0], reinterpret_cast<float(&)[kVector]>(v[0]));
    unpack(raw.half[1], reinterpret_cast<float(&)[kVector]>(v[kVector]));
    return true;
  }
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ bool take(const unsigned char* chunks, int, bool,
                                       float (&v)[kThreadValues]) const {
#pragma unroll
    for (int c = 0; c < kThreadValues / kVector; ++c)
      load<true, Use::kPlain>(reinterpret_cast<const T*>(chunks + c * kChunkBytes), kVector,
                              reinterpret_cast<float(&)[kVector]>(v[c * kVector]));
    return true;
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------

void quantize_rows(const QuantizeRowsArgs& args, cudaStream_t stream) {
  const QuantizeOutput out = {args.codes, args.scale, args.m, args.k, args.rotate_group};
  const auto aligned = [&](int64_t bytes) {
    return (reinterpret_cast<uintptr_t>(args.x) | static_cast<uintptr_t>(args.x_stride * bytes)) % 16 == 0;
  };
  switch (args.x_dtype) {
    case DType::kBF16:
      return launch_quantize(
          RowSource<__nv_bfloat16>{static_cast<const __nv_bfloat16*>(args.x), args.x_stride}, out, aligned(2),
          stream);
    case DType::kF32:
      return launch_quantize(RowSource<float>{static_cast<const float*>(args.x), args.x_stride}, out,
                             aligned(4), stream);
    default:
      H3S_CUDA_ASSERT(!"quantize_rows takes bf16 or f32");
  }
}

}  // namespace h3s::cuda
