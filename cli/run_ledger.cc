#include "run_ledger.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <utility>

#include "ledger/page.h"
#include "log.h"

namespace h3s::cli {
namespace {

// Making the page reads the whole ledger: no more than this part of the run goes into it.
constexpr int kPageShare = 100;
constexpr std::chrono::seconds kPageEvery{10};
// And about 2.5 bytes of memory a byte of it; beyond this many it waits for the end, when the session is
// gone.
constexpr std::uintmax_t kMostWhileRunning = 16 << 20;

std::optional<std::int64_t> limit(std::int64_t budget_bytes) {
  return budget_bytes == mem::kUnlimited ? std::nullopt : std::optional(budget_bytes);
}

}  // namespace

ledger::Header make_header(const backend::DeviceChoice& where, const exec::Footprint& planned,
                           const exec::Budgets& budgets) {
  ledger::Header header{.version = H3S_VERSION,
                        .started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))),
                        .device = backend::describe(where),
                        .compiler = "gcc " __VERSION__,
                        .device_budget_bytes = limit(budgets.device_bytes),
                        .ram_budget_bytes = limit(budgets.ram_bytes),
                        .cpus = ::sysconf(_SC_NPROCESSORS_ONLN),
                        .memory_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE)};
  for (std::size_t i = 0; i < header.planned_bytes.size(); ++i)
    header.planned_bytes[i] = planned.spaces[i].peak_bytes;
  if (const auto state = backend::device_state(where)) header.device_total_bytes = state->total_bytes;
  return header;
}

std::function<std::optional<ledger::DeviceReading>()> device_reader(const backend::DeviceChoice& where) {
  if (where.on_cpu()) return {};
  return [where]() -> std::optional<ledger::DeviceReading> {
    const auto state = backend::device_state(where);
    if (!state) return std::nullopt;
    return ledger::DeviceReading{state->free_bytes, state->total_bytes, state->clock_mhz, state->throttled};
  };
}

RunLedger::RunLedger(ledger::Directory& directory, const ledger::Header& header,
                     ledger::Recorder::Sources sources)
    : directory_(directory.path()), recorder_(directory, header, std::move(sources)) {
  write_page();
}

void RunLedger::step_done() {
  const Clock::duration age = Clock::now() - page_written_;
  if (age < kPageEvery || age < kPageShare * page_took_) return;
  std::error_code error;
  if (std::filesystem::file_size(ledger::ledger_path(directory_), error) < kMostWhileRunning) write_page();
}

void RunLedger::close(const std::string& outcome, std::int64_t steps_done) {
  recorder_.close(outcome, steps_done);
  write_page();
}

// A page that cannot be written harms no run.
void RunLedger::write_page() noexcept {
  const Clock::time_point start = Clock::now();
  try {
    ledger::write_page(directory_);
  } catch (const std::exception& e) {
    log("h3stream: the page of the ledger was not written: {}", e.what());
  }
  page_written_ = Clock::now();
  page_took_ = page_written_ - start;
}

}  // namespace h3s::cli
