#include "exec/staging.h"

namespace h3s::exec {

using kernels::Queue;

UploadRing::UploadRing(Context context, std::int64_t slot_bytes, const std::string& tag) : context_(context) {
  for (Slot& slot : slots_) {
    slot.pinned = context.accountant.allocate(mem::Space::kPinned, slot_bytes, tag);
    if (!context.backend.device_is_host())
      slot.device = context.accountant.allocate(mem::Space::kDevice, slot_bytes, tag);
  }
}

void* UploadRing::begin() {
  context_.backend.sync(slots_[next_].free);
  return slots_[next_].pinned.data();
}

const void* UploadRing::commit(std::int64_t bytes) {
  Slot& slot = slots_[next_];
  if (context_.backend.device_is_host()) return slot.pinned.data();
  context_.backend.copy({slot.device.data(), bytes, slot.pinned.data(), bytes, bytes, 1}, Queue::kUpload);
  context_.backend.wait(Queue::kCompute, context_.backend.record(Queue::kUpload));
  return slot.device.data();
}

void UploadRing::release() {
  slots_[next_].free = context_.backend.record(Queue::kCompute);
  next_ = (next_ + 1) % slots_.size();
}

}  // namespace h3s::exec
