#include "backend/cuda/check.h"

#include "base/error.h"

namespace h3s::cuda {

void throw_cuda_error(const char* file, int line, const char* call, cudaError_t status) {
  const bool no_memory = status == cudaErrorMemoryAllocation;
  if (no_memory) cudaGetLastError();  // the device goes on working: not to be found by a later check
  fail(no_memory ? Status::kOverBudget : Status::kInternal, "{}:{}: {} failed: {}", file, line, call,
       cudaGetErrorString(status));
}

void throw_broken_invariant(const char* file, int line, const char* condition) {
  fail(Status::kInternal, "{}:{}: broken invariant: {}", file, line, condition);
}

}  // namespace h3s::cuda
