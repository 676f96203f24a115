// Weights of the blocks on the device: some stay there, the others stream through slots.
//
// A slot is device memory for one block and, where the device is not the host, a pinned twin it is uploaded
// from. One slot serves a device that is the host (weights stay where the file is mapped); with two a block
// arrives while the one before computes: a thread copies or decodes it into the pinned twin, and the upload
// starts between two chunks of that compute, or at the latest when the block is acquired. A resident block
// has device memory of its own and is uploaded once, by way of a slot's pinned side. The resident ones are
// spread evenly, so that the streamed ones have their compute time to arrive in. Refiner blocks, which are
// larger where only the network's are quantised and run when no block does, take the memory of all slots
// together.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "exec/dials.h"
#include "exec/memory.h"
#include "exec/weight_loader.h"
#include "exec/weight_slot.h"

namespace h3s::exec {

// The dials of the weights as they apply: no more resident blocks than there are, no more slots than streamed
// blocks, one slot at least. Throws Error(kInvalidArgument) for a dial out of range.
struct WeightPlacement {
  std::int64_t resident_blocks = 0, slots = 1;
  WeightPlacement(const Dials& dials, std::int64_t layers, bool device_is_host);
  // Blocks that are read again in each evaluation of the network: none when all stay in their slots.
  std::int64_t streamed_blocks(std::int64_t layers) const;
};

class WeightRing {
 public:
  WeightRing(Context context, const WeightLoader& loader, const Dials& dials);
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;

  // Weights of a block, ready for compute work called after this. Valid until release(). `prefix` is
  // "blocks.7" with, "token_refiner.blocks.0" without adaln.
  const model::BlockWeights& acquire(const std::string& prefix, bool adaln);
  // Compute work called before this was the last to use the acquired block.
  void release();
  // Starts loading what comes after this acquired block of the network, as far ahead as there are free slots.
  void prefetch_after(std::int64_t block_idx);
  // Starts the upload of what the loading thread has finished. Cheap: for between chunks.
  void poll();

 private:
  struct Resident {
    std::string prefix;
    mem::Buffer device;
    bool loaded = false;
    model::BlockWeights weights = {};
    kernels::Event uploaded = {};
  };
  struct Loaded {
    model::BlockWeights weights;
    std::int64_t bytes = 0;
  };
  // A block on its way into a slot's host side.
  struct Load {
    std::string prefix;
    Resident* resident;  // its home; null: the slot's device side
    std::future<Loaded> loaded;
  };
  struct Slot {
    SlotMemory memory;        // a part of the pool
    std::string prefix = {};  // what the device side holds; empty: nothing
    model::BlockWeights weights = {};
    kernels::Event uploaded = {}, free = {};  // the host, the device is done with its side
    std::optional<Load> load = {};
  };
  WeightRing(Context context, const WeightLoader& loader, const WeightPlacement& placement);
  Slot& slot_with(const std::string& prefix);
  void start(Slot& slot, const std::string& prefix, Resident* resident);
  void finish(Slot& slot);
  void load_refiner(const std::string& prefix);
  void wait_for_host_side(const Slot& slot) const;
  kernels::Event upload(void* device, const void* host, std::int64_t bytes) const;
  Resident* find_resident(const std::string& prefix);
  void load_resident(Resident& block);
  bool comes(const std::string& prefix) const;

  Context context_;
  const WeightLoader& loader_;
  std::vector<Resident> residents_;
  WeightSlot pool_;
  std::vector<Slot> slots_;  // after the memory that their loads write
  std::size_t next_ = 0;     // slot to fill next: the one filled longest ago
  model::BlockWeights refiner_;
  enum class Acquired { kNothing, kSlot, kResident, kRefiner };
  Acquired acquired_ = Acquired::kNothing;
  Slot* acquired_slot_ = nullptr;
  std::string acquired_prefix_;
};

}  // namespace h3s::exec
