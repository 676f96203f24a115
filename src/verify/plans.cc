#include "verify/plans.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace h3s::verify {
namespace {

using exec::Dials;
using exec::Schedule;

// Chunks of one row, around one and two vector tiles, and larger than a small sequence.
constexpr std::array<std::int64_t, 7> kChunks{1, 63, 64, 65, 127, 129, 259};

Dials dials(Schedule schedule, std::int64_t group, std::int64_t q, std::int64_t kv, std::int64_t mlp,
            std::int64_t head, bool o_on_device = false, bool project_ahead = false, bool keep = false) {
  return {.schedule = schedule,
          .head_group = group,
          .q_chunk = q,
          .kv_chunk = kv,
          .mlp_chunk = mlp,
          .head_chunk = head,
          .attention_out_on_device = o_on_device,
          .project_ahead = project_ahead,
          .keep_projection_input = keep};
}

std::vector<NamedPlan> few() {
  return {{dials(Schedule::kResident, 0, 0, 0, 0, 0), 2},
          {dials(Schedule::kHeadGroups, 8, 1024, 2048, 1024, 512, true, false, true), 2},
          {dials(Schedule::kFlat, 4, 2048, 1024, 1536, 1024, false, true), 2}};
}

std::vector<NamedPlan> some() {
  return {{dials(Schedule::kResident, 0, 0, 0, 0, 0), 2},
          {dials(Schedule::kResident, 0, 63, 65, 127, 1), 1},
          {dials(Schedule::kHeadGroups, 1, 64, 129, 259, 63), 3},
          {dials(Schedule::kHeadGroups, 2, 129, 64, 65, 0, true), 2},
          {dials(Schedule::kHeadGroups, 8, 0, 0, 0, 0), 1},
          {dials(Schedule::kFlat, 1, 65, 63, 64, 127), 2},
          {dials(Schedule::kFlat, 2, 259, 127, 129, 64), 3},
          {dials(Schedule::kFlat, 1, 129, 64, 63, 65, false, true, true), 2},
          {dials(Schedule::kHeadGroups, 2, 65, 31, 64, 0, false, false, true), 2},
          {dials(Schedule::kFlat, 0, 1, 1, 1, 1), 1}};
}

// Each chunk size serves each stage in turn under each schedule; head groups, threads and the placement of
// weights rotate along.
std::vector<NamedPlan> all() {
  std::vector<NamedPlan> plans = some();
  const auto chunk = [](std::size_t i) { return kChunks[i % kChunks.size()]; };
  std::size_t count = 0;
  for (const Schedule schedule : {Schedule::kResident, Schedule::kHeadGroups, Schedule::kFlat})
    for (std::size_t i = 0; i < kChunks.size(); ++i, ++count) {
      plans.push_back({dials(schedule, static_cast<std::int64_t>(1 + count % 3), chunk(i), chunk(i + 1),
                             chunk(i + 3), chunk(i + 5), count % 2 == 0, count % 2 == 0, count % 3 != 0),
                       static_cast<int>(1 + count % 4)});
      plans.back().dials.resident_blocks = static_cast<std::int64_t>(count % 3);
      plans.back().dials.weight_slots = static_cast<std::int64_t>(1 + count % 4);
    }
  return plans;
}

}  // namespace

std::string NamedPlan::describe() const {
  return fmt::format("{}, {} thread{}", dials.describe(), threads, threads == 1 ? "" : "s");
}

std::vector<NamedPlan> plan_list(const std::string& name) {
  if (name == "few") return few();
  if (name == "some") return some();
  if (name == "all") return all();
  fail(Status::kInvalidArgument, "[plans] expected few, some or all, got \"{}\"", name);
}

}  // namespace h3s::verify
