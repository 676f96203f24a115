#include "backend/cuda/context.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/devices.h"
#include "backend/cuda/management_library.h"
#include "base/bytes.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

// A context takes hundreds of megabytes. A difference below these is none at all, because there was one
// already; one above them is another program's too.
constexpr std::int64_t kLeastBytes = std::int64_t{32} << 20, kMostBytes = std::int64_t{2} << 30;

std::mutex mutex;
std::map<int, std::optional<std::int64_t>> contexts;  // by device; guarded by mutex

[[noreturn]] void refuse(int device, const std::optional<std::int64_t>& used_bytes) {
  cudaGetLastError();
  const DeviceInfo info = devices()[static_cast<std::size_t>(device)];
  fail(Status::kOverBudget,
       "[cuda] cuda:{} ({}) has not the memory for a context of this process: {} of {} are in use", device,
       info.name, used_bytes ? format_bytes(*used_bytes) : "most", format_bytes(info.total_bytes));
}

}  // namespace

void make_context(int device) {
  require_device(device);
  const std::lock_guard lock(mutex);
  if (contexts.contains(device)) return use_device(device);
  const ManagementLibrary& library = ManagementLibrary::instance();
  const std::optional<std::int64_t> before = library.used_bytes(device);
  cudaError_t status = H3S_CUDA_STATUS(cudaSetDevice(device));
  if (status == cudaSuccess) status = cudaFree(nullptr);  // older runtimes make it at the first call
  if (status == cudaErrorMemoryAllocation) refuse(device, before);
  if (status != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, "cudaSetDevice", status);
  const std::optional<std::int64_t> after = library.used_bytes(device);
  std::optional<std::int64_t>& bytes = contexts[device];
  if (before && after && *after - *before >= kLeastBytes && *after - *before <= kMostBytes)
    bytes = *after - *before;
}

std::optional<std::int64_t> context_bytes(int device) {
  make_context(device);
  const std::lock_guard lock(mutex);
  return contexts[device];
}

}  // namespace h3s::cuda
