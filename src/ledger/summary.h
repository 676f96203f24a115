// What a ledger says in a few numbers.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ledger/reader.h"

namespace h3s::ledger {

struct SlowestBlock {
  std::int64_t step = 0, block = 0;
  double seconds = 0;
};

// Times are those of the device; a step or block counts when all of it is in the ledger.
struct Summary {
  std::string outcome;  // the closing line's, or that there is none
  std::int64_t steps = 0, blocks = 0;
  double step_seconds = 0;   // mean of the steps, embedding to output heads; 0: none is whole
  double block_seconds = 0;  // median
  std::optional<SlowestBlock> slowest;
  std::array<double, exec::kPhaseNames.size()> phase_seconds{};         // all that is in the ledger
  SpaceBytes peak_bytes{};                                              // by the engine's books
  std::int64_t rss_anon_bytes = 0, rss_file_bytes = 0, swap_bytes = 0;  // most at any time
  std::optional<std::int64_t> device_used_bytes;                        // the same, by the driver
};

Summary summarise(const Ledger& ledger);

// Whether measured <= planned <= budget in every space that has one.
bool within_plan(const Ledger& ledger, const Summary& summary);

}  // namespace h3s::ledger
