// CUDA calls fail loudly: the text names the call, the place and CUDA's own words.
//
// Messages are built in check.cc: the CUDA compiler's front end does not evaluate the format library's
// compile-time checks.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/fault.h"

namespace h3s::cuda {

// Throws Error(kInternal): "file:line: call failed: reason".
[[noreturn]] void throw_cuda_error(const char* file, int line, const char* call, cudaError_t status);

// Throws Error(kInternal): "file:line: broken invariant: condition".
[[noreturn]] void throw_broken_invariant(const char* file, int line, const char* condition);

}  // namespace h3s::cuda

// The status of a CUDA call, or, in its place, the one that a test has injected.
#define H3S_CUDA_STATUS(call) (::h3s::cuda::fault_due(#call) ? ::h3s::cuda::take_fault() : (call))

#define H3S_CUDA_CHECK(call)                                                                       \
  do {                                                                                             \
    const cudaError_t status_ = H3S_CUDA_STATUS(call);                                             \
    if (status_ != cudaSuccess) ::h3s::cuda::throw_cuda_error(__FILE__, __LINE__, #call, status_); \
  } while (false)

// After a launch: reports a refused configuration, not errors of the kernel still running.
#define H3S_CUDA_CHECK_LAUNCH() H3S_CUDA_CHECK(cudaGetLastError())

// An invariant that no input can break, for host code in .cu files.
#define H3S_CUDA_ASSERT(condition)                                                         \
  do {                                                                                     \
    if (!(condition)) ::h3s::cuda::throw_broken_invariant(__FILE__, __LINE__, #condition); \
  } while (false)
