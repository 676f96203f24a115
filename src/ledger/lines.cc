#include "ledger/lines.h"

#include <cmath>

namespace h3s::ledger {
namespace {

// To the microsecond: what a clock resolves, and no digits beyond.
double rounded_ms(double ms) {
  return std::round(ms * 1e3) / 1e3;
}

Json optional_json(const std::optional<std::int64_t>& value) {
  return value ? Json(*value) : Json();
}

Json spaces_json(const SpaceBytes& bytes) {
  Json out;
  for (int i = 0; i < mem::kNumSpaces; ++i)
    out[mem::space_name(static_cast<mem::Space>(i))] = bytes[static_cast<std::size_t>(i)];
  return out;
}

}  // namespace

Json to_json(const Header& h) {
  return {{"type", "header"},
          {"format", kFormat},
          {"h3stream", h.version},
          {"compiler", h.compiler},
          {"started", h.started},
          {"model", h.model},
          {"settings", h.settings},
          {"tokens", h.tokens},
          {"blocks", h.blocks},
          {"steps", h.steps},
          {"first_step", h.first_step},
          {"plan", h.plan},
          {"planned_bytes", spaces_json(h.planned_bytes)},
          {"device_budget_bytes", optional_json(h.device_budget_bytes)},
          {"ram_budget_bytes", optional_json(h.ram_budget_bytes)},
          {"device", h.device},
          {"backend", h.backend},
          {"device_total_bytes", optional_json(h.device_total_bytes)},
          {"cpus", h.cpus},
          {"memory_bytes", h.memory_bytes}};
}

Json to_json(const PhaseLine& line, std::int64_t planned_device_bytes) {
  const MemoryReading& m = line.memory;
  return {{"type", "phase"},
          {"step", line.step},
          {"block", line.block < 0 ? Json() : Json(line.block)},
          {"phase", exec::phase_name(line.phase)},
          {"visits", line.visits},
          {"device_ms", rounded_ms(line.device_ms)},
          {"begin_ms", rounded_ms(line.begin_ms)},
          {"end_ms", rounded_ms(line.end_ms)},
          {"wall_begin_ms", rounded_ms(line.wall_begin_ms)},
          {"wall_end_ms", rounded_ms(line.wall_end_ms)},
          {"planned_device_bytes", planned_device_bytes},
          {"device_bytes", m.held_bytes[0]},
          {"device_peak_bytes", m.peak_bytes[0]},
          {"pinned_bytes", m.held_bytes[1]},
          {"pinned_peak_bytes", m.peak_bytes[1]},
          {"host_bytes", m.held_bytes[2]},
          {"host_peak_bytes", m.peak_bytes[2]},
          {"rss_anon_bytes", m.process.rss_anon_bytes},
          {"rss_file_bytes", m.process.rss_file_bytes},
          {"rss_shmem_bytes", m.process.rss_shmem_bytes},
          {"swap_bytes", m.process.swap_bytes},
          {"device_used_bytes", optional_json(m.device_used_bytes)}};
}

Json to_json(const Remark& r) {
  return {{"type", "remark"}, {"step", r.step},   {"block", r.block},
          {"what", r.what},   {"cause", r.cause}, {"text", r.text}};
}

Json to_json(const Closing& c) {
  return {{"type", "close"},
          {"outcome", c.outcome},
          {"steps_done", c.steps_done},
          {"wall_ms", rounded_ms(c.wall_ms)},
          {"peak_bytes", spaces_json(c.peak_bytes)}};
}

std::string line_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace h3s::ledger
