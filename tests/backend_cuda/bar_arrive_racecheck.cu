// A producer and a consumer that take turns by bar.arrive and bar.sync, as in the PTX manual. Correct, and
// yet racecheck reports hazards: the reason why attention_mma 8x2 cannot be judged by it.
#include <cstdio>
#include "backend/cuda/device/named_barrier.cuh"
using namespace h3s::cuda::device;
__global__ void k(int* out, int rounds) {
  __shared__ int buf[128];
  const int half = threadIdx.x / 128, i = threadIdx.x % 128;
  int sum = 0;
  for (int r = 0; r < rounds; ++r) {
    if (half == 0) {
      if (r > 0) named_barrier_sync(2, 256);
      buf[i] = r + i;
      named_barrier_arrive(1, 256);
    } else {
      named_barrier_sync(1, 256);
      sum += buf[127 - i];
      if (r + 1 < rounds) named_barrier_arrive(2, 256);
    }
  }
  if (half == 1) out[i] = sum;
}
int main() {
  int* o;
  cudaMalloc(&o, 512);
  k<<<1, 256>>>(o, 5);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
