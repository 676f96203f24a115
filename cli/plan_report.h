// What `h3stream plan` prints: one screen, or JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "machine.h"
#include "plan/advice.h"
#include "plan/plan.h"

namespace h3s::cli {

struct PlanReport {
  plan::Clip clip;
  std::int64_t tokens = 0, audio_steps = 0, steps = 0;
  std::string model;  // "int8, 50 blocks", or a file's name
  std::uint64_t model_bytes = 0;
  Machine machine;
  exec::Budgets budgets;
  plan::Plan plan;
  std::optional<plan::Plan> runner_up;    // the fastest that fits by another schedule
  std::optional<plan::Plan> with_memory;  // faster, were device memory unlimited
  std::optional<plan::CardPlan> smallest_card;
  plan::LongestClip longest;

  std::string text() const;
  nlohmann::ordered_json json() const;
};

}  // namespace h3s::cli
