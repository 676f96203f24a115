#include "memory_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace h3s::cli {
namespace {

constexpr std::size_t kShownHolders = 3;

std::string budget_text(std::int64_t bytes) {
  return bytes == mem::kUnlimited ? "-" : format_bytes(bytes);
}

nlohmann::json budget_json(std::int64_t bytes) {
  return bytes == mem::kUnlimited ? nlohmann::json() : nlohmann::json(bytes);
}

// Pinned and host memory share one budget.
std::int64_t budget_of(const exec::Budgets& budgets, mem::Space space) {
  return space == mem::Space::kDevice ? budgets.device_bytes : mem::kUnlimited;
}

}  // namespace

std::string holders_text(const mem::SpaceReport& report) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kShownHolders, report.holders.size()); ++i) {
    const mem::Holder& holder = report.holders[i];
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", holder.tag, format_bytes(holder.peak_bytes));
  }
  return text;
}

nlohmann::json holders_json(const mem::SpaceReport& report) {
  nlohmann::json holders = nlohmann::json::array();
  for (const mem::Holder& holder : report.holders)
    holders.push_back({{"what", holder.tag}, {"bytes", holder.peak_bytes}});
  return holders;
}

std::string MemoryTable::text() const {
  std::string out =
      fmt::format("{:<8}{:>12}{:>12}{:>12}  {}\n", "space", "planned", "peak", "budget", "largest");
  for (int i = 0; i < mem::kNumSpaces; ++i) {
    const auto space = static_cast<std::size_t>(i);
    out += fmt::format(
        "{:<8}{:>12}{:>12}{:>12}  {}\n", mem::space_name(static_cast<mem::Space>(i)),
        format_bytes(planned.spaces[space].peak_bytes), format_bytes(measured[space].peak_bytes),
        budget_text(budget_of(budgets, static_cast<mem::Space>(i))), holders_text(measured[space]));
  }
  if (budgets.ram_bytes != mem::kUnlimited)
    out += fmt::format("pinned and host together: budget {}\n", format_bytes(budgets.ram_bytes));
  return out;
}

nlohmann::json MemoryTable::json() const {
  nlohmann::json out;
  for (int i = 0; i < mem::kNumSpaces; ++i) {
    const auto space = static_cast<std::size_t>(i);
    nlohmann::json& entry = out[mem::space_name(static_cast<mem::Space>(i))];
    entry = {{"planned_bytes", planned.spaces[space].peak_bytes},
             {"peak_bytes", measured[space].peak_bytes},
             {"budget_bytes", budget_json(budget_of(budgets, static_cast<mem::Space>(i)))}};
    if (!measured[space].holders.empty()) entry["holders"] = holders_json(measured[space]);
  }
  out["ram_budget_bytes"] = budget_json(budgets.ram_bytes);
  return out;
}

MemoryTable measure_memory(const exec::Footprint& planned, const mem::Accountant& accountant,
                           const exec::Budgets& budgets, std::int64_t context_bytes) {
  MemoryTable table{planned, {}, budgets};
  for (int i = 0; i < mem::kNumSpaces; ++i)
    table.measured[static_cast<std::size_t>(i)] = accountant.report(static_cast<mem::Space>(i));
  table.measured[static_cast<std::size_t>(mem::Space::kDevice)].peak_bytes += context_bytes;
  return table;
}

}  // namespace h3s::cli
