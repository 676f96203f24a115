// swiglu: y = round(round(silu(gate)) up), silu(z) = z / (1 + exp(-z)).
//
// gate_up [m, 2f] (gate, then up), y [m, f], in the compute type, dense. Rounding: exp of device/exp.cuh,
// sum, quotient and product are float roundings; silu and the result are rounded to the compute type. Equal
// to cpu::swiglu_definition bit for bit, hence under any chunking of rows. Bytes moved per row: gate_up in, y
// out.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/exp.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kBatch = 2;  // vectors a thread loads before it uses the first

// A block a row.
template <typename T, bool kWide>
__global__ void swiglu_kernel(const T* gate_up, T* y, int f) {
  const int64_t m = blockIdx.x;
  const T* gate = gate_up + m * 2 * f;
  const T* up = gate + f;
  y += m * f;
  const int step = blockDim.x * kVector;
  for (int first = threadIdx.x * kVector; first < f; first += kBatch * step) {
    Packed<T> z[kBatch], u[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * step;
      if (i >= f) break;
      z[b] = load<kWide, Use::kStream>(gate + i, f - i);
      u[b] = load<kWide, Use::kStream>(up + i, f - i);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * step;
      if (i >= f) break;
      float v[kVector], w[kVector];
      unpack(z[b], v);
      unpack(u[b], w);
#pragma unroll
      for (int j = 0; j < kVector; ++j) v[j] = __fmul_rn(round_to<T>(device::silu(v[j])), w[j]);
      store<kWide>(v, y + i, f - i);
    }
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void swiglu(const kernels::SwigluArgs& a, cudaStream_t stream) {
  const bool wide = a.f % kVector == 0 && aligned16(a.gate_up) && aligned16(a.y);
  with_compute_type(a.dtype, [&]<typename T>() {
    with_flag(wide, [&]<bool kWide>() {
      swiglu_kernel<T, kWide>
          <<<static_cast<unsigned>(a.m), row_threads((a.f + kVector - 1) / kVector), 0, stream>>>(
              static_cast<const T*>(a.gate_up), static_cast<T*>(a.y), static_cast<int>(a.f));
      H3S_CUDA_CHECK_LAUNCH();
    });
  });
}

}  // namespace h3s::cuda
