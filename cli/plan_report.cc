#include "plan_report.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "memory_table.h"
#include "progress.h"

namespace h3s::cli {
namespace {

using nlohmann::ordered_json;

std::string percent(double ratio) {
  return fmt::format("{:.1f} %", 100 * ratio);
}

std::string line(const char* label, const std::string& text) {
  return fmt::format("{:<11}{}\n", label, text);
}

// "12.3 s", with three digits that mean something.
std::string seconds_text(double seconds) {
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  return seconds >= 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.3g} s", seconds);
}

std::string stages_text(const plan::Estimate& time) {
  std::string text;
  for (std::size_t i = 0; i < plan::kNumStages; ++i)
    text +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", plan::stage_name(i), seconds_text(time.stages[i].seconds));
  return text;
}

std::string space_text(const PlanReport& report, mem::Space space) {
  const mem::SpaceReport& bytes = report.plan.footprint.spaces[static_cast<std::size_t>(space)];
  const bool device = space == mem::Space::kDevice;
  const std::int64_t budget = device ? report.budgets.device_bytes : mem::kUnlimited;
  const std::string of = budget == mem::kUnlimited ? "" : " of " + format_bytes(budget);
  return fmt::format("{}{}: {}", format_bytes(bytes.peak_bytes), of, holders_text(bytes));
}

std::string clip_text(std::int64_t frames) {
  return fmt::format("{} frames ({:.1f} s)", frames, plan::seconds_of(frames));
}

std::string runner_up_text(const PlanReport& report) {
  if (!report.runner_up) return "none: no other schedule fits";
  const plan::Plan& other = *report.runner_up;
  const double ratio = other.time.seconds / report.plan.time.seconds - 1;
  if (plan::time_rank(other.time.seconds) == plan::time_rank(report.plan.time.seconds))
    return fmt::format("{}: as fast, but {} of device memory", other.dials.describe(),
                       format_bytes(other.footprint.device_bytes()));
  return fmt::format("{}: {} slower, {} of device memory, {} not hidden behind compute",
                     other.dials.describe(), percent(ratio), format_bytes(other.footprint.device_bytes()),
                     seconds_text(other.time.waiting()));
}

std::string with_memory_text(const PlanReport& report) {
  const plan::Plan& other = *report.with_memory;
  return fmt::format("{}: {} less time, needs {}", other.dials.describe(),
                     percent(1 - other.time.seconds / report.plan.time.seconds),
                     format_bytes(other.footprint.device_bytes()));
}

std::string longest_text(const PlanReport& report) {
  if (report.longest.frames == 0) return "none";
  return (report.longest.limited ? "any: " : "") + clip_text(report.longest.frames) + " at this size";
}

std::string smallest_card_text(const PlanReport& report) {
  if (!report.smallest_card) return "none of the table";
  const plan::CardPlan& found = *report.smallest_card;
  return fmt::format("{} ({:.0f} GiB), {}/step: {}", found.card->name, found.card->memory_gib,
                     seconds_text(found.plan.time.seconds), found.plan.dials.describe());
}

ordered_json plan_json(const plan::Plan& plan) {
  return {{"plan", plan.dials.describe()},
          {"seconds_per_step", plan.time.seconds},
          {"device_bytes", plan.footprint.device_bytes()},
          {"ram_bytes", plan.footprint.ram_bytes()}};
}

ordered_json budget_json(std::int64_t bytes) {
  return bytes == mem::kUnlimited ? ordered_json() : ordered_json(bytes);
}

ordered_json dials_json(const exec::Dials& d) {
  return {{"schedule", exec::schedule_name(d.schedule)},
          {"head_group", d.head_group},
          {"q_chunk", d.q_chunk},
          {"kv_chunk", d.kv_chunk},
          {"mlp_chunk", d.mlp_chunk},
          {"head_chunk", d.head_chunk},
          {"attention_out_on_device", d.attention_out_on_device},
          {"project_ahead", d.project_ahead},
          {"keep_projection_input", d.keep_projection_input},
          {"resident_blocks", d.resident_blocks},
          {"weight_slots", d.weight_slots}};
}

ordered_json stages_json(const plan::Estimate& time) {
  ordered_json stages;
  for (std::size_t i = 0; i < plan::kNumStages; ++i) {
    const plan::Stage& stage = time.stages[i];
    stages[plan::stage_name(i)] = {{"seconds", stage.seconds},
                                   {"compute", stage.compute},
                                   {"upload", stage.upload},
                                   {"download", stage.download}};
  }
  return stages;
}

ordered_json memory_json(const PlanReport& report) {
  ordered_json memory;
  for (const mem::Space space : {mem::Space::kDevice, mem::Space::kPinned, mem::Space::kHost}) {
    const mem::SpaceReport& bytes = report.plan.footprint.spaces[static_cast<std::size_t>(space)];
    memory[mem::space_name(space)] = {{"planned_bytes", bytes.peak_bytes}, {"holders", holders_json(bytes)}};
  }
  memory["device"]["budget_bytes"] = budget_json(report.budgets.device_bytes);
  memory["ram_budget_bytes"] = budget_json(report.budgets.ram_bytes);
  return memory;
}

}  // namespace

std::string PlanReport::text() const {
  const plan::Estimate& time = plan.time;
  std::string out =
      line("clip", fmt::format("{} x {}, {}, {} audio steps: {} tokens", clip.width, clip.height,
                               clip_text(spec::align_frames(clip.frames)), audio_steps, tokens)) +
      line("model", fmt::format("{}, {}", model, format_bytes(static_cast<std::int64_t>(model_bytes)))) +
      line("machine", fmt::format("{}, rates {}", machine.name,
                                  machine.calibration.measured ? "measured" : "estimated")) +
      line("plan", plan.dials.describe());
  std::string total;
  if (steps > 0)
    total = fmt::format(", {} steps {}", steps,
                        format_duration(time.setup_seconds + static_cast<double>(steps) * time.seconds));
  out += line("time", seconds_text(time.seconds) + "/step" + total) + line("", stages_text(time)) +
         line("", fmt::format("{} of it not computing, {} between host and device a step",
                              percent(time.waiting() / time.seconds),
                              format_bytes(static_cast<std::int64_t>(time.host_traffic_bytes))));
  for (const mem::Space space : {mem::Space::kDevice, mem::Space::kPinned, mem::Space::kHost})
    out += line(mem::space_name(space), space_text(*this, space));
  if (budgets.ram_bytes != mem::kUnlimited)
    out += line("ram", fmt::format("{} of {}: pinned and host", format_bytes(plan.footprint.ram_bytes()),
                                   format_bytes(budgets.ram_bytes)));
  out += line("runner-up", runner_up_text(*this));
  if (with_memory) out += line("more vram", with_memory_text(*this));
  return out + line("smallest", "card that does this: " + smallest_card_text(*this)) +
         line("longest", "clip here: " + longest_text(*this));
}

ordered_json PlanReport::json() const {
  ordered_json out = {
      {"clip",
       {{"width", clip.width},
        {"height", clip.height},
        {"frames", spec::align_frames(clip.frames)},
        {"audio_steps", audio_steps},
        {"tokens", tokens}}},
      {"model", {{"name", model}, {"bytes", model_bytes}}},
      {"machine", {{"name", machine.name}, {"measured", machine.calibration.measured}}},
      {"plan", plan.dials.describe()},
      {"dials", dials_json(plan.dials)},
      {"seconds_per_step", plan.time.seconds},
      {"setup_seconds", plan.time.setup_seconds},
      {"stages", stages_json(plan.time)},
      {"host_traffic_bytes", plan.time.host_traffic_bytes},
      {"memory", memory_json(*this)},
      {"runner_up", runner_up ? plan_json(*runner_up) : ordered_json()},
      {"with_more_memory", with_memory ? plan_json(*with_memory) : ordered_json()},
      {"smallest_card", ordered_json()},
      {"longest_clip", {{"frames", longest.frames}, {"limited_by_memory", !longest.limited}}}};
  if (smallest_card) {
    out["smallest_card"] = plan_json(smallest_card->plan);
    out["smallest_card"]["name"] = smallest_card->card->name;
  }
  if (steps > 0) {
    out["steps"] = steps;
    out["total_seconds"] = plan.time.setup_seconds + static_cast<double>(steps) * plan.time.seconds;
  }
  return out;
}

}  // namespace h3s::cli
