// What the plain quantisers, a block a row, have in common: pieces of a row rotated in shared memory.
#pragma once

#include "backend/cuda/device/element.cuh"
#include "backend/cuda/device/magnitude.cuh"

namespace h3s::cuda::device {

// One step of the regular Hadamard rotation on four values `stride` apart, everything rounded to T.
template <typename T>
__device__ __forceinline__ void rotate_quad(float* v, int stride) {
  const auto r = [](float x) { return round_to<T>(x); };
  const float s = r(__fadd_rn(v[0], v[stride])), d = r(__fsub_rn(v[0], v[stride]));
  const float e = r(__fsub_rn(v[2 * stride], v[3 * stride]));
  const float f = r(__fadd_rn(v[2 * stride], v[3 * stride]));
  v[0] = r(__fmul_rn(0.5f, r(__fadd_rn(s, e))));
  v[stride] = r(__fmul_rn(0.5f, r(__fsub_rn(s, e))));
  v[2 * stride] = r(__fmul_rn(0.5f, r(__fadd_rn(d, f))));
  v[3 * stride] = r(__fmul_rn(0.5f, r(__fsub_rn(f, d))));
}

// value(i) of [0, count), rotated in groups of `group` (0: not), steps rounded to T, in `piece`. All threads
// call.
template <typename T, typename Value>
__device__ void load_rotated(const Value& value, int count, int group, float* piece) {
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) piece[i] = value(i);
  for (int stride = 1; stride < group; stride *= 4) {
    __syncthreads();
    for (int quad = threadIdx.x; quad < count / 4; quad += blockDim.x)
      rotate_quad<T>(piece + quad / stride * 4 * stride + quad % stride, stride);
  }
  __syncthreads();
}

// The largest magnitude of all threads, to all. kThreads: a power of two.
template <int kThreads>
__device__ float block_max(float value) {
  __shared__ float largest[kThreads];
  largest[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      largest[threadIdx.x] = max_magnitude(largest[threadIdx.x], largest[threadIdx.x + half]);
  }
  __syncthreads();
  return largest[0];
}

}  // namespace h3s::cuda::device
