// reference::quantize_rows and reference::swiglu_quantize_rows: int8 codes of each row with one float scale,
// rotated first where asked for. Contract in kernels/linear.h.
//
// x [m, k] in bf16 or float, or f(silu(gate) up) of gate_up [m, 2k]; codes [m, k], scale [m]. Rotation and
// maximum in float, the quotient by way of bf16. Equal to the CPU definitions bit for bit, hence under any
// chunking of rows. Bytes moved per row: the source twice (the second time from cache), k codes and a scale
// out.
#include "backend/cuda/device/exp.cuh"
#include "backend/cuda/device/plain_quantize.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/reference/reference.h"

namespace h3s::cuda::reference {
namespace {

using namespace device;

constexpr int kThreads = 256;
constexpr int kPiece = static_cast<int>(kMaxRotateGroup);  // values in shared memory at a time: whole groups
constexpr float kLargestBf16 = 3.38953139e38f;
constexpr float kInverse127 = 1.0f / 127.0f;
constexpr float kSmallestScale = 1e-30f;
constexpr float kSmallestNormal = 0x1p-126f;

template <typename T>
struct PlainRows {
  const T* x;
  int64_t stride;
  __device__ float operator()(int64_t m, int64_t i) const { return to_float(x[m * stride + i]); }
};

template <typename T>
struct SwigluRows {
  const T* gate_up;
  int64_t k;
  __device__ float operator()(int64_t m, int64_t i) const {
    const T* gate = gate_up + m * 2 * k + i;
    return __fmul_rn(device::silu(to_float(gate[0])), to_float(gate[k]));
  }
};

__device__ __forceinline__ float row_scale(float largest) {
  const float scale = __fmul_rn(largest < kLargestBf16 ? largest : kLargestBf16, kInverse127);
  return scale > kSmallestScale ? scale : kSmallestScale;
}

__device__ __forceinline__ int8_t code(float v, float divisor) {
  const float quotient = __fdiv_rn(round_to<__nv_bfloat16>(v), divisor);
  const float q = rintf(round_to<__nv_bfloat16>(quotient));
  return static_cast<int8_t>(static_cast<int>(q < 127.0f ? (q > -128.0f ? q : -128.0f) : 127.0f));
}

// A block a row.
template <typename Rows>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const Rows rows, int group, int8_t* codes, float* scales, int64_t k) {
  __shared__ float piece[kPiece];
  const int64_t m = blockIdx.x;
  const int step = group == 0 ? kPiece : kPiece / group * group;
  float largest = 0;
  for (int64_t first = 0; first < k; first += step) {
    const int count = static_cast<int>(min(static_cast<int64_t>(step), k - first));
    load_rotated<float>([&](int i) { return rows(m, first + i); }, count, group, piece);
    for (int i = threadIdx.x; i < count; i += kThreads) largest = max_magnitude(largest, piece[i]);
  }
  largest = block_max<kThreads>(largest);
  const bool nan = isnan(largest);
  const float scale = nan ? kNan : row_scale(largest);
  const float rounded = round_to<__nv_bfloat16>(scale);
  const float divisor = rounded == 0 ? kSmallestNormal : rounded;
  if (threadIdx.x == 0) scales[m] = scale;
  for (int64_t first = 0; first < k; first += step) {
    const int count = static_cast<int>(min(static_cast<int64_t>(step), k - first));
    load_rotated<float>([&](int i) { return rows(m, first + i); }, count, group, piece);
    for (int i = threadIdx.x; i < count; i += kThreads)
      codes[m * k + first + i] = nan ? int8_t{0} : code(piece[i], divisor);
  }
}

// ----------------------------------------------------------------------------------------------------

template <typename Rows>
void launch(const Rows& rows, int64_t group, int8_t* codes, float* scale, int64_t m, int64_t k,
            cudaStream_t stream) {
  H3S_CUDA_ASSERT(group <= kMaxRotateGroup);
  quantize_kernel<<<static_cast<unsigned>(m), kThreads, 0, stream>>>(rows, static_cast<int>(group), codes,
                                                                     scale, k);
  H3S_CUDA_CHECK_LAUNCH();
}

}  // namespace

void quantize_rows(const kernels::QuantizeRowsArgs& a, cudaStream_t stream) {
  with_compute_type(a.x_dtype, [&]<typename T>() {
    launch(PlainRows<T>{static_cast<const T*>(a.x), a.x_stride}, a.rotate_group, a.codes, a.scale, a.m, a.k,
           stream);
  });
}

void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& a, cudaStream_t stream) {
  with_compute_type(a.dtype, [&]<typename T>() {
    launch(SwigluRows<T>{static_cast<const T*>(a.gate_up), a.k}, a.rotate_group, a.codes, a.scale, a.m, a.k,
           stream);
  });
}

}  // namespace h3s::cuda::reference
