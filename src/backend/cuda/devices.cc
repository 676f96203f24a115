#include "backend/cuda/devices.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  return version_text(version);
}

struct Count {
  int devices = 0;
  cudaError_t status = cudaSuccess;
};

Count count_devices() {
  Count count;
  count.status = cudaGetDeviceCount(&count.devices);
  if (count.status != cudaSuccess) {
    cudaGetLastError();  // no device is an answer, not a failure to be found by a later check
    count.devices = 0;
  }
  return count;
}

std::string why(const Count& count) {
  if (count.devices > 0) return "";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no NVIDIA driver was found (libcuda is not installed)";
  if (count.status == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver supports CUDA {}, this build needs {}", version_text(driver),
                       version_text(CUDART_VERSION));
  if (count.status == cudaSuccess || count.status == cudaErrorNoDevice)
    return "the NVIDIA driver sees no GPU";
  return fmt::format("the NVIDIA driver could not be used: {}", cudaGetErrorString(count.status));
}

// Makes no context on the device.
DeviceInfo describe(int device) {
  cudaDeviceProp properties{};
  H3S_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return {.index = device,
          .name = properties.name,
          .sm = 10 * properties.major + properties.minor,
          .total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
          .multiprocessors = properties.multiProcessorCount,
          .driver = driver_version()};
}

}  // namespace

void use_device(int device) {
  H3S_CUDA_CHECK(cudaSetDevice(device));
}

void require_device(int device) {
  const Count count = count_devices();
  if (count.devices == 0) fail(Status::kUnsupported, "[cuda] no GPU can be used: {}", why(count));
  if (device < 0 || device >= count.devices)
    fail(Status::kUnsupported, "[cuda] expected a device below {}, got cuda:{}", count.devices, device);
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  for (int i = 0; i < count_devices().devices; ++i) found.push_back(describe(i));
  return found;
}

std::int64_t free_bytes(int device) {
  make_context(device);
  std::size_t available = 0, total = 0;
  H3S_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return static_cast<std::int64_t>(available);
}

std::string why_no_device() {
  return why(count_devices());
}

}  // namespace h3s::cuda
