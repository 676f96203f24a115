#include "sample/schedules.h"

#include <algorithm>
#include <array>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>

#include "base/error.h"

namespace h3s::sample {
namespace {

constexpr std::int64_t kTableSize = 1000;
constexpr std::int64_t kMaxSteps = 10000;  // also of the longer schedule that denoise < 1 takes the end of
constexpr double kBetaShape = 0.6;         // both parameters of the Beta law
constexpr double kLinearEnd = 0.025;       // noise removed by the linear half of linear_quadratic
constexpr double kFullDenoise = 0.9999;    // from here on stock takes denoise for 1

struct NamedScheduler {
  Scheduler scheduler;
  const char* name;
};
constexpr std::array<NamedScheduler, 3> kSchedulers = {{{Scheduler::kSimple, "simple"},
                                                        {Scheduler::kBeta, "beta"},
                                                        {Scheduler::kLinearQuadratic, "linear_quadratic"}}};

std::vector<float> simple_schedule(std::int64_t steps, double shift) {
  const std::vector<float> table = sigma_table(shift);
  const double stride = static_cast<double>(kTableSize) / static_cast<double>(steps);
  std::vector<float> sigmas;
  for (std::int64_t k = 0; k < steps; ++k) {
    const auto from_end = static_cast<std::size_t>(static_cast<double>(k) * stride);  // binary64, as stock
    sigmas.push_back(table[table.size() - 1 - from_end]);
  }
  return sigmas;
}

// Steps at even quantiles of a U-shaped law: more of them near both ends.
std::vector<float> beta_schedule(std::int64_t steps, double shift) {
  const std::vector<float> table = sigma_table(shift);
  std::vector<float> sigmas;
  double last = -1;
  for (std::int64_t k = 0; k < steps; ++k) {
    const double y = 1.0 - static_cast<double>(k) / static_cast<double>(steps);
    const double idx = std::nearbyint(boost::math::ibeta_inv(kBetaShape, kBetaShape, y) * (kTableSize - 1));
    if (idx != last) sigmas.push_back(table[static_cast<std::size_t>(idx)]);
    last = idx;
  }
  return sigmas;
}

// The first half of the steps removes kLinearEnd of the noise evenly, the second half the rest quadratically,
// with equal slope where they meet (Genmo's Mochi schedule).
std::vector<float> linear_quadratic_schedule(std::int64_t steps) {
  if (steps == 1) return {1.0f};
  const auto n = static_cast<double>(steps);
  const auto linear = static_cast<double>(steps / 2);
  const double quadratic = n - linear;
  const double rest = linear - kLinearEnd * n;
  const double c2 = rest / (linear * (quadratic * quadratic));
  const double c1 = kLinearEnd / linear - 2.0 * rest / (quadratic * quadratic);
  const double c0 = c2 * (linear * linear);
  std::vector<float> sigmas;
  for (std::int64_t k = 0; k < steps; ++k) {
    const auto i = static_cast<double>(k);
    const double removed = i < linear ? i * kLinearEnd / linear : c2 * (i * i) + c1 * i + c0;
    sigmas.push_back(static_cast<float>(1.0 - removed));
  }
  return sigmas;
}

std::vector<float> full_schedule(Scheduler scheduler, std::int64_t steps, double shift) {
  switch (scheduler) {
    case Scheduler::kSimple:
      return simple_schedule(steps, shift);
    case Scheduler::kBeta:
      return beta_schedule(steps, shift);
    case Scheduler::kLinearQuadratic:
      return linear_quadratic_schedule(steps);
  }
  fail(Status::kInternal, "[schedule] unknown scheduler {}", static_cast<int>(scheduler));
}

// Negated comparisons, so that a NaN is refused too.
void check_options(const ScheduleOptions& options) {
  if (options.steps < 1 || options.steps > kMaxSteps)
    fail(Status::kInvalidArgument, "[schedule] steps must be 1 to {}, got {}", kMaxSteps, options.steps);
  if (!(options.shift > 0.0 && options.shift <= 1e6))
    fail(Status::kInvalidArgument, "[schedule] shift must be above 0, at most 1e6, got {}", options.shift);
  if (!(options.denoise > 0.0 && options.denoise <= 1.0))
    fail(Status::kInvalidArgument, "[schedule] denoise must be above 0, at most 1, got {}", options.denoise);
  if (static_cast<double>(options.steps) / options.denoise > kMaxSteps)
    fail(Status::kInvalidArgument, "[schedule] steps / denoise must be at most {}, got {} / {}", kMaxSteps,
         options.steps, options.denoise);
}

}  // namespace

const char* scheduler_name(Scheduler scheduler) {
  for (const NamedScheduler& entry : kSchedulers)
    if (entry.scheduler == scheduler) return entry.name;
  return "?";
}

Scheduler scheduler_from_name(const std::string& name) {
  for (const NamedScheduler& entry : kSchedulers)
    if (entry.name == name) return entry.scheduler;
  fail(Status::kInvalidArgument, "[schedule] unknown scheduler \"{}\": simple, beta or linear_quadratic",
       name);
}

std::vector<float> sigma_table(double shift) {
  const auto gain = static_cast<float>(shift);
  const auto bend = static_cast<float>(shift - 1.0);
  std::vector<float> table(static_cast<std::size_t>(kTableSize));
  for (std::size_t i = 0; i < table.size(); ++i) {
    const float u = static_cast<float>(i + 1) / static_cast<float>(kTableSize);
    table[i] = gain * u / (1.0f + bend * u);
  }
  return table;
}

std::vector<float> make_schedule(const ScheduleOptions& options) {
  check_options(options);
  const bool whole = options.denoise > kFullDenoise;
  const auto longer = static_cast<std::int64_t>(static_cast<double>(options.steps) / options.denoise);
  std::vector<float> sigmas = full_schedule(options.scheduler, whole ? options.steps : longer, options.shift);
  sigmas.push_back(0.0f);
  const std::size_t keep = std::min(sigmas.size(), static_cast<std::size_t>(options.steps) + 1);
  sigmas.erase(sigmas.begin(), sigmas.end() - static_cast<std::ptrdiff_t>(keep));
  return sigmas;
}

}  // namespace h3s::sample
