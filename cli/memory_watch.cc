#include "memory_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "ledger/system_reading.h"

namespace h3s::cli {
namespace {

std::int64_t device_used_bytes(const backend::DeviceChoice& where) {
  const auto state = backend::device_state(where);
  return state ? state->total_bytes - state->free_bytes : 0;
}

void raise(std::int64_t& peak, std::int64_t value) {
  peak = std::max(peak, value);
}

}  // namespace

MemoryWatch::MemoryWatch(const backend::DeviceChoice& where) : where_(where) {
  if (const auto context = backend::context_bytes(where))
    others_bytes_ = std::max<std::int64_t>(0, device_used_bytes(where) - *context);
  program_bytes_ = ledger::read_process_memory().rss_anon_bytes;
  look();
}

void MemoryWatch::enter(const exec::PhasePoint& point) {
  if (point.block_idx == block_idx_) return;
  block_idx_ = point.block_idx;
  look();
}

void MemoryWatch::look() {
  const ledger::ProcessMemory process = ledger::read_process_memory();
  raise(anonymous_bytes_, process.rss_anon_bytes);
  raise(mapped_bytes_, process.rss_file_bytes);
  raise(shared_bytes_, process.rss_shmem_bytes);
  raise(device_used_bytes_, device_used_bytes(where_));
}

std::string MemoryWatch::text() const {
  std::string text =
      fmt::format("process: anonymous {}, {} of it before the run; mapped files {}\n",
                  format_bytes(anonymous_bytes_), format_bytes(program_bytes_), format_bytes(mapped_bytes_));
  if (others_bytes_)
    text += fmt::format("driver: {} of the device held by this process\n",
                        format_bytes(device_used_bytes_ - *others_bytes_));
  return text;
}

nlohmann::json MemoryWatch::json() const {
  nlohmann::json out = {{"program_bytes", program_bytes_},
                        {"anonymous_bytes", anonymous_bytes_},
                        {"mapped_bytes", mapped_bytes_},
                        {"shared_bytes", shared_bytes_}};
  if (where_.on_cpu()) return out;
  out["device_used_bytes"] = device_used_bytes_;
  out["device_bytes"] = nullptr;
  if (others_bytes_) out["device_bytes"] = device_used_bytes_ - *others_bytes_;
  return out;
}

}  // namespace h3s::cli
