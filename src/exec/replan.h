// When the system has less memory than was planned with.
#pragma once

#include "mem/accountant.h"

namespace h3s::exec {

// What build() makes. When the device refuses the memory for it, another process having taken it since the
// plan was made, replan(refusal) is asked for a smaller plan, once; it returns false when there is none, and
// then, or when the second attempt fails too, the error is the caller's.
template <typename Build, typename Replan>
auto build_or_replan(Build build, Replan replan) {
  try {
    return build();
  } catch (const mem::Refused& refused) {
    if (refused.space() != mem::Space::kDevice || !replan(refused)) throw;
  }
  return build();
}

}  // namespace h3s::exec
