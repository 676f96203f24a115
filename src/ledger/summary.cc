#include "ledger/summary.h"

#include <algorithm>
#include <map>
#include <utility>

namespace h3s::ledger {
namespace {

struct Interval {
  double begin_ms = 0, end_ms = 0;
  bool first = false, last = false;  // whether its first and its last phase are there
  double seconds() const { return (end_ms - begin_ms) * 1e-3; }
};
using Key = std::pair<std::int64_t, std::int64_t>;  // step, block; a step itself: block -1

void extend(Interval& interval, const PhaseLine& line, exec::Phase first, exec::Phase last) {
  if (!interval.first && !interval.last) interval = {line.begin_ms, line.end_ms};
  interval.end_ms = line.end_ms;
  interval.first |= line.phase == first;
  interval.last |= line.phase == last;
}

// Steps and blocks that began and ended within the ledger.
std::map<Key, Interval> intervals(const Ledger& ledger) {
  std::map<Key, Interval> all;
  for (const PhaseLine& line : ledger.phases)
    if (line.block >= 0)
      extend(all[{line.step, line.block}], line, exec::Phase::kKv, exec::Phase::kMlp);
    else if (line.step > 0)
      extend(all[{line.step, -1}], line, exec::Phase::kEmbed, exec::Phase::kFinal);
  std::erase_if(all, [](const auto& item) { return !item.second.first || !item.second.last; });
  return all;
}

void take_times(const Ledger& ledger, Summary& summary) {
  std::vector<double> blocks;
  double steps_seconds = 0;
  for (const auto& [key, interval] : intervals(ledger)) {
    const auto [step, block] = key;
    if (block < 0) {
      steps_seconds += interval.seconds();
      ++summary.steps;
      continue;
    }
    blocks.push_back(interval.seconds());
    if (!summary.slowest || interval.seconds() > summary.slowest->seconds)
      summary.slowest = SlowestBlock{step, block, interval.seconds()};
  }
  if (summary.steps > 0) summary.step_seconds = steps_seconds / static_cast<double>(summary.steps);
  summary.blocks = static_cast<std::int64_t>(blocks.size());
  if (blocks.empty()) return;
  const auto middle = blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 2);
  std::nth_element(blocks.begin(), middle, blocks.end());
  summary.block_seconds = *middle;
}

void take_peaks(const MemoryReading& memory, Summary& summary) {
  for (std::size_t i = 0; i < summary.peak_bytes.size(); ++i)
    summary.peak_bytes[i] = std::max(summary.peak_bytes[i], memory.peak_bytes[i]);
  summary.rss_anon_bytes = std::max(summary.rss_anon_bytes, memory.process.rss_anon_bytes);
  summary.rss_file_bytes = std::max(summary.rss_file_bytes, memory.process.rss_file_bytes);
  summary.swap_bytes = std::max(summary.swap_bytes, memory.process.swap_bytes);
  if (memory.device_used_bytes)
    summary.device_used_bytes = std::max(summary.device_used_bytes.value_or(0), *memory.device_used_bytes);
}

}  // namespace

Summary summarise(const Ledger& ledger) {
  Summary summary;
  summary.outcome =
      ledger.closing ? ledger.closing->outcome : "no closing line: the run was killed, or still runs";
  for (const PhaseLine& line : ledger.phases) {
    summary.phase_seconds[static_cast<std::size_t>(line.phase)] += line.device_ms * 1e-3;
    take_peaks(line.memory, summary);
  }
  if (ledger.closing) take_peaks({.peak_bytes = ledger.closing->peak_bytes}, summary);
  take_times(ledger, summary);
  return summary;
}

bool within_plan(const Ledger& ledger, const Summary& summary) {
  const SpaceBytes& planned = ledger.header.planned_bytes;
  for (std::size_t i = 0; i < planned.size(); ++i)
    if (summary.peak_bytes[i] > planned[i]) return false;
  return planned[0] <= ledger.header.device_budget_bytes.value_or(planned[0]) &&
         planned[1] + planned[2] <= ledger.header.ram_budget_bytes.value_or(planned[1] + planned[2]);
}

}  // namespace h3s::ledger
