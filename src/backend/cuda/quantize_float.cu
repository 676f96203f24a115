// quantize_float and abs_max: activations rounded to small floating-point numbers, and the largest magnitude
// that the scale of a whole tensor comes from. Contracts in kernels/quantize_float.h.
//
// x [m, k] bf16 or f32, y [m, k] bf16 (may be x), row_scale [m]. A lane holds eight neighbours, or one where
// rows do not start on 16 bytes or hold no whole blocks; a block of columns that shares a scale lies in
// neighbouring lanes. Rounding: every operation is one float rounding, divisions included. Equal to the CPU
// definitions bit for bit, hence under any chunking of rows. Bytes moved per row: x in, y out.
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

constexpr int kThreads = 224;  // eight columns each: three, four and eight times the network's rows
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

// Of values of a lane, and of kLanes neighbouring lanes.
template <int kLanes, int kPer>
__device__ __forceinline__ float block_largest(const float (&v)[kPer]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) largest = max_magnitude(largest, v[i]);
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2)
    largest = max_magnitude(largest, __shfl_xor_sync(kWholeWarp, largest, lane));
  return largest;
}

// Columns i, i + 1, ... of a row; zeros past its end.
template <int kPer, typename T>
__device__ __forceinline__ void load_scaled(const T* row, const float* pre_scale, int64_t i, int64_t k,
                                            float (&v)[kPer]) {
#pragma unroll
  for (int c = 0; c < kPer; ++c) v[c] = 0;
  if (i >= k) return;
  if constexpr (kPer == kVector)
    load<true, Use::kStream>(row + i, kVector, v);
  else
    v[0] = to_float(row[i]);
  if (pre_scale == nullptr) return;
#pragma unroll
  for (int c = 0; c < kPer; ++c) v[c] = round_to<T>(__fmul_rn(v[c], pre_scale[i + c]));
}

template <FloatCode kCode, int kPer>
__device__ __forceinline__ void quantize(float (&v)[kPer], float scale) {
  const auto each = [&](auto fn) {
#pragma unroll
    for (int c = 0; c < kPer; ++c) v[c] = fn(v[c]);
  };
  if constexpr (kCode == FloatCode::kE4M3) each([=](float x) { return round_e4m3(__fdiv_rn(x, scale)); });
  if constexpr (kCode == FloatCode::kE5M2) each([=](float x) { return round_e5m2(__fdiv_rn(x, scale)); });
  if constexpr (kCode == FloatCode::kMxfp8) {
    const int e = mx_exponent(block_largest<kernels::kMxBlock / kPer>(v));
    const float up = power_of_two(-e), down = power_of_two(e);
    each([=](float x) { return __fmul_rn(round_e4m3(__fmul_rn(x, up)), down); });
  }
  if constexpr (kCode == FloatCode::kNvfp4) {
    const float largest = block_largest<kernels::kNvfp4Block / kPer>(v);
    const float block = scale > 0 ? round_e4m3(__fdiv_rn(__fdiv_rn(largest, 6.0f), scale)) : 0.0f;
    const float step = __fmul_rn(block, scale);
    const float multiplier = step > 0 ? __fdiv_rn(1.0f, step) : 0.0f;
    each([=](float x) { return __fmul_rn(round_e2m1(__fmul_rn(x, multiplier)), block); });
  }
}

// A block a row.
template <typename T, FloatCode kCode, int kPer>
__global__ void __launch_bounds__(kThreads)
    quantize_float_kernel(const __grid_constant__ QuantizeFloatArgs a) {
  const int64_t m = blockIdx.x;
  const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
  auto* y = static_cast<__nv_bfloat16*>(a.y) + m * a.k;
  float scale = a.scale;
  if (kCode == FloatCode::kNvfp4 && scale == 0) scale = round_to<T>(__fmul_rn(*a.peak, 1.0f / 2688.0f));
  for (int64_t first = 0; first < a.k; first += kThreads * kPer) {  // whole warps: exchanges need every lane
    const int64_t i = first + threadIdx.x * kPer;
    float v[kPer];
    load_scaled(x, a.pre_scale, i, a.k, v);
    quantize<kCode>(v, scale);
    if (i >= a.k) continue;
    if constexpr (kPer == kVector)
      store<true>(v, y + i, kVector);
    else
      y[i] = __float2bfloat16_rn(v[0]);
  }
  if (threadIdx.x == 0)
    a.row_scale[m] = kCode == FloatCode::kMxfp8 ? 1.0f : __fmul_rn(scale, a.weight_scale);
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kThreads) abs_max_kernel(const __grid_constant__ AbsMaxArgs a) {
  const T* x = static_cast<const T*>(a.x) + blockIdx.x * a.x_stride;
  float largest[1] = {};
  for (int64_t i = threadIdx.x * kPer; i < a.k; i += kThreads * kPer) {
    float v[kPer];
    load_scaled(x, a.pre_scale, i, a.k, v);
    largest[0] = max_magnitude(largest[0], block_largest<1>(v));
  }
  const float warp = block_largest<32>(largest);
  // Magnitudes order like their bits, NaN above all.
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(a.peak), __float_as_int(warp));
}

// Rows of whole blocks, all on 16 bytes.
bool takes_eight(const void* x, DType dtype, int64_t stride, int64_t k) {
  const auto bytes = static_cast<uintptr_t>(stride) * dtype_size(dtype);
  return k % kernels::kMxBlock == 0 && (reinterpret_cast<uintptr_t>(x) | bytes) % 16 == 0;
}

// fn<T, kPer>()
template <typename Fn>
void with_columns(bool eight, DType dtype, Fn fn) {
  with_compute_type(dtype, [&]<typename T>() {
    if (eight)
      fn.template operator()<T, kVector>();
    else
      fn.template operator()<T, 1>();
  });
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void quantize_float(const QuantizeFloatArgs& args, cudaStream_t stream) {
  const bool eight = takes_eight(args.x, args.x_dtype, args.x_stride, args.k) &&
                     reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
  const auto launch = [&]<FloatCode kCode>() {
    with_columns(eight, args.x_dtype, [&]<typename T, int kPer>() {
      quantize_float_kernel<T, kCode, kPer><<<static_cast<unsigned>(args.m), kThreads, 0, stream>>>(args);
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
  with_columns(takes_eight(args.x, args.x_dtype, args.x_stride, args.k), args.x_dtype,
               [&]<typename T, int kPer>() {
                 abs_max_kernel<T, kPer><<<static_cast<unsigned>(args.m), kThreads, 0, stream>>>(args);
                 H3S_CUDA_CHECK_LAUNCH();
               });
}

}  // namespace h3s::cuda
