#include "exec/dials.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace h3s::exec {
namespace {

constexpr std::array<std::pair<Schedule, const char*>, 3> kSchedules{{
    {Schedule::kResident, "resident"},
    {Schedule::kHeadGroups, "head-groups"},
    {Schedule::kFlat, "flat"},
}};

}  // namespace

const char* schedule_name(Schedule schedule) {
  return kSchedules[static_cast<std::size_t>(schedule)].second;
}

Schedule schedule_from_name(const std::string& name) {
  for (const auto& [schedule, text] : kSchedules)
    if (name == text) return schedule;
  fail(Status::kInvalidArgument, "[schedule] expected resident, head-groups or flat, got \"{}\"", name);
}

std::string Dials::describe() const {
  std::string text = schedule_name(schedule);
  if (schedule != Schedule::kResident) text += fmt::format(" g={}", head_group);
  text += fmt::format(" q={} kv={} mlp={} head={}", q_chunk, kv_chunk, mlp_chunk, head_chunk);
  if (schedule == Schedule::kHeadGroups && attention_out_on_device) text += " o=device";
  if (schedule == Schedule::kFlat && project_ahead) text += " ahead";
  if (schedule != Schedule::kResident && keep_projection_input) text += " keep";
  if (resident_blocks > 0) text += fmt::format(" resident-blocks={}", resident_blocks);
  if (weight_slots != Dials{}.weight_slots) text += fmt::format(" slots={}", weight_slots);
  return text;
}

}  // namespace h3s::exec
