// The plans a planner chooses from: a finite set that depends on the job and never on budgets, so a larger
// budget only ever adds to what fits.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/dials.h"
#include "spec/model_spec.h"

namespace h3s::plan {

// Plans that differ in chunks and in the placement of weights alone.
struct Family {
  exec::Schedule schedule = exec::Schedule::kResident;
  std::int64_t head_group = 0;
  bool attention_out_on_device = false, project_ahead = false, keep_projection_input = false;
};

// resident; head-groups and flat with every combination of their switches, for every number of groups.
std::vector<Family> families(const spec::ModelSpec& spec);

// Every combination of chunks of a family, none past the sequence, without the dials of the weights.
std::vector<exec::Dials> members(const Family& family, std::int64_t tokens);

// The member that holds the fewest bytes of every space, but for the dials of the weights.
exec::Dials tightest(const Family& family, std::int64_t tokens);

}  // namespace h3s::plan
