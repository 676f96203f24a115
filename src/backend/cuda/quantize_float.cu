// quantize_float and abs_max: activations rounded to small floating-point numbers, and the largest magnitude
// that the scale of a whole tensor comes from. Contracts in kernels/quantize_float.h.
//
// x [m, k] bf16 or f32, y [m, k] bf16 (may be x), row_scale [m]. A lane holds a value; a block of columns that
// shares a scale lies in one warp or half of one. Rounding: every operation is one float rounding, divisions
// included. Equal to the CPU definitions bit for bit, hence under any chunking of rows. Bytes moved per row: x
// in, y out.
#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/magnitude.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/quantize.h"

namespace h3s::cuda {
namespace {

using namespace device;
using kernels::AbsMaxArgs;
using kernels::FloatCode;
using kernels::QuantizeFloatArgs;

constexpr int kThreads = 256;
constexpr unsigned kWholeWarp = 0xffffffffu;
static_assert(kernels::kMxBlock == 32 && kernels::kNvfp4Block == 16);

// As in base/float8.h.
template <int kMantissaBits, int kMinExponent>
__device__ __forceinline__ float round_small(float x, float most) {
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  const float bounded = fabsf(x) > most ? most : fabsf(x);
  const uint32_t b = __float_as_uint(bounded);
  const uint32_t odd = (b >> kDropped) & 1u;
  const float normal = __uint_as_float((b + ((1u << (kDropped - 1)) - 1) + odd) & ~((1u << kDropped) - 1));
  const float align = __uint_as_float(static_cast<uint32_t>(127 + kMinExponent + kDropped) << 23);
  const float subnormal = __fsub_rn(__fadd_rn(bounded, align), align);
  return copysignf(b - kSmallestNormal <= __float_as_uint(most) - kSmallestNormal ? normal : subnormal, x);
}
__device__ __forceinline__ float round_e4m3(float x) {
  return round_small<3, -6>(x, 448.0f);
}
__device__ __forceinline__ float round_e5m2(float x) {
  return round_small<2, -14>(x, 57344.0f);
}
__device__ __forceinline__ float round_e2m1(float x) {
  return round_small<1, 0>(x, 6.0f);
}

// As in base/block_scale.h.
__device__ __forceinline__ int mx_exponent(float largest) {
  const uint32_t u = __float_as_uint(max_magnitude(__fdiv_rn(largest, 448.0f), 0x1p-127f));
  const int floor = static_cast<int>(u >> 23) - 127;
  const bool power = (u & 0x7fffffu) == (floor == -127 ? 0x400000u : 0u);
  return min(power ? floor : floor + 1, 127);
}

// 2^e for e from -127 to 127.
__device__ __forceinline__ float power_of_two(int e) {
  return __uint_as_float(e == -127 ? 0x400000u : static_cast<uint32_t>(e + 127) << 23);
}

template <int kWidth>
__device__ __forceinline__ float block_largest(float v) {
  float largest = fabsf(v);
#pragma unroll
  for (int lane = kWidth / 2; lane > 0; lane /= 2)
    largest = max_magnitude(largest, __shfl_xor_sync(kWholeWarp, largest, lane));
  return largest;
}

template <typename T>
__device__ __forceinline__ float scaled(const T* row, const float* pre_scale, int64_t i) {
  const float v = to_float(row[i]);
  return pre_scale == nullptr ? v : round_to<T>(__fmul_rn(v, pre_scale[i]));
}

template <FloatCode kCode>
__device__ __forceinline__ float quantize(float v, float scale) {
  if constexpr (kCode == FloatCode::kE4M3) return round_e4m3(__fdiv_rn(v, scale));
  if constexpr (kCode == FloatCode::kE5M2) return round_e5m2(__fdiv_rn(v, scale));
  if constexpr (kCode == FloatCode::kMxfp8) {
    const int e = mx_exponent(block_largest<32>(v));
    return __fmul_rn(round_e4m3(__fmul_rn(v, power_of_two(-e))), power_of_two(e));
  }
  const float largest = block_largest<16>(v);
  const float block = scale > 0 ? round_e4m3(__fdiv_rn(__fdiv_rn(largest, 6.0f), scale)) : 0.0f;
  const float step = __fmul_rn(block, scale);
  const float multiplier = step > 0 ? __fdiv_rn(1.0f, step) : 0.0f;
  return __fmul_rn(round_e2m1(__fmul_rn(v, multiplier)), block);
}

// A block a row.
template <typename T, FloatCode kCode>
__global__ void __launch_bounds__(kThreads)
    quantize_float_kernel(const __grid_constant__ QuantizeFloatArgs a) {
  const int64_t m = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
  auto* y = static_cast<__nv_bfloat16*>(a.y) + m * a.k;
  float scale = a.scale;
  if (kCode == FloatCode::kNvfp4 && scale == 0) scale = round_to<T>(__fmul_rn(*a.peak, 1.0f / 2688.0f));
  for (int64_t first = 0; first < a.k; first += kThreads) {  // whole warps: exchanges need every lane
    const int64_t i = first + threadIdx.x;
    const float v = i < a.k ? scaled(x, a.pre_scale, i) : 0.0f;
    const float q = quantize<kCode>(v, scale);
    if (i < a.k) y[i] = __float2bfloat16_rn(q);
  }
  if (threadIdx.x == 0)
    a.row_scale[m] = kCode == FloatCode::kMxfp8 ? 1.0f : __fmul_rn(scale, a.weight_scale);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) abs_max_kernel(const __grid_constant__ AbsMaxArgs a) {
  const T* x = static_cast<const T*>(a.x) + blockIdx.x * a.x_stride;
  float largest = 0;
  for (int64_t i = threadIdx.x; i < a.k; i += kThreads)
    largest = max_magnitude(largest, scaled(x, a.pre_scale, i));
  largest = block_largest<32>(largest);
  // Magnitudes order like their bits, NaN above all.
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(a.peak), __float_as_int(largest));
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void quantize_float(const QuantizeFloatArgs& args, cudaStream_t stream) {
  const auto launch = [&]<FloatCode kCode>() {
    with_compute_type(args.x_dtype, [&]<typename T>() {
      quantize_float_kernel<T, kCode><<<static_cast<unsigned>(args.m), kThreads, 0, stream>>>(args);
      H3S_CUDA_CHECK_LAUNCH();
    });
  };
  switch (args.code) {
    case FloatCode::kE4M3:
      return launch.template operator()<FloatCode::kE4M3>();
    case FloatCode::kE5M2:
      return launch.template operator()<FloatCode::kE5M2>();
    case FloatCode::kMxfp8:
      return launch.template operator()<FloatCode::kMxfp8>();
    case FloatCode::kNvfp4:
      return launch.template operator()<FloatCode::kNvfp4>();
  }
}

void abs_max(const AbsMaxArgs& args, cudaStream_t stream) {
  if (args.first) H3S_CUDA_CHECK(cudaMemsetAsync(args.peak, 0, sizeof(float), stream));
  with_compute_type(args.x_dtype, [&]<typename T>() {
    abs_max_kernel<T><<<static_cast<unsigned>(args.m), kThreads, 0, stream>>>(args);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace h3s::cuda
