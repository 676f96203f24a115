#include "nvml.h"

#include <dlfcn.h>

#include <string>

namespace h3s::bench {
namespace {

// Of nvml.h: functions return 0 for success.
constexpr int kClockSm = 1, kClockMemory = 2, kTemperatureGpu = 0;
using Device = void*;

class Library {
 public:
  Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      missing_ = dlerror();
    } else if (call<int()>("nvmlInit_v2") != 0) {
      missing_ = "nvmlInit failed";
    } else {
      ready_ = true;
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (ready_) call<int()>("nvmlShutdown");
    if (handle_ != nullptr) dlclose(handle_);
  }

  const std::string& missing() const { return missing_; }  // empty: it can be called

  // The function's status, or 1 when this version of the library does not have it.
  template <typename Signature, typename... Args>
  int call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<Signature*>(dlsym(handle_, name));
    return function == nullptr ? 1 : function(args...);
  }

 private:
  void* handle_;
  bool ready_ = false;
  std::string missing_;
};

}  // namespace

nlohmann::json gpu_state(int device) {
  const Library nvml;
  if (!nvml.missing().empty()) return {{"missing", nvml.missing()}};
  nlohmann::json state;
  char driver[96] = "";
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", driver, unsigned{sizeof driver}) == 0)
    state["driver"] = driver;
  Device gpu = nullptr;
  if (nvml.call<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned>(device),
                                        &gpu) != 0) {
    state["missing"] = "nvmlDeviceGetHandleByIndex failed";
    return state;
  }
  unsigned value = 0;
  const auto clock = [&](int kind) {
    return nvml.call<int(Device, int, unsigned*)>("nvmlDeviceGetClockInfo", gpu, kind, &value) == 0;
  };
  if (clock(kClockSm)) state["sm_mhz"] = value;
  if (clock(kClockMemory)) state["memory_mhz"] = value;
  if (nvml.call<int(Device, unsigned*)>("nvmlDeviceGetPowerUsage", gpu, &value) == 0)
    state["power_w"] = value / 1000.0;
  if (nvml.call<int(Device, int, unsigned*)>("nvmlDeviceGetTemperature", gpu, kTemperatureGpu, &value) == 0)
    state["temperature_c"] = value;
  return state;
}

}  // namespace h3s::bench
