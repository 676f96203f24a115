// The options of `h3stream run`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "backend/select.h"
#include "exec/footprint.h"
#include "lora_options.h"
#include "sample/job.h"

namespace h3s::cli {

struct RunOptions {
  std::string model, inputs, output;
  std::string scheduler = "simple", compute = "bf16", device = "auto";
  std::string schedule, vram, ram;  // empty: chosen by the budgets; unlimited
  std::string ledger;               // folder; empty: none
  std::string trace;                // a file to write; empty: none
  std::string calibration;          // empty: what `calibrate` stored, else what the card promises
  int threads = 0;                  // 0: as many as the machine has
  bool resume = false, as_json = false, allow_trailing_bytes = false;
  LoraOptions loras;
  sample::JobOptions job;
  exec::Dials dials;
  std::vector<const CLI::Option*> dial_options;  // given or not; owned by the command
  exec::Budgets budgets;
  backend::DeviceChoice where;

  // Fills in job, dials, where and the budgets that were given from the names above. Throws
  // Error(kInvalidArgument), or kUnsupported for a GPU that cannot be used.
  void resolve();
  // A line for each dial that was given and does nothing, or less than it says, for this network and device.
  std::vector<std::string> idle_dials(const spec::ModelSpec& spec) const;
};

// Adds them all to `command`; `options` must live as long as it.
void add_run_options(CLI::App& command, RunOptions& options);

}  // namespace h3s::cli
