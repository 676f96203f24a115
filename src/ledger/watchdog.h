// Notices a run that leaves its plan or its pace, and says once why it may be. Pure: fed with readings.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ledger/lines.h"
#include "ledger/system_reading.h"

namespace h3s::ledger {

// A GPU as its driver sees it; empty fields could not be read.
struct DeviceReading {
  std::int64_t free_bytes = 0, total_bytes = 0;
  std::optional<std::int64_t> clock_mhz;
  std::optional<bool> throttled;  // held back for heat, or by the power supply
};

// One finished block.
struct BlockReading {
  std::int64_t step = 0, block = 0;
  double seconds = 0;     // on the device
  double wall_end_s = 0;  // when this was read, on one clock
  ProcessMemory process;
  std::int64_t pinned_bytes = 0;  // the engine's books
  MachineLoad load;
  std::optional<DeviceReading> device;
};

// What the plan allows. rss_anon_bytes includes what the process held before the run.
struct Allowance {
  std::int64_t rss_anon_bytes = 0, pinned_bytes = 0;
  std::int64_t cpus = 1;
};

class Watchdog {
 public:
  explicit Watchdog(const Allowance& allowance) : allowance_(allowance) {}

  // Blocks in the order they finish. Each kind of remark comes once.
  std::vector<Remark> look(const BlockReading& block);

 private:
  std::optional<Remark> look_at_pace(const BlockReading& block);
  std::optional<Remark> look_at_rss(const BlockReading& block) const;
  std::optional<Remark> look_at_pinned(const BlockReading& block) const;

  Allowance allowance_;
  std::vector<double> first_seconds_;   // of the first blocks
  std::optional<BlockReading> normal_;  // the last of them: how the machine was
  std::deque<BlockReading> recent_;     // the last ones, oldest first
  std::set<std::string> said_;
};

// Why blocks between two readings may have taken `excess_seconds` longer than at the beginning.
struct Cause {
  std::string name, evidence;
};
Cause likely_cause(const BlockReading& normal, const BlockReading& before, const BlockReading& now,
                   double excess_seconds, std::int64_t cpus);

}  // namespace h3s::ledger
