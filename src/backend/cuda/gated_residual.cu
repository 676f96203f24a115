// gated_residual: x = round(fma(o, gate, x)); without modulation x = round(x + o).
//
// x, o [m, c] in the compute type, dense, x in place; gate columns of a table row in the compute type.
// Rounding: one float rounding (of the fused multiply-add, or of the sum), then the compute type's. Equal to
// cpu::gated_residual_definition bit for bit, hence under any chunking of rows. Bytes moved per row: x in and
// out, o in; the gate comes from L1.
#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/modulation.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"
#include "backend/cuda/segments.h"

namespace h3s::cuda {
namespace {

using namespace device;

constexpr int kBatch =
    3;  // vectors a thread loads before it uses the first: 96 bytes in flight, in 40 registers

template <typename T>
struct Params {
  T* x;
  const T* o;
  const T* table;  // null: no gate
  int64_t table_stride, gate_offset;
  int c;
};

// A block a row.
template <typename T, bool kWide, bool kGate>
__global__ void gated_residual_kernel(const Params<T> p, const __grid_constant__ SegmentTable segments) {
  const int64_t m = blockIdx.x;
  T* x = p.x + m * p.c;
  const T* o = p.o + m * p.c;
  const T* gate = kGate ? p.table + table_row(segments, m) * p.table_stride + p.gate_offset : nullptr;
  const int step = blockDim.x * kVector;
  for (int first = threadIdx.x * kVector; first < p.c; first += kBatch * step) {
    Packed<T> base[kBatch], add[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * step;
      if (i >= p.c) break;
      base[b] = load<kWide, Use::kStream>(x + i, p.c - i);
      add[b] = load<kWide, Use::kStream>(o + i, p.c - i);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * step;
      if (i >= p.c) break;
      float v[kVector], w[kVector];
      unpack(base[b], v);
      unpack(add[b], w);
      if constexpr (kGate) {
        float g[kVector];
        load<kWide, Use::kReuse>(gate + i, p.c - i, g);
#pragma unroll
        for (int j = 0; j < kVector; ++j) v[j] = __fmaf_rn(w[j], g[j], v[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) v[j] = __fadd_rn(v[j], w[j]);
      }
      store<kWide>(v, x + i, p.c - i);
    }
  }
}

// ----------------------------------------------------------------------------------------------------

template <typename T>
bool wide(const Params<T>& p) {
  constexpr int kPerAccess = 16 / sizeof(T);
  return p.c % kVector == 0 && aligned16(p.x) && aligned16(p.o) && aligned16(p.table) &&
         p.table_stride % kPerAccess == 0 && p.gate_offset % kPerAccess == 0;
}

template <typename T>
void launch(const Params<T>& p, int64_t rows, const SegmentTable& segments, cudaStream_t stream) {
  with_flag(wide(p), [&]<bool kWide>() {
    with_flag(p.table != nullptr, [&]<bool kGate>() {
      gated_residual_kernel<T, kWide, kGate>
          <<<static_cast<unsigned>(rows), row_threads((p.c + kVector - 1) / kVector), 0, stream>>>(p,
                                                                                                   segments);
      H3S_CUDA_CHECK_LAUNCH();
    });
  });
}

}  // namespace

void gated_residual(const kernels::GatedResidualArgs& a, cudaStream_t stream) {
  with_compute_type(a.dtype, [&]<typename T>() {
    Params<T> p{static_cast<T*>(a.x), static_cast<const T*>(a.o), nullptr, 0,
                a.gate_offset,        static_cast<int>(a.c)};
    if (!a.modulate) return launch(p, a.m, SegmentTable{}, stream);
    p.table = static_cast<const T*>(a.modulation.table);
    p.table_stride = a.modulation.row_stride;
    for_segments(a.modulation, a.m, [&](int64_t first, int64_t rows, const SegmentTable& segments) {
      Params<T> part = p;
      part.x += first * a.c;
      part.o += first * a.c;
      launch(part, rows, segments, stream);
    });
  });
}

}  // namespace h3s::cuda
