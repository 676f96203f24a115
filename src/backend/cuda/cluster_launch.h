// Launch of the sm_90 kernels whose blocks work in clusters and walk tiles until none is left.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"

namespace h3s::cuda {

struct ClusterLaunch {
  int cluster_blocks;
  int threads;        // of a block
  int shared_bytes;   // of a block, dynamic
  std::int64_t work;  // blocks that have something to do, a multiple of cluster_blocks
};

// One block a multiprocessor, in whole clusters, or fewer when there is less work.
template <typename... Params>
void launch_clusters(void (*kernel)(Params...), const ClusterLaunch& launch, cudaStream_t stream,
                     const Params&... params) {
  H3S_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes));
  int device = 0, multiprocessors = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const std::int64_t resident = multiprocessors / launch.cluster_blocks * launch.cluster_blocks;

  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(launch.cluster_blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min(resident, launch.work)));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  H3S_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params...));
}

}  // namespace h3s::cuda
