// Barriers among some of a block's threads. Numbers 1 to 15; 0 is __syncthreads.
#pragma once

namespace h3s::cuda::device {

// Named barrier `id` completes when `threads` threads have arrived, whether by sync (waits) or by arrive
// (does not). What a thread wrote to shared memory before either is visible to every thread that a sync lets
// pass.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
#ifdef H3S_RACECHECK  // which does not follow bar.arrive; waiting as well orders what came before just the same
  named_barrier_sync(id, threads);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace h3s::cuda::device
