// quantize_rows with RowCode::kInt4: codes from -7 to 7 of each row with one float scale, rotated first where
// asked for, every step of the rotation rounded to the type of x. Contract in kernels/linear.h.
//
// x [m, k] bf16 or f32, codes [m, k], scale [m]. Equal to the CPU definition bit for bit, hence under any
// chunking of rows. Bytes moved per row: x twice (the second time from cache), k codes and a scale out.
#include "backend/cuda/device/plain_quantize.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/quantize.h"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kPiece = 1024;  // values in shared memory at a time: whole groups
constexpr float kSmallestPeak = 1e-10f;

// A block a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_int4_kernel(const T* x, int64_t stride, int group, int8_t* codes, float* scales, int64_t k) {
  __shared__ float piece[kPiece];
  const int64_t m = blockIdx.x;
  x += m * stride;
  codes += m * k;
  const auto for_pieces = [&](auto work) {
    for (int64_t first = 0; first < k; first += kPiece) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kPiece), k - first));
      load_rotated<T, kThreads>([at = x + first](int i) { return to_float(at[i]); }, count, group, piece);
      for (int i = threadIdx.x; i < count; i += kThreads) work(first + i, piece[i]);
    }
  };
  float largest = 0;
  for_pieces([&](int64_t, float v) { largest = max_magnitude(largest, v); });
  largest = block_max<kThreads>(largest);
  const bool nan = isnan(largest);
  const float scale = nan ? kNan : __fdiv_rn(fmaxf(largest, kSmallestPeak), 7.0f);
  const float inverse = __fdiv_rn(1.0f, scale);
  if (threadIdx.x == 0) scales[m] = scale;
  for_pieces([&](int64_t i, float v) {
    const float code = nan ? 0.0f : fminf(fmaxf(rintf(__fmul_rn(v, inverse)), -7.0f), 7.0f);
    codes[i] = static_cast<int8_t>(static_cast<int>(code));
  });
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void quantize_rows_int4(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) {
  H3S_CUDA_ASSERT(a.rotate_group <= kPiece);
  with_compute_type(a.x_dtype, [&]<typename T>() {
    quantize_int4_kernel<T><<<static_cast<unsigned>(a.m), kThreads, 0, stream>>>(
        static_cast<const T*>(a.x), a.x_stride, static_cast<int>(a.rotate_group), a.codes, a.scale, a.k);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace h3s::cuda
