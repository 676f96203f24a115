// Noise levels of a sampling run: which sigma each step starts from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3s::sample {

enum class Scheduler { kSimple, kBeta, kLinearQuadratic };
const char* scheduler_name(Scheduler scheduler);         // "simple", "beta", "linear_quadratic"
Scheduler scheduler_from_name(const std::string& name);  // throws Error(kInvalidArgument) listing the names

// The model's 1000 noise levels, ascending, moved by `shift`: sigma = shift u / (1 + (shift - 1) u), u = (i +
// 1) / 1000, one fp32 rounding an operation.
std::vector<float> sigma_table(double shift);

struct ScheduleOptions {
  Scheduler scheduler = Scheduler::kSimple;
  std::int64_t steps = 8;
  double shift = 12.0;   // of the video stream; linear_quadratic does not use it
  double denoise = 1.0;  // 0 exclusive to 1: below 1 the end of a schedule of steps / denoise steps
};

// Descending sigmas, one more than there are steps; the last is 0. The beta scheduler drops repeated levels,
// so it may give fewer steps than asked for. Throws Error(kInvalidArgument).
std::vector<float> make_schedule(const ScheduleOptions& options);

}  // namespace h3s::sample
