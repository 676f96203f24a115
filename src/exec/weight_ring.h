// Blocks of weights streamed through slots: one computes while the next arrives.
//
// Each slot is device memory for one block and, where the device is not the host, a pinned twin it is
// uploaded from. One slot serves a device that is the host (weights stay where the file is mapped); two
// overlap copy and compute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/memory.h"
#include "exec/weight_loader.h"
#include "exec/weight_slot.h"

namespace h3s::exec {

class WeightRing {
 public:
  WeightRing(Context context, const WeightLoader& loader, std::int64_t slot_bytes, int num_slots);

  // Weights of a block, ready for compute work called after this. Valid until release().
  const model::BlockWeights& acquire(const std::string& prefix, bool adaln);
  // Compute work called before this was the last to use the acquired block.
  void release();
  // Starts loading the block that will be acquired next, when there is a free slot.
  void prefetch(const std::string& prefix, bool adaln);

 private:
  struct Slot {
    WeightSlot store;
    std::string prefix = {};  // what it holds; empty: nothing
    model::BlockWeights weights = {};
    kernels::Event uploaded = {}, free = {};
  };
  Slot& load(const std::string& prefix, bool adaln);

  Context context_;
  const WeightLoader& loader_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // slot to fill next
  Slot* acquired_ = nullptr;
};

}  // namespace h3s::exec
