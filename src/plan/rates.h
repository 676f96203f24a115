// Measures a machine: the rates of a Calibration, on the device of a backend, with the shapes of the network.
#pragma once

#include <functional>
#include <string>

#include "kernels/backend.h"
#include "mem/accountant.h"
#include "plan/calibration.h"

namespace h3s::plan {

// Called before each measurement with what it is.
using RateProgress = std::function<void(const std::string& what)>;

// Some seconds on a GPU, some more on a processor. Holds up to 1.5 GiB of device and 512 MiB of pinned memory
// of `accountant`. Leaves device, file_bytes and context_bytes to the caller. Nothing else should be running.
Calibration measure_rates(kernels::Backend& backend, mem::Accountant& accountant,
                          const RateProgress& progress);

}  // namespace h3s::plan
