#include "exec/stage_limits.h"

namespace h3s::exec {
namespace {

constexpr std::array<const char*, kNumStages> kStageNames{"projection", "attention", "MLP", "output heads"};

}  // namespace

void StageLimits::shrink(Stage stage, std::int64_t failed_rows, const Error& error) {
  if (error.status() != Status::kOverBudget) throw;
  const char* name = kStageNames[static_cast<std::size_t>(stage)];
  if (failed_rows <= kFewestRows)
    fail(Status::kOverBudget, "[{}] no memory for {} rows, and fewer than {} are not tried: {}", name,
         failed_rows, kFewestRows, error.what());
  most_rows(stage) = std::max(kFewestRows, failed_rows / 2);
  if (warn_)
    warn_(fmt::format("{} of {} rows was refused memory and goes on with {}: {}", name, failed_rows,
                      most_rows(stage), error.what()));
}

Dials StageLimits::applied_to(Dials dials) const {
  for (const auto& [stage, rows] :
       {std::pair{Stage::kProject, &dials.kv_chunk}, std::pair{Stage::kAttend, &dials.q_chunk},
        std::pair{Stage::kMlp, &dials.mlp_chunk}, std::pair{Stage::kHeads, &dials.head_chunk}})
    *rows = std::min(*rows, most_rows(stage));
  return dials;
}

}  // namespace h3s::exec
