// `run --ledger DIR`: the recorder of a run, its folder and its page.
#pragma once

#include <exception>
#include <string>

#include "backend/select.h"
#include "exec/footprint.h"
#include "interrupt.h"
#include "ledger/recorder.h"

namespace h3s::cli {

// What the header of a ledger says of the machine, the program and the plan; the job's fields are left empty.
ledger::Header make_header(const backend::DeviceChoice& where, const exec::Footprint& planned,
                           const exec::Budgets& budgets);

// Reads the GPU; empty on the CPU.
std::function<std::optional<ledger::DeviceReading>()> device_reader(const backend::DeviceChoice& where);

class RunLedger {
 public:
  RunLedger(ledger::Directory& directory, const ledger::Header& header, ledger::Recorder::Sources sources);

  exec::PhaseObserver& observer() { return recorder_; }

  // Makes the page anew when the last is some time old.
  void step_done();

  // Runs fn, which runs and destroys the session, and closes the ledger with how it ended. `steps_done` is
  // read then.
  template <typename Fn>
  void record(const std::int64_t& steps_done, Fn fn) {
    try {
      fn();
    } catch (const Interrupted&) {
      close("interrupted", steps_done);
      throw;
    } catch (const std::exception& e) {
      close(std::string("failed: ") + e.what(), steps_done);
      throw;
    }
    close("done", steps_done);
  }

 private:
  void close(const std::string& outcome, std::int64_t steps_done);
  void write_page() noexcept;

  using Clock = std::chrono::steady_clock;
  std::string directory_;
  ledger::Recorder recorder_;
  Clock::time_point page_written_ = Clock::now();
  Clock::duration page_took_{};
};

}  // namespace h3s::cli
