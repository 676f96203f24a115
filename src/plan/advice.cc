#include "plan/advice.h"

#include "base/error.h"

namespace h3s::plan {
namespace {

constexpr std::int64_t kFirstFrames = 5, kFramesStep = 17;  // clips have 17 k + 5 frames
constexpr std::int64_t kMostSteps = 13'000;                 // 65,000 latent frames: what spec::Layout takes

Request on_card(const Request& request, const Card& card) {
  Request changed = request;
  changed.device_is_host = false;
  changed.calibration = expect(card);
  changed.budgets.device_bytes = usable_bytes(card);
  return changed;
}

bool fits_at(std::int64_t steps, const Clip& clip, const MakeRequest& make_request) {
  Clip longer = clip;
  longer.frames = kFirstFrames + kFramesStep * steps;
  const spec::Layout layout(job_of(longer));
  return feasible(make_request(layout));
}

bool is_layout(std::int64_t steps, const Clip& clip) {
  Clip longer = clip;
  longer.frames = kFirstFrames + kFramesStep * steps;
  try {
    const spec::Layout layout(job_of(longer));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The largest value of [0, most] that holds, given that all below one that holds do; -1: none.
template <typename Holds>
std::int64_t largest(std::int64_t most, Holds holds) {
  std::int64_t low = -1, high = most;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (holds(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace

bool feasible(const Request& request) {
  const Refusal nearest = nearest_budgets(request);
  return nearest.smallest.device_bytes <= request.budgets.device_bytes &&
         nearest.smallest.ram_bytes <= request.budgets.ram_bytes;
}

std::optional<CardPlan> smallest_card(const Request& request) {
  for (const Card& card : cards()) {
    const Request changed = on_card(request, card);
    if (!feasible(changed)) continue;
    return CardPlan{&card, require_plan(changed)};
  }
  return {};
}

LongestClip longest_clip(const Clip& clip, const MakeRequest& make_request) {
  const std::int64_t most = largest(kMostSteps, [&](std::int64_t steps) { return is_layout(steps, clip); });
  const std::int64_t steps =
      largest(most, [&](std::int64_t count) { return fits_at(count, clip, make_request); });
  return {steps < 0 ? 0 : kFirstFrames + kFramesStep * steps, steps == most};
}

}  // namespace h3s::plan
