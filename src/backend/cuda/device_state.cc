// What the driver says of a GPU: memory through CUDA, clocks through its management library (NVML), which is
// loaded at run time because a build machine need not have it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/devices.h"

namespace h3s::cuda {
namespace {

// Of nvml.h, whose interface is stable: NVML_CLOCK_SM, and the reasons that are no ordinary state of a busy
// card (hardware slowdown, software and hardware thermal slowdown, power brake; not the power cap).
constexpr int kClockSm = 1;
constexpr unsigned long long kThrottleReasons = 0x8 | 0x20 | 0x40 | 0x80;

class ManagementLibrary {
 public:
  // Loaded once and kept: the library holds state of the driver until the process ends.
  static const ManagementLibrary& instance() {
    static const ManagementLibrary library;
    return library;
  }

  void read_clocks(int device, DeviceState& state) const {
    void* handle = nullptr;
    std::array<char, 32> bus{};
    if (!ready_ || cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) != cudaSuccess ||
        find_(bus.data(), &handle) != 0)
      return;
    unsigned mhz = 0;
    unsigned long long reasons = 0;
    if (clock_(handle, kClockSm, &mhz) == 0) state.clock_mhz = mhz;
    if (reasons_(handle, &reasons) == 0) state.throttled = (reasons & kThrottleReasons) != 0;
  }

 private:
  ManagementLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    int (*init)() = nullptr;
    ready_ = load("nvmlInit_v2", init) && load("nvmlDeviceGetHandleByPciBusId_v2", find_) &&
             load("nvmlDeviceGetClockInfo", clock_) &&
             load("nvmlDeviceGetCurrentClocksThrottleReasons", reasons_) && init() == 0;
  }
  template <typename Fn>
  bool load(const char* name, Fn*& fn) {
    fn = reinterpret_cast<Fn*>(::dlsym(library_, name));
    return fn != nullptr;
  }

  void* library_;
  bool ready_ = false;
  int (*find_)(const char* bus_id, void** device) = nullptr;
  int (*clock_)(void* device, int type, unsigned* mhz) = nullptr;
  int (*reasons_)(void* device, unsigned long long* reasons) = nullptr;
};

}  // namespace

DeviceState device_state(int device) {
  use_device(device);
  std::size_t available = 0, total = 0;
  H3S_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  DeviceState state{static_cast<std::int64_t>(available), static_cast<std::int64_t>(total)};
  ManagementLibrary::instance().read_clocks(device, state);
  return state;
}

}  // namespace h3s::cuda
