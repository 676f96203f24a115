// quantize_rows: int8 codes of each row with one float scale, optionally rotated first. Contract in
// kernels/linear.h.
//
// x [m, k] bf16 or f32, codes [m, k], scale [m]. Rotation and maximum in float, the quotient by way of bf16;
// device/quantize.cuh has the formula, device/quantize_team.cuh the fast route. Equal to the CPU definition
// bit for bit, hence under any chunking of rows. Bytes moved per row: x in, k codes and a scale out. A bf16
// row rotated by 256 costs about 16 instructions a value, 23 can pass on sm_90 while its three bytes do.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize_team.cuh"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::QuantizeRowsArgs;

template <typename T>
struct RowSource {
  using Element = T;
  static constexpr int kInputs = 1, kRunsInFlight = 2;
  static constexpr bool kExactHalves = std::is_same_v<T, __nv_bfloat16>;
  const T* data;
  int64_t stride;

  __device__ __forceinline__ auto row(int64_t m) const {
    return [x = data + m * stride](int64_t i) { return to_float(x[i]); };
  }
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ bool take(const unsigned char* run, int, bool, float (&v)[kRun]) const {
    load_run(reinterpret_cast<const T*>(run), v);
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
