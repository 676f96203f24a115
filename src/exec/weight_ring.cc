#include "exec/weight_ring.h"

#include <algorithm>
#include <chrono>
#include <utility>

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
    : WeightRing(context, loader,
                 WeightPlacement(dials, static_cast<std::int64_t>(loader.sizes().blocks.size()),
                                 context.backend.device_is_host())) {}

WeightRing::WeightRing(Context context, const WeightLoader& loader, const WeightPlacement& placement)
    : context_(context),
      loader_(loader),
      pool_(context,
            std::max(placement.slots * loader.sizes().largest_block, loader.sizes().largest_refiner_block),
            "streamed weights") {
  const std::vector<std::int64_t>& blocks = loader.sizes().blocks;
  const auto layers = static_cast<std::int64_t>(blocks.size());
  for (std::int64_t i = 0; i < layers; ++i)
    if (is_resident(i, placement.resident_blocks, layers))
      residents_.push_back({block_prefix(i), context.accountant.allocate(mem::Space::kDevice,
                                                                         blocks[static_cast<std::size_t>(i)],
                                                                         "weights of resident blocks")});
  const SlotMemory pool = pool_.memory();
  for (std::int64_t i = 0; i < placement.slots; ++i) {
    const std::int64_t offset = i * loader.sizes().largest_block;
    const auto part = [offset](void* base) {
      return base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
    };
    slots_.push_back({{part(pool.device), part(pool.host)}});
  }
}

// The side that the CPU writes is at rest after this.
void WeightRing::wait_for_host_side(const Slot& slot) const {
  context_.backend.sync(pool_.uploads() ? slot.uploaded : slot.free);
}

kernels::Event WeightRing::upload(void* device, const void* host, std::int64_t bytes) const {
  if (!pool_.uploads()) return {};
  context_.backend.copy({device, bytes, host, bytes, bytes, 1}, Queue::kUpload);
  return context_.backend.record(Queue::kUpload);
}

// Fills the slot's host side, beside what the caller does next where that is another memory than the
// device's.
void WeightRing::start(Slot& slot, const std::string& prefix, Resident* resident) {
  wait_for_host_side(slot);
  void* device = resident != nullptr ? resident->device.data() : slot.memory.device;
  const SlotMemory memory{device, pool_.uploads() ? slot.memory.host : device};
  const auto policy = pool_.uploads() && memory.host != nullptr ? std::launch::async : std::launch::deferred;
  slot.load = {prefix, resident, std::async(policy, [this, prefix, memory] {
                 Loaded loaded;
                 loaded.weights = loader_.load_block(prefix, /*adaln=*/true, memory, &loaded.bytes);
                 return loaded;
               })};
}

// Waits for the slot's load and sends it to the device, whose side must not be acquired.
void WeightRing::finish(Slot& slot) {
  Load load = std::move(*slot.load);
  slot.load.reset();
  const Loaded loaded = load.loaded.get();
  if (Resident* block = load.resident) {
    block->weights = loaded.weights;
    block->loaded = true;
    block->uploaded = slot.uploaded = upload(block->device.data(), slot.memory.host, loaded.bytes);
    return;
  }
  H3S_ASSERT(&slot != acquired_slot_);
  slot.weights = loaded.weights;
  slot.prefix = load.prefix;
  context_.backend.wait(Queue::kUpload, slot.free);
  slot.uploaded = upload(slot.memory.device, slot.memory.host, loaded.bytes);
}

WeightRing::Slot& WeightRing::slot_with(const std::string& prefix) {
  for (Slot& slot : slots_)
    if (slot.prefix == prefix) return slot;
  for (Slot& slot : slots_)
    if (slot.load && slot.load->resident == nullptr && slot.load->prefix == prefix) {
      finish(slot);
      return slot;
    }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.load) finish(slot);
  start(slot, prefix, nullptr);
  finish(slot);
  return slot;
}

// Into all of the pool: what the slots held is gone, and what was on its way to them.
void WeightRing::load_refiner(const std::string& prefix) {
  for (Slot& slot : slots_) {
    if (slot.load && slot.load->resident != nullptr) finish(slot);
    slot.load.reset();
    wait_for_host_side(slot);
    context_.backend.wait(Queue::kUpload, slot.free);
    slot.prefix.clear();
  }
  std::int64_t used = 0;
  const SlotMemory pool = pool_.memory();
  refiner_ = loader_.load_block(prefix, /*adaln=*/false, pool, &used);
  const kernels::Event uploaded = upload(pool.device, pool.host, used);
  for (Slot& slot : slots_) slot.uploaded = uploaded;
  context_.backend.wait(Queue::kCompute, uploaded);
}

WeightRing::Resident* WeightRing::find_resident(const std::string& prefix) {
  const auto found = std::find_if(residents_.begin(), residents_.end(),
                                  [&](const Resident& block) { return block.prefix == prefix; });
  return found == residents_.end() ? nullptr : &*found;
}

// Only the pinned side of the slot is borrowed: what its device side holds stays valid.
void WeightRing::load_resident(Resident& block) {
  for (Slot& slot : slots_)
    if (slot.load && slot.load->resident == &block) return finish(slot);
  if (block.loaded) return;
  Slot& staging = slots_[next_];
  if (staging.load) finish(staging);
  start(staging, block.prefix, &block);
  finish(staging);
}

const model::BlockWeights& WeightRing::acquire(const std::string& prefix, bool adaln) {
  H3S_ASSERT(acquired_ == Acquired::kNothing);
  acquired_prefix_ = prefix;
  if (!adaln) {
    acquired_ = Acquired::kRefiner;
    load_refiner(prefix);
    return refiner_;
  }
  if (Resident* block = find_resident(prefix)) {
    acquired_ = Acquired::kResident;
    load_resident(*block);
    context_.backend.wait(Queue::kCompute, block->uploaded);
    return block->weights;
  }
  acquired_ = Acquired::kSlot;
  acquired_slot_ = &slot_with(prefix);
  context_.backend.wait(Queue::kCompute, acquired_slot_->uploaded);
  return acquired_slot_->weights;
}

void WeightRing::release() {
  // Where the device is the host, a resident block's matrices are the mapped pages themselves.
  if (acquired_ != Acquired::kResident || pool_.uploads()) loader_.release_pages(acquired_prefix_);
  if (acquired_ != Acquired::kResident) {
    const kernels::Event free = context_.backend.record(Queue::kCompute);
    for (Slot& slot : slots_)
      if (acquired_ == Acquired::kRefiner || &slot == acquired_slot_) slot.free = free;
  }
  acquired_ = Acquired::kNothing;
  acquired_slot_ = nullptr;
}

// Whether the block is in a slot or on its way to one.
bool WeightRing::comes(const std::string& prefix) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.prefix == prefix || (slot.load && slot.load->prefix == prefix);
  });
}

// One slot holds the acquired block. Where it is the only one its host side is free all the same.
void WeightRing::prefetch_after(std::int64_t block_idx) {
  const auto layers = static_cast<std::int64_t>(loader_.sizes().blocks.size());
  const std::size_t most = std::max<std::size_t>(1, slots_.size() - 1);
  std::size_t streamed = 0;
  for (std::int64_t ahead = 1; ahead < layers && streamed < most; ++ahead) {
    const std::string prefix = block_prefix((block_idx + ahead) % layers);
    Resident* resident = find_resident(prefix);
    if (resident != nullptr && resident->loaded) continue;
    if (ahead == 1) loader_.will_need(prefix);
    if (context_.backend.device_is_host()) return;  // nothing would run beside the loading
    if (resident == nullptr) ++streamed;
    if (comes(prefix) || (resident != nullptr && ahead > 1)) continue;
    Slot& slot = slots_[next_];
    if (slot.load) return;
    start(slot, prefix, resident);
    if (resident == nullptr) next_ = (next_ + 1) % slots_.size();
  }
}

void WeightRing::poll() {
  for (Slot& slot : slots_) {
    if (!slot.load || (&slot == acquired_slot_ && slot.load->resident == nullptr)) continue;
    if (slot.load->loaded.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish(slot);
  }
}

}  // namespace h3s::exec
