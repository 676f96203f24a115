// The kernel and the launch that the quantisers share; what differs is the Source, where a row's values come
// from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/check.h"
#include "backend/cuda/device/quantize_team.cuh"

namespace h3s::cuda {

struct QuantizeOutput {
  int8_t* codes;  // [m, k] dense
  float* scale;   // [m]
  int64_t m, k, group;
};

inline constexpr int kPlainGroup = -1;
inline constexpr int kPlainThreads = 512;
// Of a thread: its 128 values and what surrounds them; 12 warps fit a multiprocessor. float takes all that a
// thread can have, and 8 warps.
template <typename Source>
inline constexpr int kTeamRegisters = sizeof(typename Source::Element) == 2 ? 168 : 255;
template <typename Source>
inline constexpr int kTeamWarps = sizeof(typename Source::Element) == 2 ? 12 : 8;

// The plain route for all rows.
template <typename Source>
__global__ void __launch_bounds__(kPlainThreads)
    quantize_plain_kernel(const __grid_constant__ Source source, const __grid_constant__ QuantizeOutput out) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint32_t warp_maxima[32];
  const int64_t m = blockIdx.x;
  device::quantize_plain(source, m, out.k, out.group, reinterpret_cast<float*>(shared), warp_maxima,
                         out.codes + m * out.k, out.scale + m);
}

// kGroup: the rotation. Teams take every (teams of the grid)-th set of rows.
template <int kGroup, typename Source>
__global__ void __maxnreg__((kTeamRegisters<Source>))
    quantize_kernel(const __grid_constant__ Source source, const __grid_constant__ QuantizeOutput out,
                    const device::TeamShape shape) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ device::RowMaxima maxima[device::kMaxTeams];
  __shared__ uint32_t warp_maxima[32];
  const bool left = device::quantize_team_rows<kGroup>(
      source, shape, static_cast<int>(out.m), static_cast<int>(out.k), shared, maxima, out.codes, out.scale);
  // The rows of this block that were left. The barrier lets scales be read and shared memory be used.
  if (__syncthreads_or(left)) {
    const int64_t block_rows = int64_t{shape.teams} * shape.rows;
    for (int64_t first = blockIdx.x * block_rows; first < out.m; first += gridDim.x * block_rows)
      for (int64_t m = first; m < min(first + block_rows, out.m); ++m)
        if (out.scale[m] == device::kNotDone)
          device::quantize_plain(source, m, out.k, out.group, reinterpret_cast<float*>(shared), warp_maxima,
                                 out.codes + m * out.k, out.scale + m);
  }
}

template <typename Source>
void launch_quantize_plain(const Source& source, const QuantizeOutput& out, int64_t shared_limit,
                           cudaStream_t stream) {
  const auto kernel = quantize_plain_kernel<Source>;
  cudaFuncAttributes attributes;
  H3S_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const int64_t shared_bytes = out.k * 4;
  H3S_CUDA_ASSERT(shared_bytes + static_cast<int64_t>(attributes.sharedSizeBytes) <= shared_limit);
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
  kernel<<<static_cast<unsigned>(out.m), kPlainThreads, static_cast<size_t>(shared_bytes), stream>>>(source,
                                                                                                     out);
  H3S_CUDA_CHECK_LAUNCH();
}

// The rows of a team that leave the fewest lanes idle, in at most four warps or the fewest that a row takes.
inline device::TeamShape team_shape(int64_t k, bool dense) {
  const int row = static_cast<int>(k / device::kPart), row_warps = (row + 31) / 32;
  device::TeamShape best{row, 1, 32 * row_warps, 0};
  for (int rows = 2; dense && rows <= device::kMaxTeamRows; ++rows) {
    const int threads = (rows * row + 31) / 32 * 32;
    if (threads > 32 * std::max(4, row_warps)) break;
    if (rows * best.threads > best.rows * threads) best.rows = rows, best.threads = threads;
  }
  return best;
}

// False when this row length does not fit the fast route on this device.
template <int kGroup, typename Source>
bool launch_quantize_teams(const Source& source, const QuantizeOutput& out, int multiprocessors,
                           int64_t shared_limit, cudaStream_t stream) {
  device::TeamShape shape = team_shape(out.k, source.stride == out.k);
  const auto kernel = quantize_kernel<kGroup, Source>;
  cudaFuncAttributes attributes;
  H3S_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const int64_t limit = shared_limit - static_cast<int64_t>(attributes.sharedSizeBytes);
  const int64_t team_bytes = int64_t{shape.threads} * device::kThreadBytes<Source>;
  shape.teams = static_cast<int>(
      std::min<int64_t>({device::kMaxTeams, 32 * kTeamWarps<Source> / shape.threads, limit / team_bytes}));
  const int64_t shared_bytes = std::max(shape.teams * team_bytes, out.k * 4);
  if (shape.teams == 0 || shared_bytes > limit) return false;
  H3S_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
  int resident = 0;
  const int threads = shape.teams * shape.threads;
  H3S_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads,
                                                               static_cast<size_t>(shared_bytes)));
  const int64_t block_rows = int64_t{shape.teams} * shape.rows;
  const int64_t blocks =
      std::min((out.m + block_rows - 1) / block_rows, int64_t{multiprocessors} * std::max(resident, 1));
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes),
           stream>>>(source, out, shape);
  H3S_CUDA_CHECK_LAUNCH();
  return true;
}

// `aligned`: every row that the source reads starts on 16 bytes.
template <typename Source>
void launch_quantize(const Source& source, const QuantizeOutput& out, bool aligned, cudaStream_t stream) {
  if (out.m == 0) return;
  H3S_CUDA_ASSERT(out.m < int64_t{1} << 30);  // rows are counted in int, with steps past the end
  int device = 0, limit = 0, multiprocessors = 0;
  H3S_CUDA_CHECK(cudaGetDevice(&device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const auto teams = [&]<int kGroup>() {
    return launch_quantize_teams<kGroup>(source, out, multiprocessors, limit, stream);
  };
  const bool fast = aligned && reinterpret_cast<uintptr_t>(out.codes) % 16 == 0 &&
                    out.k % device::kPart == 0 && out.k / device::kPart <= 32 * kTeamWarps<Source>;
  const bool launched = fast && (out.group == 0     ? teams.template operator()<0>()
                                 : out.group == 4   ? teams.template operator()<4>()
                                 : out.group == 16  ? teams.template operator()<16>()
                                 : out.group == 64  ? teams.template operator()<64>()
                                 : out.group == 256 ? teams.template operator()<256>()
                                                    : false);
  if (!launched) launch_quantize_plain(source, out, limit, stream);
}

}  // namespace h3s::cuda
