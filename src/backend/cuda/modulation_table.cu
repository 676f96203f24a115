// modulation_table: the AdaLN projection rounded to the compute type, the scales (parts 1 and 4 of 6) as
// round(1 + round(s)).
//
// adaln [rows, 6c] float or bf16, table [rows, 6c] in the compute type, dense. Equal to
// cpu::modulation_table_definition bit for bit. Bytes moved: both once; a few rows, once a block of the
// network.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"

namespace h3s::cuda {
namespace {

using namespace device;

// blockIdx.y is the part of a row: c columns.
template <typename TX, typename T, bool kWide>
__global__ void modulation_table_kernel(const TX* adaln, T* table, int c) {
  const int part = blockIdx.y;
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * kVector;
  if (i >= c) return;
  const int64_t first = static_cast<int64_t>(part) * c + i;
  const bool is_scale = part % 3 == 1;
  float v[kVector];
  load<kWide, Use::kStream>(adaln + first, c - i, v);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float rounded = round_to<T>(v[j]);
    v[j] = is_scale ? __fadd_rn(1.0f, rounded) : rounded;
  }
  store<kWide>(v, table + first, c - i);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------

void modulation_table(const kernels::ModulationTableArgs& a, cudaStream_t stream) {
  constexpr int kThreads = 128;
  H3S_CUDA_ASSERT(6 * a.rows <= 65535);  // grid rows
  const bool wide = a.c % kVector == 0 && aligned16(a.adaln) && aligned16(a.table);
  const dim3 grid(static_cast<unsigned>((a.c + kThreads * kVector - 1) / (kThreads * kVector)),
                  static_cast<unsigned>(6 * a.rows));
  with_compute_type(a.adaln_dtype, [&]<typename TX>() {
    with_compute_type(a.dtype, [&]<typename T>() {
      with_flag(wide, [&]<bool kWide>() {
        modulation_table_kernel<TX, T, kWide><<<grid, kThreads, 0, stream>>>(
            static_cast<const TX*>(a.adaln), static_cast<T*>(a.table), static_cast<int>(a.c));
        H3S_CUDA_CHECK_LAUNCH();
      });
    });
  });
}

}  // namespace h3s::cuda
