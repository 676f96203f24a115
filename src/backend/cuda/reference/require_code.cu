// Whether this build holds machine code, or PTX the driver can compile, for a device.
#include <cuda_runtime.h>

#include "backend/cuda/check.h"
#include "backend/cuda/reference/reference.h"

namespace h3s::cuda::reference {
namespace {

__global__ void probe_kernel() {}

}  // namespace

bool has_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion) {
    cudaGetLastError();  // an answer, not a failure to be found by a later check
    return false;
  }
  H3S_CUDA_CHECK(status);
  return true;
}

}  // namespace h3s::cuda::reference
