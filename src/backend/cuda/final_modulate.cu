// final_modulate: y = f(n gain) + shift, gain = 1 + scale, n the rounded RMS norm of rms_norm.cu.
//
// x [m, c] in the compute type; weight, scale, shift [c] and y [m, c] float; all dense. Rounding: n as in
// rms_norm; gain, product and sum are float roundings, with round_each also the compute type's. Equal to
// cpu::final_modulate_definition bit for bit, hence under any chunking of rows. Bytes moved per row: x once
// (as in rms_norm.cu), y once; the three vectors come from L1.
#include "backend/cuda/device/row_norm.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_ops.h"
#include "backend/cuda/row_stage.h"

namespace h3s::cuda {
namespace {

using namespace device;

template <typename T>
struct Params {
  const T* x;
  const float *weight, *scale, *shift;
  float* y;
  int m, c;
};

// A block a row. T: compute type; R: what gain, product and sum are rounded to. kStaged: wide accesses, the
// row in shared memory.
template <typename T, typename R, bool kStaged>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) final_modulate_kernel(const Params<T> p) {
  const int64_t m = blockIdx.x;
  const T* x = p.x + m * p.c;

  // Load and reduce.
  if constexpr (kStaged) {
    extern __shared__ uint4 shared[];
    T* row = reinterpret_cast<T*>(shared);
    stage_row(x, p.c, row);
    x = row;
  }
  const float r = block_rms_scale<kStaged>(x, p.c);

  // Normalise, modulate and store.
  float* y = p.y + m * p.c;
#pragma unroll 2
  for (int i = threadIdx.x * kQuad; i < p.c; i += kRowThreads * kQuad) {
    const int left = p.c - i;
    float v[kQuad], weight[kQuad], scale[kQuad], shift[kQuad];
    load_quad<kStaged, Use::kPlain>(x + i, left, v);
    load_quad<kStaged, Use::kReuse>(p.weight + i, left, weight);
    load_quad<kStaged, Use::kReuse>(p.scale + i, left, scale);
    load_quad<kStaged, Use::kReuse>(p.shift + i, left, shift);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const float n = round_to<T>(__fmul_rn(__fmul_rn(v[j], r), weight[j]));
      const float gain = round_to<R>(__fadd_rn(1.0f, scale[j]));
      v[j] = round_to<R>(__fadd_rn(round_to<R>(__fmul_rn(n, gain)), shift[j]));
    }
    store_quad<kStaged>(v, y + i, left);
  }
}

// ----------------------------------------------------------------------------------------------------

template <typename T, typename R>
void launch(const Params<T>& p, cudaStream_t stream) {
  const bool wide = p.c % kVector == 0 && aligned16(p.x) && aligned16(p.y) && aligned16(p.weight) &&
                    aligned16(p.scale) && aligned16(p.shift);
  const int shared_bytes = staged_row_bytes(p.c, sizeof(T), wide);
  with_flag(shared_bytes > 0, [&]<bool kStaged>() {
    const auto kernel = final_modulate_kernel<T, R, kStaged>;
    leave_room_for_l1(kernel);
    kernel<<<static_cast<unsigned>(p.m), kRowThreads, shared_bytes, stream>>>(p);
    H3S_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace

void final_modulate(const kernels::FinalModulateArgs& a, cudaStream_t stream) {
  with_compute_type(a.dtype, [&]<typename T>() {
    const Params<T> p{static_cast<const T*>(a.x), a.weight, a.scale, a.shift, a.y, static_cast<int>(a.m),
                      static_cast<int>(a.c)};
    if (a.round_each)
      launch<T, T>(p, stream);
    else
      launch<T, float>(p, stream);
  });
}

}  // namespace h3s::cuda
