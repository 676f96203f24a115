#include "backend/cuda/check.h"

#include "base/error.h"

namespace h3s::cuda {

void throw_cuda_error(const char* file, int line, const char* call, cudaError_t status) {
  fail(Status::kInternal, "{}:{}: {} failed: {}", file, line, call, cudaGetErrorString(status));
}

void throw_broken_invariant(const char* file, int line, const char* condition) {
  fail(Status::kInternal, "{}:{}: broken invariant: {}", file, line, condition);
}

}  // namespace h3s::cuda
