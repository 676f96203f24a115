// From a job, a machine and budgets to the dials of the fastest run that fits.
//
// Pure: no device, no file and no clock is looked at, so equal arguments give equal plans. Bytes are those
// that exec measures by running the session's constructors against books that hold no memory; seconds come
// from a calibration. Budgets only decide which of a finite set of plans fit, so more budget never gives a
// slower plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "exec/footprint.h"
#include "plan/calibration.h"
#include "plan/estimate.h"

namespace h3s::plan {

struct Request {
  const checkpoint::Checkpoint& checkpoint;
  const spec::Layout& layout;
  exec::SessionOptions session = {};  // its dials are used when `dials_given`
  bool device_is_host = true;
  exec::Holdings holdings = {};  // held beside the session: workspace, driver context, sampler
  exec::Budgets budgets = {};
  Calibration calibration = {};
  bool weights_cached = true;                  // the checkpoint stays in the page cache between steps
  bool dials_given = false;                    // no choice: find out whether they fit, and how long they take
  std::optional<exec::Schedule> without = {};  // leave this schedule out
};

struct Plan {
  exec::Dials dials;
  exec::Footprint footprint;
  Estimate time;
};

// Why there is no plan, and the budgets nearest to those given that there is one for: the smallest device
// budget that the RAM budget allows, else the smallest RAM budget that the device budget allows, else those
// of the plan smallest on the device. With exactly these there is a plan; with one byte less of the one that
// was too small there is none.
struct Refusal {
  std::string reason;  // one line, for a user
  exec::Budgets smallest;
  exec::Dials dials;  // of a plan within them
};

using Result = std::variant<Plan, Refusal>;

// Throws Error(kInvalidArgument) for dials out of range.
Result make_plan(const Request& request);

// As make_plan; throws Error(kOverBudget) with the refusal's reason.
Plan require_plan(const Request& request);

// The smallest budgets for a job whatever its request's are; without counting what they would cost in time.
Refusal nearest_budgets(const Request& request);

}  // namespace h3s::plan
