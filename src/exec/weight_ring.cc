#include "exec/weight_ring.h"

#include <algorithm>

#include "base/error.h"

namespace h3s::exec {

using kernels::Queue;

WeightRing::WeightRing(Context context, const WeightLoader& loader, std::int64_t slot_bytes, int num_slots)
    : context_(context), loader_(loader) {
  for (int i = 0; i < num_slots; ++i)
    slots_.push_back({WeightSlot(context, slot_bytes, "weights of a block")});
}

WeightRing::Slot& WeightRing::load(const std::string& prefix, bool adaln) {
  for (Slot& slot : slots_)
    if (slot.prefix == prefix) return slot;
  Slot& slot = slots_[next_];
  H3S_ASSERT(&slot != acquired_);
  next_ = (next_ + 1) % slots_.size();

  context_.backend.sync(slot.store.uploads() ? slot.uploaded
                                             : slot.free);  // the side the CPU writes is at rest
  slot.prefix.clear();
  std::int64_t used = 0;
  slot.weights = loader_.load_block(prefix, adaln, slot.store.memory(), &used);
  slot.prefix = prefix;
  context_.backend.wait(Queue::kUpload, slot.free);
  slot.uploaded = slot.store.upload(used);
  return slot;
}

const model::BlockWeights& WeightRing::acquire(const std::string& prefix, bool adaln) {
  H3S_ASSERT(acquired_ == nullptr);
  acquired_ = &load(prefix, adaln);
  context_.backend.wait(Queue::kCompute, acquired_->uploaded);
  return acquired_->weights;
}

void WeightRing::release() {
  acquired_->free = context_.backend.record(Queue::kCompute);
  loader_.release_pages(acquired_->prefix);
  acquired_ = nullptr;
}

void WeightRing::prefetch(const std::string& prefix, bool adaln) {
  loader_.will_need(prefix);
  if (slots_.size() > 1) load(prefix, adaln);
}

}  // namespace h3s::exec
