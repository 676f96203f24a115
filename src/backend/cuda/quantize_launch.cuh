// The kernel and the launch that both quantisers share; what differs is the Source, where a row's values come
// from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize.cuh"
#include "backend/cuda/device/rotated_int8.cuh"
#include "backend/cuda/rotated_launch.cuh"

namespace h3s::cuda {

inline constexpr int kPlainGroup = -1;
inline constexpr int kPlainThreads = 512;
inline constexpr int kStaticBytes = 256;  // of shared memory, beside the values

// Registers of a thread: 64 values and, where blocks walk, the next row's 32, or else room for more blocks on
// a multiprocessor. (The groups up to 16 keep a row's values through all of their loads.)
template <int kGroup, typename Source>
inline constexpr int kQuantizeRegisters = (Source::kWalk || kGroup < 64 ? 128 : 96) + kExtraRegisters;

// kGroup: the rotation of the fast route, or kPlainGroup. A block takes every gridDim.x-th row.
template <int kGroup, typename Source>
__global__ void __maxnreg__((kQuantizeRegisters<kGroup, Source>))
    quantize_kernel(const __grid_constant__ Source source, const __grid_constant__ QuantizeOutput out) {
  extern __shared__ __align__(16) float shared_values[];
  __shared__ uint32_t warp_maxima[2][32];
  bool left_rows = true;
  if constexpr (kGroup != kPlainGroup) {
    left_rows = device::quantize_fast<kGroup>(source, blockIdx.x, gridDim.x, out.m, static_cast<int>(out.k),
                                              shared_values, warp_maxima, out.codes, out.scale);
  }
  if (left_rows) {
    device::quantize_plain_rows(source, blockIdx.x, gridDim.x, out.m, out.k, out.group, kGroup == kPlainGroup,
                                shared_values, warp_maxima[0], out.codes, out.scale);
  }
}

template <int kGroup, typename Source>
void launch_quantize_group(const Source& source, const QuantizeOutput& out, cudaStream_t stream) {
  const auto kernel = quantize_kernel<kGroup, Source>;
  int64_t threads = kPlainThreads, shared_bytes = out.k * 4;
  if constexpr (kGroup != kPlainGroup) {
    const int64_t warps = (out.k + device::kWarpValues - 1) / device::kWarpValues;
    threads = 32 * warps;
    // Groups up to 16 stay in registers; the plain route, should a row need it, holds the row.
    shared_bytes = std::max(shared_bytes, kGroup >= 64 ? warps * device::kWarpFloats * 4 : 0);
  }
  int device = 0, limit = 0, multiprocessors = 0, resident = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  if constexpr (kGroup != kPlainGroup) {
    if (shared_bytes + kStaticBytes > limit) return launch_quantize_group<kPlainGroup>(source, out, stream);
  }
  H3S_CUDA_ASSERT(shared_bytes + kStaticBytes <= limit);
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
  H3S_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads),
                                                               static_cast<size_t>(shared_bytes)));
  const int64_t blocks =
      Source::kWalk ? std::min<int64_t>(out.m, int64_t{multiprocessors} * std::max(resident, 1)) : out.m;
  H3S_CUDA_ASSERT(blocks < int64_t{1} << 31);
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes),
           stream>>>(source, out);
  H3S_CUDA_CHECK_LAUNCH();
}

// `aligned`: every row that the source reads starts on 16 bytes.
template <typename Source>
void launch_quantize(const Source& source, const QuantizeOutput& out, bool aligned, cudaStream_t stream) {
  if (out.m == 0) return;
  H3S_CUDA_ASSERT(out.m < int64_t{1} << 30);  // rows are counted in int, with steps past the end
  const bool fast = aligned && reinterpret_cast<uintptr_t>(out.codes) % 16 == 0 && out.k % 16 == 0 &&
                    out.k <= device::kFastMaxK;
  if (!fast) return launch_quantize_group<kPlainGroup>(source, out, stream);
  switch (out.group) {
    case 0:
      if constexpr (Source::kRotatedRoute.unrotated)
        if (launch_rotated<device::Int8Codes<false>>(source, out, stream)) return;
      return launch_quantize_group<0>(source, out, stream);
    case 4:
      return launch_quantize_group<4>(source, out, stream);
    case 16:
      return launch_quantize_group<16>(source, out, stream);
    case 64:
      return launch_quantize_group<64>(source, out, stream);
    case 256:
      if constexpr (Source::kRotatedRoute.inputs > 0)
        if (launch_rotated<device::Int8Codes<true>>(source, out, stream)) return;
      return launch_quantize_group<256>(source, out, stream);
    default:
      return launch_quantize_group<kPlainGroup>(source, out, stream);
  }
}

}  // namespace h3s::cuda
