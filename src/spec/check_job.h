// What sizes make a sequence.
#pragma once

#include "spec/layout.h"

namespace h3s::spec {

// Throws Error(kInvalidArgument) naming the first size or tag that is out of range.
void check_job(const JobSpec& job);

}  // namespace h3s::spec
