#include "exec/weight_ring.h"

#include <algorithm>

#include "base/error.h"

namespace h3s::exec {

using kernels::Queue;

namespace {

std::string block_prefix(std::int64_t block_idx) {
  return fmt::format("blocks.{}", block_idx);
}

// Whether block `block_idx` is one of `resident` spread evenly over `layers`.
bool is_resident(std::int64_t block_idx, std::int64_t resident, std::int64_t layers) {
  return (block_idx + 1) * resident / layers > block_idx * resident / layers;
}

}  // namespace

WeightPlacement::WeightPlacement(const Dials& dials, std::int64_t layers, bool device_is_host)
    : resident_blocks(std::min(dials.resident_blocks, layers)) {
  if (dials.resident_blocks < 0)
    fail(Status::kInvalidArgument, "[dials] resident_blocks must be 0 or more, got {}",
         dials.resident_blocks);
  if (dials.weight_slots < 1)
    fail(Status::kInvalidArgument, "[dials] weight_slots must be 1 or more, got {}", dials.weight_slots);
  const std::int64_t streamed = std::max<std::int64_t>(1, layers - resident_blocks);
  slots = device_is_host ? 1 : std::min(dials.weight_slots, streamed);
}

std::int64_t WeightPlacement::streamed_blocks(std::int64_t layers) const {
  const std::int64_t passing = layers - resident_blocks;
  return passing > slots ? passing : 0;
}

WeightRing::WeightRing(Context context, const WeightLoader& loader, const Dials& dials)
    : context_(context), loader_(loader) {
  const WeightSizes& sizes = loader.sizes();
  const auto layers = static_cast<std::int64_t>(sizes.blocks.size());
  const WeightPlacement placement(dials, layers, context.backend.device_is_host());
  for (std::int64_t i = 0; i < layers; ++i)
    if (is_resident(i, placement.resident_blocks, layers))
      residents_.push_back(
          {block_prefix(i),
           context.accountant.allocate(mem::Space::kDevice, sizes.blocks[static_cast<std::size_t>(i)],
                                       "weights of resident blocks")});
  for (std::int64_t i = 0; i < placement.slots; ++i)
    slots_.push_back({WeightSlot(context, sizes.largest_block, "weights of a block")});
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

WeightRing::Resident* WeightRing::find_resident(const std::string& prefix) {
  const auto found = std::find_if(residents_.begin(), residents_.end(),
                                  [&](const Resident& block) { return block.prefix == prefix; });
  return found == residents_.end() ? nullptr : &*found;
}

// Only the pinned side of the slot is borrowed: what its device side holds stays valid.
void WeightRing::load_resident(Resident& block) {
  if (block.loaded) return;
  Slot& staging = slots_[next_];
  const bool uploads = staging.store.uploads();
  if (uploads) context_.backend.sync(staging.uploaded);
  void* host = uploads ? staging.store.memory().host : block.device.data();
  std::int64_t used = 0;
  block.weights = loader_.load_block(block.prefix, /*adaln=*/true, {block.device.data(), host}, &used);
  block.loaded = true;
  if (!uploads) return;
  context_.backend.copy({block.device.data(), used, host, used, used, 1}, Queue::kUpload);
  staging.uploaded = block.uploaded = context_.backend.record(Queue::kUpload);
}

const model::BlockWeights& WeightRing::acquire(const std::string& prefix, bool adaln) {
  H3S_ASSERT(acquired_prefix_.empty());
  acquired_prefix_ = prefix;
  if (Resident* block = find_resident(prefix)) {
    load_resident(*block);
    context_.backend.wait(Queue::kCompute, block->uploaded);
    return block->weights;
  }
  acquired_ = &load(prefix, adaln);
  context_.backend.wait(Queue::kCompute, acquired_->uploaded);
  return acquired_->weights;
}

void WeightRing::release() {
  // Where the device is the host, a resident block's matrices are the mapped pages themselves.
  if (acquired_ != nullptr || !context_.backend.device_is_host()) loader_.release_pages(acquired_prefix_);
  if (acquired_ != nullptr) acquired_->free = context_.backend.record(Queue::kCompute);
  acquired_ = nullptr;
  acquired_prefix_.clear();
}

void WeightRing::prefetch_after(std::int64_t block_idx) {
  const auto layers = static_cast<std::int64_t>(loader_.sizes().blocks.size());
  std::size_t streamed = 0;
  for (std::int64_t ahead = 1; ahead < layers && streamed < slots_.size(); ++ahead) {
    const std::string prefix = block_prefix((block_idx + ahead) % layers);
    Resident* resident = find_resident(prefix);
    if (resident != nullptr && resident->loaded) continue;
    if (ahead == 1) loader_.will_need(prefix);
    if (context_.backend.device_is_host()) return;  // nothing would run beside the loading
    if (resident == nullptr) {
      load(prefix, /*adaln=*/true);
      ++streamed;
    } else if (ahead == 1) {
      load_resident(*resident);
    }
  }
}

}  // namespace h3s::exec
