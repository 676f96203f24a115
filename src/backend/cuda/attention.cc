#include "backend/cuda/attention.h"

#include "backend/cuda/check.h"

namespace h3s::cuda {

void attention(const kernels::AttentionArgs& args, cudaStream_t stream) {
  int device = 0, major = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  // wgmma exists on capability 9 alone: not before, and not after.
  if (major == 9) return attention_sm90(args, stream);
  return attention_mma(args, stream);
}

}  // namespace h3s::cuda
