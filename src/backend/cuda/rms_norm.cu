// rms_norm: n = round((x r) w), r = 1 / sqrt(sum(x^2) / c + eps); modulated: y = round(round(n gain) +
// shift).
//
// x, y [m, c] in the compute type, w [c] float, gain and shift columns of a table row in the compute type.
// Rounding: sum in 64 interleaved fused chains (device/row_norm.cuh); x r and (x r) w are rounded to float,
// then to the compute type; modulated, n gain is rounded to float and to the compute type, plus shift
// likewise. Equal to cpu::rms_norm_definition bit for bit, hence under any chunking of rows: a row is one
// warp's work. Bytes moved per row: x once (when 8 divides c and the row fits shared memory; else twice, the
// second time from cache), y once; w, gain and shift come from L1, which rows of a multiprocessor share.
#include "backend/cuda/device/modulation.cuh"
#include "backend/cuda/device/row_norm.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"
#include "backend/cuda/row_stage.h"
#include "backend/cuda/segments.h"

namespace h3s::cuda {
namespace {

using namespace device;

template <typename T>
struct Params {
  const T* x;
  int64_t x_stride;
  const float* weight;
  T* y;
  const T* table;  // null: not modulated
  int64_t table_stride, gain_offset, shift_offset;
  int m, c;
};

template <typename T>
struct ModulationRow {
  const T* gain;
  const T* shift;
};

// Columns [i, i + 8) of y from those of x.
template <typename T, bool kWide, bool kModulate>
__device__ __forceinline__ void normalise(const Params<T>& p, const T* x, float r, ModulationRow<T> mod, T* y,
                                          int i) {
  const int64_t left = p.c - i;
  float v[kVector], weight[kVector];
  load<kWide, Use::kPlain>(x + i, left, v);
  load<kWide, Use::kReuse>(p.weight + i, left, weight);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v[j] = __fmul_rn(__fmul_rn(v[j], r), weight[j]);
  if constexpr (kModulate) {
    float gain[kVector], shift[kVector];
    load<kWide, Use::kReuse>(mod.gain + i, left, gain);
    load<kWide, Use::kReuse>(mod.shift + i, left, shift);
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      v[j] = __fadd_rn(round_to<T>(__fmul_rn(round_to<T>(v[j]), gain[j])), shift[j]);
  }
  store<kWide>(v, y + i, left);
}

// A block a row. kStaged: wide accesses, the row in shared memory.
template <typename T, bool kStaged, bool kModulate>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    rms_norm_kernel(const Params<T> p, const __grid_constant__ SegmentTable segments) {
  const int64_t m = blockIdx.x;
  const T* x = p.x + m * p.x_stride;

  // Load and reduce.
  if constexpr (kStaged) {
    extern __shared__ uint4 shared[];
    T* row = reinterpret_cast<T*>(shared);
    stage_row(x, p.c, row);
    x = row;
  }
  const float r = block_rms_scale<kStaged>(x, p.c);

  // Normalise and store.
  ModulationRow<T> mod{};
  if constexpr (kModulate) {
    const T* table = p.table + table_row(segments, m) * p.table_stride;
    mod = {table + p.gain_offset, table + p.shift_offset};
  }
  T* y = p.y + m * p.c;
#pragma unroll 2
  for (int i = threadIdx.x * kVector; i < p.c; i += kRowThreads * kVector)
    normalise<T, kStaged, kModulate>(p, x, r, mod, y, i);
}

// ----------------------------------------------------------------------------------------------------

template <typename T>
bool wide(const Params<T>& p) {
  constexpr int kPerAccess = 16 / sizeof(T);
  return p.c % kVector == 0 && p.x_stride % kPerAccess == 0 && aligned16(p.x) && aligned16(p.y) &&
         aligned16(p.weight) && aligned16(p.table) && p.table_stride % kPerAccess == 0 &&
         p.gain_offset % kPerAccess == 0 && p.shift_offset % kPerAccess == 0;
}

template <typename T>
void launch(const Params<T>& p, const SegmentTable& segments, cudaStream_t stream) {
  const int shared_bytes = staged_row_bytes(p.c, sizeof(T), wide(p));
  with_flag(shared_bytes > 0, [&]<bool kStaged>() {
    with_flag(p.table != nullptr, [&]<bool kModulate>() {
      const auto kernel = rms_norm_kernel<T, kStaged, kModulate>;
      leave_room_for_l1(kernel);
      kernel<<<static_cast<unsigned>(p.m), kRowThreads, shared_bytes, stream>>>(p, segments);
      H3S_CUDA_CHECK_LAUNCH();
    });
  });
}

}  // namespace

void rms_norm(const kernels::RmsNormArgs& a, cudaStream_t stream) {
  with_compute_type(a.dtype, [&]<typename T>() {
    Params<T> p{static_cast<const T*>(a.x),
                a.x_stride,
                a.weight,
                static_cast<T*>(a.y),
                nullptr,
                0,
                a.gain_offset,
                a.shift_offset,
                static_cast<int>(a.m),
                static_cast<int>(a.c)};
    if (!a.modulate) return launch(p, SegmentTable{}, stream);
    p.table = static_cast<const T*>(a.modulation.table);
    p.table_stride = a.modulation.row_stride;
    for_segments(a.modulation, a.m, [&](int64_t first, int64_t rows, const SegmentTable& segments) {
      Params<T> part = p;
      part.x += first * p.x_stride;
      part.y += first * a.c;
      part.m = static_cast<int>(rows);
      launch(part, segments, stream);
    });
  });
}

}  // namespace h3s::cuda
