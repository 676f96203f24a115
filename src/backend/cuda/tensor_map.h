// Host side of the tile copies: where descriptors of tensors in device memory are made.
//
// The driver is asked for its function when a descriptor is first needed, so that no program links libcuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "backend/cuda/check.h"

namespace h3s::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Looked up once. Throws when the driver has none (before CUDA 12).
inline EncodeTiled encode_tiled_entry() {
  static const EncodeTiled entry = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult found;
    H3S_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000,
                                                    cudaEnableDefault, &found));
    H3S_CUDA_ASSERT(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<EncodeTiled>(symbol);
  }();
  return entry;
}

// A tensor of three dimensions, the innermost first and dense, copied in boxes whose rows are one swizzled
// line of 128 bytes; what lies outside reads as zero. Strides of the outer two in bytes, multiples of 16.
inline CUtensorMap encode_tensor_map(CUtensorMapDataType type, const void* data, const cuuint64_t (&dims)[3],
                                     const cuuint64_t (&strides)[2], const cuuint32_t (&box)[3]) {
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_tiled_entry()(
      &map, type, 3, const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  H3S_CUDA_ASSERT(result == CUDA_SUCCESS);
  return map;
}

}  // namespace h3s::cuda
