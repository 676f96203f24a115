// Writes the ledger of a session while it runs: an observer of its phases.
//
// Nothing waits for the device but the constructor, once, to set the two clocks by each other. A line is
// written when its times have passed on the device, a block at a time. An error of the ledger's own file is
// warned of once and ends the ledger, not the run.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "exec/phase_clock.h"
#include "ledger/directory.h"
#include "ledger/lines.h"
#include "ledger/watchdog.h"

namespace h3s::ledger {

class Recorder final : public exec::PhaseObserver {
 public:
  struct Sources {
    kernels::Backend& backend;
    const mem::Accountant& accountant;
    std::function<std::optional<DeviceReading>()> device;  // empty on the CPU; called once a block
    std::function<void(const std::string&)> warn;          // one line for the user
  };

  // All of them must outlive the recorder, the recorder the session. Writes the header; throws Error(kIo).
  Recorder(Directory& directory, const Header& header, Sources sources);

  void enter(const exec::PhasePoint& point) override;
  void leave() override;

  // After the session is gone: what is left, and the closing line.
  void close(const std::string& outcome, std::int64_t steps_done);

 private:
  // The phases of a block, or of a step between blocks.
  struct Group {
    std::int64_t step = 0, block = -1;
    std::vector<PhaseLine> lines;
    std::int64_t visits = 0, timed = 0;  // all its lines'
    bool over = false;                   // the session has left it
    bool done() const { return over && timed == visits; }
    PhaseLine& line(exec::Phase phase);
  };
  using Clock = std::chrono::steady_clock;

  double wall_ms() const;
  MemoryReading read_memory();
  void end_visit();
  void take_times();
  void write_done_groups();
  std::string lines_of(const Group& group) const;
  std::vector<Remark> watch(const Group& group);
  void append(const std::string& lines) noexcept;

  Directory& directory_;
  const std::int64_t first_step_, planned_device_bytes_;
  Sources sources_;
  exec::PhaseClock phase_clock_;
  const Clock::time_point start_ = Clock::now();
  double device_to_wall_ms_ = 0;  // what to add to the backend's clock
  Watchdog watchdog_;

  std::deque<Group> groups_;
  PhaseLine* visited_ = nullptr;  // of the last group, while the session is in it
  ProcessMemory process_;
  double process_read_ms_ = -1e9;
  std::optional<DeviceReading> device_;
  bool broken_ = false;
};

}  // namespace h3s::ledger
