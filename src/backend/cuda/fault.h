// Injected failures of CUDA calls, for tests: what a real machine does once a year must be seen to be
// survived.
#pragma once

#include <cuda_runtime_api.h>

namespace h3s::cuda {

// From now on, of the checked calls whose source text begins with `call` ("cudaMalloc"), `skip` pass and the
// next is not made but returns `error`, once. Replaces an injected failure that has not come up. `call` is a
// literal.
void inject_fault(const char* call, int skip, cudaError_t error);

// Forgets an injected failure; false when it has come up already or there was none.
bool withdraw_fault();

// For H3S_CUDA_STATUS. Without an injected failure, one relaxed load.
bool fault_due(const char* call);
cudaError_t take_fault();

}  // namespace h3s::cuda
