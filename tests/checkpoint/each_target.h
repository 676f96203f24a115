// Vector code on every instruction set that this build has and this machine runs.
#pragma once

#include "simd/targets.h"

#include <gtest/gtest.h>

#include <functional>

#include "hwy/highway.h"

namespace h3s::checkpoint {

inline void for_each_target(const std::function<void()>& fn) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    fn();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

}  // namespace h3s::checkpoint
