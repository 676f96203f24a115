// What else a user wants to know about a plan: the smallest card for the job, the longest clip for the card.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "plan/cards.h"
#include "plan/clip.h"
#include "plan/plan.h"

namespace h3s::plan {

// A request for a clip; its layout must live as long as what is done with the request.
using MakeRequest = std::function<Request(const spec::Layout& layout)>;

// Whether any plan fits. Much cheaper than making one.
bool feasible(const Request& request);

// The card with the least memory that has a plan for the request, its budget and calibration replaced by the
// card's; null when none has.
struct CardPlan {
  const Card* card = nullptr;
  Plan plan;
};
std::optional<CardPlan> smallest_card(const Request& request);

// The most pixel frames (17 k + 5) for which there is a plan, everything else of the clip kept but audio as
// long as the video where the clip names no length; `limited` when longer clips fit no file. 0: none.
struct LongestClip {
  std::int64_t frames = 0;
  bool limited = false;  // by the largest layout there is, not by memory
};
LongestClip longest_clip(const Clip& clip, const MakeRequest& make_request);

}  // namespace h3s::plan
