// Small things made on the host and used on the device (positions, patch rows, timesteps), two in flight.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "exec/memory.h"

namespace h3s::exec {

// Two slots of `slot_bytes`, each a pinned buffer and its device twin (one buffer where the device is the
// host). The host fills one while the device reads the other.
class UploadRing {
 public:
  UploadRing(Context context, std::int64_t slot_bytes, const std::string& tag);

  // The pinned side of the next slot, once the device is done with it.
  void* begin();
  // Sends `bytes` of it; compute work called after this sees them at the pointer returned.
  const void* commit(std::int64_t bytes);
  // Compute work called before this was the last to read the slot.
  void release();

 private:
  struct Slot {
    mem::Buffer pinned, device;
    kernels::Event free;  // passed when the device has read the slot
  };
  Context context_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace h3s::exec
