// Device memory for one unit of weights, with the pinned twin it is uploaded from where the device is not the
// host.
#pragma once

#include <cstdint>
#include <string>

#include "exec/memory.h"
#include "exec/weight_loader.h"

namespace h3s::exec {

class WeightSlot {
 public:
  WeightSlot(Context context, std::int64_t bytes, const std::string& tag)
      : context_(context), device_(context.accountant.allocate(mem::Space::kDevice, bytes, tag)) {
    if (!context.backend.device_is_host())
      pinned_ = context.accountant.allocate(mem::Space::kPinned, bytes, tag);
  }

  // Where a loader builds: what ops will see, and what the CPU writes.
  SlotMemory memory() const { return {device_.data(), uploads() ? pinned_.data() : device_.data()}; }

  bool uploads() const { return !context_.backend.device_is_host(); }

  // Sends the first `bytes` to the device; the event passes when they are there.
  kernels::Event upload(std::int64_t bytes) const {
    if (!uploads()) return {};
    context_.backend.copy({device_.data(), bytes, pinned_.data(), bytes, bytes, 1}, kernels::Queue::kUpload);
    return context_.backend.record(kernels::Queue::kUpload);
  }

 private:
  Context context_;
  mem::Buffer device_, pinned_;
};

}  // namespace h3s::exec
