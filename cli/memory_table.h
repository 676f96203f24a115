// Planned and measured peaks of the three spaces, as a table and as JSON.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "exec/footprint.h"
#include "mem/accountant.h"

namespace h3s::cli {

struct MemoryTable {
  exec::Footprint planned;
  std::array<mem::SpaceReport, mem::kNumSpaces> measured;
  exec::Budgets budgets;

  std::string text() const;     // some lines, largest holders at the peak in the last column
  nlohmann::json json() const;  // {"device": {"planned_bytes": ...}, ...}; a budget of null is unlimited
};

// `context_bytes` of device memory are the driver's: planned, and in no book of the accountant.
MemoryTable measure_memory(const exec::Footprint& planned, const mem::Accountant& accountant,
                           const exec::Budgets& budgets, std::int64_t context_bytes);

// A report's three largest holders, "x 2.17 GiB, ...".
std::string holders_text(const mem::SpaceReport& report);
nlohmann::json holders_json(const mem::SpaceReport& report);

}  // namespace h3s::cli
