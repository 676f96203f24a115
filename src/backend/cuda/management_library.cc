#include "backend/cuda/management_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>

namespace h3s::cuda {
namespace {

// Of nvml.h: NVML_CLOCK_SM, and the reasons that are no ordinary state of a busy card (hardware slowdown,
// software and hardware thermal slowdown, power brake; not the power cap).
constexpr int kClockSm = 1;
constexpr unsigned long long kThrottleReasons = 0x8 | 0x20 | 0x40 | 0x80;

}  // namespace

const ManagementLibrary& ManagementLibrary::instance() {
  static const ManagementLibrary library;
  return library;
}

ManagementLibrary::ManagementLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  int (*init)() = nullptr;
  ready_ = load("nvmlInit_v2", init) && load("nvmlDeviceGetHandleByPciBusId_v2", find_) &&
           load("nvmlDeviceGetMemoryInfo", memory_) && load("nvmlDeviceGetClockInfo", clock_) &&
           load("nvmlDeviceGetCurrentClocksThrottleReasons", reasons_) && init() == 0;
}

template <typename Fn>
bool ManagementLibrary::load(const char* name, Fn*& fn) {
  fn = reinterpret_cast<Fn*>(::dlsym(library_, name));
  return fn != nullptr;
}

void* ManagementLibrary::handle_of(int device) const {
  void* handle = nullptr;
  std::array<char, 32> bus{};
  if (!ready_ || cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) != cudaSuccess ||
      find_(bus.data(), &handle) != 0)
    return nullptr;
  return handle;
}

std::optional<std::int64_t> ManagementLibrary::used_bytes(int device) const {
  void* handle = handle_of(device);
  Memory memory{};
  if (handle == nullptr || memory_(handle, &memory) != 0) return std::nullopt;
  return static_cast<std::int64_t>(memory.used);
}

void ManagementLibrary::read_clocks(int device, DeviceState& state) const {
  void* handle = handle_of(device);
  if (handle == nullptr) return;
  unsigned mhz = 0;
  unsigned long long reasons = 0;
  if (clock_(handle, kClockSm, &mhz) == 0) state.clock_mhz = mhz;
  if (reasons_(handle, &reasons) == 0) state.throttled = (reasons & kThrottleReasons) != 0;
}

}  // namespace h3s::cuda
