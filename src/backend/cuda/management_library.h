// The driver's management library (NVML), loaded at run time because a build machine need not have it.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cuda/cuda_backend.h"

namespace h3s::cuda {

class ManagementLibrary {
 public:
  // Loaded once and kept: the library holds state of the driver until the process ends.
  static const ManagementLibrary& instance();

  // Memory in use on the GPU by everything; needs no context. Empty where the library does not say.
  std::optional<std::int64_t> used_bytes(int device) const;

  // Fills in the clock and whether it is held back, where the library says.
  void read_clocks(int device, DeviceState& state) const;

 private:
  ManagementLibrary();
  template <typename Fn>
  bool load(const char* name, Fn*& fn);
  void* handle_of(int device) const;  // null: no library, or no such device

  // nvmlMemory_t of nvml.h, whose interface is stable.
  struct Memory {
    unsigned long long total, free, used;
  };

  void* library_;
  bool ready_ = false;
  int (*find_)(const char* bus_id, void** device) = nullptr;
  int (*memory_)(void* device, Memory* memory) = nullptr;
  int (*clock_)(void* device, int type, unsigned* mhz) = nullptr;
  int (*reasons_)(void* device, unsigned long long* reasons) = nullptr;
};

}  // namespace h3s::cuda
