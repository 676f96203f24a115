// The kernel and the launch of device/quantize_rotated.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize_rotated.cuh"

namespace h3s::cuda {

struct QuantizeOutput {
  int8_t* codes;  // [m, k] dense
  float* scale;   // [m]
  int64_t m, k, group;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kExtraRegisters = 16;  // roundings to bf16 are several instructions there
#else
inline constexpr int kExtraRegisters = 0;
#endif

// A source of bf16, rotated by 256 or not at all. A block takes every gridDim.x-th row.
template <typename Codes, typename Source>
__global__ void __maxnreg__((Source::kRotatedRoute.registers + kExtraRegisters))
    rotated_kernel(const __grid_constant__ Source source, const __grid_constant__ QuantizeOutput out) {
  extern __shared__ __align__(16) float shared_values[];
  __shared__ uint32_t warp_maxima[2][32];
  source.begin();
  if (device::quantize_rotated<Codes>(source, static_cast<int>(out.m), static_cast<int>(out.k),
                                      reinterpret_cast<unsigned char*>(shared_values), warp_maxima, out.codes,
                                      out.scale))
    Codes::plain_rows(source, out.m, out.k, shared_values, warp_maxima[0], out.codes, out.scale);
}

// False when rows of this length are not whole groups or do not fit a block of this device.
template <typename Codes, typename Source>
bool launch_rotated(const Source& source, const QuantizeOutput& out, cudaStream_t stream) {
  if (out.k % device::kRotated != 0) return false;
  const int groups = static_cast<int>(out.k / device::kRotated),
            warps = (groups + device::kGroupsOfWarp - 1) / device::kGroupsOfWarp, threads = 32 * warps;
  if (warps > device::kMaxRotatedWarps) return false;
  const auto kernel = rotated_kernel<Codes, Source>;
  int device = 0, limit = 0, multiprocessors = 0, resident = 0;
  cudaFuncAttributes attributes;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  H3S_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const int shared_bytes = std::max(warps * ((groups + warps - 1) / warps) * device::kGroupBytes<Source>,
                                    Codes::plain_bytes(static_cast<int>(out.k)));
  if (shared_bytes + static_cast<int>(attributes.sharedSizeBytes) > limit) return false;
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  H3S_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads,
                                                               static_cast<size_t>(shared_bytes)));
  const int64_t blocks = std::min<int64_t>(out.m, int64_t{multiprocessors} * std::max(resident, 1));
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes),
           stream>>>(source, out);
  H3S_CUDA_CHECK_LAUNCH();
  return true;
}

}  // namespace h3s::cuda
