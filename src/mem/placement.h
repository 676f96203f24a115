// From a recorded sequence of allocations and releases to an address for each buffer.
//
// Pure and deterministic: the same recording gives the same placement on every machine.
#pragma once

#include <string>
#include <vector>

#include "mem/accountant.h"

namespace h3s::mem {

// A buffer of a recorded run. Events are allocations and releases, counted together from 0.
struct Placed {
  Space space = Space::kHost;
  std::int64_t bytes = 0;  // as asked for
  std::string tag;
  std::int64_t first_event = 0;  // of its allocation
  std::int64_t end_event = 0;    // of its release; kUnlimited: none was recorded
  std::int64_t offset = 0;       // in the arena of its space, a multiple of kAlignment

  bool lives_with(const Placed& other) const {
    return space == other.space && first_event < other.end_event && other.first_event < end_event;
  }
  bool touches(const Placed& other) const {
    return offset < other.offset + occupied_bytes(other.bytes) &&
           other.offset < offset + occupied_bytes(bytes);
  }
};

// An observer of a dry run's accountant: writes down what is asked for, in order.
class Recording {
 public:
  void operator()(const MemoryEvent& event);
  const std::vector<Placed>& buffers() const { return buffers_; }  // in the order of their allocation

 private:
  std::vector<Placed> buffers_;
  std::vector<std::int64_t> serials_;  // of each buffer
  std::int64_t num_events_ = 0;
};

struct Placement {
  std::vector<Placed> buffers;  // in the order of their allocation
  // Of each arena. At least the most bytes live at once, which is the least that any placement can do with.
  std::array<std::int64_t, kNumSpaces> arena_bytes{};
  std::array<std::int64_t, kNumSpaces> live_peak_bytes{};
};

// Places by first fit under several orders (size, length of life, order of allocation), each improved by
// giving the buffer that sticks out the first choice; the smallest arena wins.
Placement place(std::vector<Placed> buffers);

}  // namespace h3s::mem
