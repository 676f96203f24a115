// 16-byte copies from device to shared memory that do not pass through registers (sm_80+). On sm_75 the same
// calls copy at once through registers: the groups are then trivially complete, and the barrier that follows
// a wait still publishes them.
#pragma once

#include <cstdint>

namespace h3s::cuda::device {

__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
#else
  const int4 data = __ldg(static_cast<const int4*>(src));
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(data.x), "r"(data.y), "r"(data.z),
               "r"(data.w)
               : "memory");
#endif
}

// Copies 16 bytes to the shared address `dst`; writes zeros without touching `src` when !valid.
__device__ __forceinline__ void cp_async_16_or_zero(uint32_t dst, const void* src, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0)
               : "memory");
#else
  int4 data = make_int4(0, 0, 0, 0);
  if (valid) data = __ldg(static_cast<const int4*>(src));
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(data.x), "r"(data.y), "r"(data.z),
               "r"(data.w)
               : "memory");
#endif
}

// Starts fetching the 128-byte line of `src` into L2.
__device__ __forceinline__ void prefetch_l2(const void* src) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(src));
}

__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace h3s::cuda::device
