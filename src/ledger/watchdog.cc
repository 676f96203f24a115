#include "ledger/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace h3s::ledger {
namespace {

constexpr std::size_t kFirstBlocks = 5;   // their median is the pace: the very first one reads cold files
constexpr std::size_t kRecentBlocks = 3;  // their median is now: one hiccup is none
constexpr double kSlowFactor = 2;
constexpr double kLeastExcessSeconds = 0.01;  // below, a scheduler's time slice explains it and nobody waits

constexpr double kSecondsOfAFault = 1e-4;         // a page from an SSD
constexpr double kTellingShare = 0.1;             // of the excess: less is not the cause
constexpr std::int64_t kTellingBytes = 64 << 20;  // of swap or device memory that others took
constexpr double kTellingCpuShare = 0.2;          // of all CPUs, used by others or taken by the hypervisor
constexpr double kSlowClock = 0.8;                // of the clock at the beginning

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<Cause> paging(const BlockReading& normal, const BlockReading& before, const BlockReading& now,
                            double excess_seconds) {
  const std::int64_t swapped = now.process.swap_bytes - normal.process.swap_bytes;
  if (swapped > kTellingBytes) return Cause{"paging", format_bytes(swapped) + " of it were swapped out"};
  const std::int64_t faults = now.load.major_faults - before.load.major_faults;
  if (static_cast<double>(faults) * kSecondsOfAFault > kTellingShare * excess_seconds)
    return Cause{"paging", fmt::format("{} pages had to be read from disk meanwhile", faults)};
  return std::nullopt;
}

std::optional<Cause> throttling(const BlockReading& normal, const BlockReading& before,
                                const BlockReading& now) {
  if (now.device && now.device->throttled.value_or(false))
    return Cause{"throttling", "the GPU is held back for heat or by its power supply"};
  if (now.device && normal.device && now.device->clock_mhz && normal.device->clock_mhz &&
      static_cast<double>(*now.device->clock_mhz) <
          kSlowClock * static_cast<double>(*normal.device->clock_mhz))
    return Cause{"throttling", fmt::format("the GPU runs at {} MHz, at the beginning at {}",
                                           *now.device->clock_mhz, *normal.device->clock_mhz)};
  const std::int64_t cpu = now.load.cpu_throttles.value_or(0) - before.load.cpu_throttles.value_or(0);
  if (cpu > 0) return Cause{"throttling", fmt::format("the processor slowed down for heat {} times", cpu)};
  return std::nullopt;
}

std::optional<Cause> another_process(const BlockReading& normal, const BlockReading& before,
                                     const BlockReading& now, std::int64_t cpus) {
  if (now.device && normal.device && normal.device->free_bytes - now.device->free_bytes > kTellingBytes)
    return Cause{"another process",
                 fmt::format("{} of device memory were taken since the beginning",
                             format_bytes(normal.device->free_bytes - now.device->free_bytes))};
  const double capacity = (now.wall_end_s - before.wall_end_s) * static_cast<double>(cpus);
  if (capacity <= 0) return std::nullopt;
  const double stolen = (now.load.steal_s - before.load.steal_s) / capacity;
  if (stolen > kTellingCpuShare)
    return Cause{"another process",
                 fmt::format("the hypervisor gave {:.0f} % of the processor to others", 100 * stolen)};
  const double others =
      (now.load.all_cpu_s - before.load.all_cpu_s - (now.load.own_cpu_s - before.load.own_cpu_s)) / capacity;
  if (others > kTellingCpuShare)
    return Cause{"another process", fmt::format("others used {:.0f} % of the {} CPUs, load average {:.1f}",
                                                100 * others, cpus, now.load.load_1min)};
  return std::nullopt;
}

}  // namespace

Cause likely_cause(const BlockReading& normal, const BlockReading& before, const BlockReading& now,
                   double excess_seconds, std::int64_t cpus) {
  if (auto cause = paging(normal, before, now, excess_seconds)) return *cause;
  if (auto cause = throttling(normal, before, now)) return *cause;
  if (auto cause = another_process(normal, before, now, cpus)) return *cause;
  return {"unknown", "paging, clocks and other processes look as before"};
}

std::vector<Remark> Watchdog::look(const BlockReading& block) {
  std::vector<Remark> remarks;
  for (std::optional<Remark>& remark :
       std::vector{look_at_pace(block), look_at_rss(block), look_at_pinned(block)})
    if (remark && said_.insert(remark->what).second) remarks.push_back(std::move(*remark));
  return remarks;
}

std::optional<Remark> Watchdog::look_at_pace(const BlockReading& block) {
  if (first_seconds_.size() < kFirstBlocks) {
    first_seconds_.push_back(block.seconds);
    normal_ = block;
    recent_ = {block};
    return std::nullopt;
  }
  recent_.push_back(block);
  if (recent_.size() > kRecentBlocks + 1) recent_.pop_front();  // and the one before them, to count from
  if (recent_.size() <= kRecentBlocks) return std::nullopt;
  std::vector<double> seconds;
  for (auto recent = recent_.begin() + 1; recent != recent_.end(); ++recent)
    seconds.push_back(recent->seconds);
  const double first = median(first_seconds_), now = median(seconds);
  if (now <= kSlowFactor * first || now - first <= kLeastExcessSeconds) return std::nullopt;
  const Cause cause = likely_cause(*normal_, recent_.front(), block,
                                   (now - first) * static_cast<double>(kRecentBlocks), allowance_.cpus);
  return Remark{block.step, block.block, "slow", cause.name,
                fmt::format("blocks take {:.3g} s, the first ones took {:.3g} s; likely cause: {}: {}", now,
                            first, cause.name, cause.evidence)};
}

std::optional<Remark> Watchdog::look_at_rss(const BlockReading& block) const {
  const std::int64_t held = block.process.rss_anon_bytes + block.process.swap_bytes;
  if (held <= allowance_.rss_anon_bytes) return std::nullopt;
  return Remark{block.step, block.block, "rss", "unknown",
                fmt::format("the process holds {} of anonymous memory, {} of it swapped out; the plan allows "
                            "{}: something outside the engine's books allocates",
                            format_bytes(held), format_bytes(block.process.swap_bytes),
                            format_bytes(allowance_.rss_anon_bytes))};
}

std::optional<Remark> Watchdog::look_at_pinned(const BlockReading& block) const {
  if (block.pinned_bytes <= allowance_.pinned_bytes) return std::nullopt;
  return Remark{block.step, block.block, "pinned", "unknown",
                fmt::format("{} are pinned, the plan has {}", format_bytes(block.pinned_bytes),
                            format_bytes(allowance_.pinned_bytes))};
}

}  // namespace h3s::ledger
