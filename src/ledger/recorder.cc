#include "ledger/recorder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace h3s::ledger {
namespace {

// How old a reading of the process's memory may be: reading costs about 20 us.
constexpr double kProcessReadingMs = 2;

// Beside what the plan holds and the process held before: stacks, a GPU's code loaded when first used.
constexpr std::int64_t kSlackBytes = std::int64_t{256} << 20;

// Bytes of the spaces that are ordinary memory of the process, or may be counted as such.
std::int64_t process_bytes(const SpaceBytes& bytes, bool device_is_host) {
  return bytes[1] + bytes[2] + (device_is_host ? bytes[0] : 0);
}

void read_books(const mem::Accountant& accountant, MemoryReading& reading) {
  for (std::size_t i = 0; i < reading.held_bytes.size(); ++i) {
    const mem::SpaceReport totals = accountant.totals(static_cast<mem::Space>(i));
    reading.held_bytes[i] = totals.current_bytes;
    reading.peak_bytes[i] = totals.peak_bytes;
  }
}

Allowance allowance(const Header& header, const Recorder::Sources& sources) {
  const bool device_is_host = sources.backend.device_is_host();
  MemoryReading now;
  read_books(sources.accountant, now);
  const std::int64_t program = std::max<std::int64_t>(
      0, read_process_memory().rss_anon_bytes - process_bytes(now.held_bytes, device_is_host));
  return {program + process_bytes(header.planned_bytes, device_is_host) + kSlackBytes,
          header.planned_bytes[1], header.cpus};
}

}  // namespace

PhaseLine& Recorder::Group::line(exec::Phase phase) {
  const auto found =
      std::find_if(lines.begin(), lines.end(), [&](const PhaseLine& line) { return line.phase == phase; });
  if (found != lines.end()) return *found;
  return lines.emplace_back(PhaseLine{.step = step, .block = block, .phase = phase});
}

Recorder::Recorder(Directory& directory, const Header& header, Sources sources)
    : directory_(directory),
      first_step_(header.first_step),
      planned_device_bytes_(header.planned_bytes[0]),
      sources_(std::move(sources)),
      phase_clock_(sources_.backend),
      watchdog_(allowance(header, sources_)) {
  directory_.append(line_text(to_json(header)));
  const kernels::Stamp stamp = sources_.backend.stamp(kernels::Queue::kCompute);
  sources_.backend.sync(sources_.backend.record(kernels::Queue::kCompute));
  device_to_wall_ms_ = wall_ms() - sources_.backend.passed_ms(stamp).value();
  if (sources_.device) device_ = sources_.device();
}

double Recorder::wall_ms() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
}

MemoryReading Recorder::read_memory() {
  if (const double now = wall_ms(); now - process_read_ms_ > kProcessReadingMs) {
    process_ = read_process_memory();
    process_read_ms_ = now;
  }
  MemoryReading reading{.process = process_};
  read_books(sources_.accountant, reading);
  if (device_) reading.device_used_bytes = device_->total_bytes - device_->free_bytes;
  return reading;
}

void Recorder::end_visit() {
  if (visited_ == nullptr) return;
  visited_->memory = read_memory();
  visited_->wall_end_ms = wall_ms();
  visited_ = nullptr;
}

void Recorder::enter(const exec::PhasePoint& point) {
  phase_clock_.enter(point);
  end_visit();
  const std::int64_t step = point.forward_idx < 0 ? 0 : first_step_ + point.forward_idx + 1;
  if (groups_.empty() || groups_.back().over || groups_.back().step != step ||
      groups_.back().block != point.block_idx) {
    if (!groups_.empty()) groups_.back().over = true;
    groups_.push_back({.step = step, .block = point.block_idx});
  }
  visited_ = &groups_.back().line(point.phase);
  if (visited_->visits++ == 0) visited_->wall_begin_ms = wall_ms();
  ++groups_.back().visits;
  take_times();
  write_done_groups();
}

void Recorder::leave() {
  phase_clock_.leave();
  end_visit();
  groups_.back().over = true;
  take_times();
  write_done_groups();
}

// Spans come in the order of the visits.
void Recorder::take_times() {
  for (const exec::PhaseSpan& span : phase_clock_.collect()) {
    const auto group =
        std::find_if(groups_.begin(), groups_.end(), [](const Group& g) { return g.timed < g.visits; });
    H3S_ASSERT(group != groups_.end() && group->block == span.point.block_idx);
    PhaseLine& line = group->line(span.point.phase);
    if (line.end_ms == 0) line.begin_ms = span.begin_ms + device_to_wall_ms_;
    line.end_ms = span.end_ms + device_to_wall_ms_;
    line.device_ms += span.end_ms - span.begin_ms;
    ++group->timed;
  }
}

void Recorder::write_done_groups() {
  while (!groups_.empty() && groups_.front().done()) {
    std::string lines = lines_of(groups_.front());
    for (const Remark& remark : watch(groups_.front())) {
      lines += line_text(to_json(remark));
      sources_.warn(remark.text);
    }
    append(lines);
    groups_.pop_front();
  }
}

std::string Recorder::lines_of(const Group& group) const {
  std::string text;
  for (const PhaseLine& line : group.lines) text += line_text(to_json(line, planned_device_bytes_));
  return text;
}

std::vector<Remark> Recorder::watch(const Group& group) {
  if (group.block < 0) return {};
  if (sources_.device) device_ = sources_.device();
  const PhaseLine& last = group.lines.back();
  return watchdog_.look({.step = group.step,
                         .block = group.block,
                         .seconds = (last.end_ms - group.lines.front().begin_ms) * 1e-3,
                         .wall_end_s = wall_ms() * 1e-3,
                         .process = last.memory.process,
                         .pinned_bytes = last.memory.held_bytes[1],
                         .load = read_machine_load(),
                         .device = device_});
}

void Recorder::append(const std::string& lines) noexcept {
  if (broken_) return;
  try {
    directory_.append(lines);
  } catch (const std::exception& e) {
    broken_ = true;
    sources_.warn(fmt::format("the ledger ends here: {}", e.what()));
  }
}

void Recorder::close(const std::string& outcome, std::int64_t steps_done) {
  take_times();
  write_done_groups();
  for (Group& group : groups_) {  // where an exception ended it
    std::erase_if(group.lines, [](const PhaseLine& line) { return line.end_ms == 0; });
    append(lines_of(group));
  }
  groups_.clear();
  MemoryReading last;
  read_books(sources_.accountant, last);
  append(line_text(to_json(Closing{outcome, steps_done, wall_ms(), last.peak_bytes})));
}

}  // namespace h3s::ledger
