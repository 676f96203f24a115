// rope_table: cosines and sines of angle = f(f(position) inv_freq), 48 of each per row.
//
// positions [m, 3] double, inv_freq [16] float, table [m, 96] in the compute type. Rounding: the angle is a
// float; cos and sin are taken in double by CUDA's library (at most 2 ulp of double off, the C library 1),
// rounded to float, then to the compute type. Equality with cpu::rope_table_definition: bit for bit but where
// the double result lies within 2 ulp of a midpoint of two floats, about one value in 10^8; two CUDA runs,
// and chunks of one, always agree. Bytes moved per row: 24 in, 96 elements out.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kPairs = kernels::kRopePairs;
constexpr int kFreqs = kPairs / kernels::kRopeAxes;
constexpr int kThreads = 192;  // four rows

// A thread a pair.
template <typename T>
__global__ void rope_table_kernel(const double* positions, const float* inv_freq, T* table, int64_t m) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kPairs) + threadIdx.x / kPairs;
  if (row >= m) return;
  const int i = threadIdx.x % kPairs;
  const float position = __double2float_rn(positions[row * kernels::kRopeAxes + i / kFreqs]);
  const double angle = __fmul_rn(position, inv_freq[i % kFreqs]);
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  T* out = table + row * 2 * kPairs + i;
  out[0] = from_float<T>(__double2float_rn(cosine));
  out[kPairs] = from_float<T>(__double2float_rn(sine));
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void rope_table(const kernels::RopeTableArgs& a, cudaStream_t stream) {
  constexpr int kRows = kThreads / kPairs;
  with_compute_type(a.dtype, [&]<typename T>() {
    rope_table_kernel<T><<<static_cast<unsigned>((a.m + kRows - 1) / kRows), kThreads, 0, stream>>>(
        a.positions, a.inv_freq, static_cast<T*>(a.table), a.m);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace h3s::cuda
