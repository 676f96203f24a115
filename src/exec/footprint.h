// Peak bytes of a run before it starts: the same allocations against books that hold no memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/session.h"
#include "exec/weight_loader.h"
#include "mem/accountant.h"
#include "spec/layout.h"

namespace h3s::exec {

// What the caller holds beside the session for all of the run: backend workspace, sampler state, inputs.
struct Holding {
  mem::Space space = mem::Space::kHost;
  std::int64_t bytes = 0;
  std::string tag;  // as in mem::Accountant::allocate
};
using Holdings = std::vector<Holding>;

struct Footprint {
  std::array<mem::SpaceReport, mem::kNumSpaces> spaces;
  std::int64_t peak_bytes(mem::Space space) const {
    return spaces[static_cast<std::size_t>(space)].peak_bytes;
  }
  std::int64_t device_bytes() const { return peak_bytes(mem::Space::kDevice); }
  // Pinned memory is host memory.
  std::int64_t ram_bytes() const { return peak_bytes(mem::Space::kPinned) + peak_bytes(mem::Space::kHost); }
};

// Exact peaks of constructing a Session of one job and running it, for any dials; touches no tensor data.
// What does not depend on the dials is found once: a measurement takes microseconds. Thread-safe.
class FootprintMeter {
 public:
  // `device_is_host` as the backend says; the dials of `options` are not looked at. `layout` and the
  // checkpoint must live as long as the meter.
  FootprintMeter(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                 const SessionOptions& options, bool device_is_host, Holdings holdings = {});
  // Of a loader that is there already.
  FootprintMeter(const WeightLoader& loader, const spec::Layout& layout, const SessionOptions& options,
                 bool device_is_host, Holdings holdings = {});

  Footprint measure(const Dials& dials) const;

 private:
  WeightLoader loader_;
  const spec::Layout& layout_;
  SessionOptions options_;
  bool device_is_host_;
  Holdings holdings_;
};

// One measurement, of the dials of `options`.
Footprint measure_footprint(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                            const SessionOptions& options, bool device_is_host,
                            const Holdings& holdings = {});

// Budgets; kUnlimited where none was given.
struct Budgets {
  std::int64_t device_bytes = mem::kUnlimited;
  std::int64_t ram_bytes = mem::kUnlimited;  // pinned and other host memory together
};

bool fits(const Footprint& footprint, const Budgets& budgets);

}  // namespace h3s::exec
