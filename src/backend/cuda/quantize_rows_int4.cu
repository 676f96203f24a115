// quantize_rows with RowCode::kInt4: codes from -7 to 7 of each row with one float scale, rotated first where
// asked for. Contract in kernels/linear.h, formula and routes in device/quantize_int4.cuh.
//
// x [m, k] bf16 or f32, codes [m, k], scale [m]. Equal to the CPU definition bit for bit, hence under any
// chunking of rows. Bytes moved per row: x in (twice by the plain route, the second time from cache), k codes
// and a scale out.
#include <cuda_bf16.h>

#include "backend/cuda/device/quantize_int4.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/quantize.h"
#include "backend/cuda/quantize_launch.cuh"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kThreads = 256;

// A block a row, by the plain route.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_int4_kernel(const T* x, int64_t stride, int group, int8_t* codes, float* scales, int64_t k) {
  __shared__ float piece[kInt4Piece];
  __shared__ uint32_t warp_maxima[32];
  const int64_t m = blockIdx.x;
  quantize_int4_row(x + m * stride, k, group, piece, warp_maxima, codes + m * k, scales + m);
}

struct Int4Source {
  // 64 registers: 32 warps on a multiprocessor.
  static constexpr RotatedRoute kRotatedRoute = {1, 64, false};
  const __nv_bfloat16* data;
  int64_t stride;

  __device__ __forceinline__ void begin() const {}
};

bool quantize_rotated_rows(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) {
  const QuantizeOutput out = {a.codes, a.scale, a.m, a.k, a.rotate_group};
  const auto aligned = [](uintptr_t address) { return address % 16 == 0; };
  return a.x_dtype == DType::kBF16 && a.rotate_group == kRotated && a.m < int64_t{1} << 30 &&
         aligned(reinterpret_cast<uintptr_t>(a.x) | static_cast<uintptr_t>(a.x_stride) * 2) &&
         aligned(reinterpret_cast<uintptr_t>(a.codes)) &&
         launch_rotated<Int4Codes>(Int4Source{static_cast<const __nv_bfloat16*>(a.x), a.x_stride}, out,
                                   stream);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void quantize_rows_int4(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) {
  H3S_CUDA_ASSERT(a.rotate_group <= kInt4Piece);
  if (a.m == 0 || quantize_rotated_rows(a, stream)) return;
  with_compute_type(a.x_dtype, [&]<typename T>() {
    quantize_int4_kernel<T><<<static_cast<unsigned>(a.m), kThreads, 0, stream>>>(
        static_cast<const T*>(a.x), a.x_stride, static_cast<int>(a.rotate_group), a.codes, a.scale, a.k);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace h3s::cuda
