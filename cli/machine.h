// The machine that plans are made for: how fast it is, and how much memory it has.
#pragma once

#include <string>

#include "backend/select.h"
#include "exec/footprint.h"
#include "plan/calibration.h"

namespace h3s::cli {

struct Machine {
  std::string name;  // "NVIDIA H200", "rtx4090", "cpu"
  plan::Calibration calibration;
  bool device_is_host = true;
  std::int64_t device_bytes = 0;  // that a program can get; unlimited on the CPU

  // The driver's share of device memory, which no allocator sees; none on the CPU.
  std::int64_t context_bytes() const { return device_is_host ? 0 : calibration.context_bytes; }
  exec::Holding context() const { return {mem::Space::kDevice, context_bytes(), "driver's context"}; }
};

// The device of a run. Rates come from `calibration_file` when it is not empty, else from the file that
// `calibrate` writes, else from the table of cards. A stored file that cannot be read is reported and
// ignored; throws Error(kBadFile, kIo, kInvalidArgument) for one that was named.
Machine machine_of(const backend::DeviceChoice& device, const std::string& calibration_file);

// A card by its name in the table, not necessarily of this machine; throws Error(kInvalidArgument) listing
// the names.
Machine card_machine(const std::string& name);

// The name under which a device's calibration is stored.
std::string calibration_name(const backend::DeviceChoice& device);

// Whether a file of that size can stay in the page cache beside `ram_bytes` of a run; false is worth a
// warning.
bool file_stays_cached(std::uint64_t file_bytes, std::int64_t ram_bytes);

}  // namespace h3s::cli
