// 500 random jobs and budgets, planned and really run on the CPU: measured <= planned <= budget, or a refusal
// whose smallest budgets work. Half of them on a device that is not the host and runs in any order.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "plan/random_requests.h"

namespace h3s::test {
namespace {

constexpr std::uint64_t kFirstSeed = 20261201;
constexpr int kJobs = 500;

spec::ModelSpec tiny_spec() {
  return {.hidden = 128,
          .layers = 3,
          .refiner_layers = 1,
          .heads = 3,
          .ffn = 256,
          .video_channels = 4,
          .audio_channels = 8,
          .text_dim = 64,
          .timestep_dim = 16,
          .time_hidden = 64,
          .time_dim = 8,
          .curve_grid = 9};
}

struct Outcome {
  std::vector<float> video, audio;
  std::array<std::int64_t, mem::kNumSpaces> peaks{};
};

// Two steps within `budgets`, held to them by the accountant.
Outcome run(const checkpoint::Checkpoint& checkpoint, const SmallJob& job, const plan::Plan& plan,
            const exec::Budgets& budgets, bool on_host, std::uint64_t seed) {
  Outcome out{job.inputs.video, job.inputs.audio, {}};
  mem::Accountant books(mem::make_heap_allocator(/*poison=*/true));
  books.set_budget(mem::Space::kDevice, budgets.device_bytes);
  const auto cpu = cpu::make_backend(1, books);
  DeferredBackend deferred(*cpu, seed);
  kernels::Backend& backend = on_host ? *cpu : static_cast<kernels::Backend&>(deferred);
  {
    exec::Session session(backend, books, checkpoint, job.layout, {.dials = plan.dials});
    session.set_conditioning(job.conditioning());
    for (const float sigma : {1.0f, 0.5f})
      session.forward(job.inputs.video.data(), job.inputs.audio.data(), sigma, out.video.data(),
                      out.audio.data());
  }
  for (int i = 0; i < mem::kNumSpaces; ++i)
    out.peaks[static_cast<std::size_t>(i)] = books.peak_bytes(static_cast<mem::Space>(i));
  return out;
}

// From a little under the smallest that work to a little over what the fastest plan takes.
exec::Budgets random_budgets(plan::Request request, std::mt19937_64& random) {
  const auto bytes = [](std::int64_t count, double share) { return share * static_cast<double>(count); };
  const exec::Footprint roomy = plan::require_plan(request).footprint;
  request.budgets = {1, mem::kUnlimited};
  const exec::Budgets least_device = plan::nearest_budgets(request).smallest;
  request.budgets = {mem::kUnlimited, 1};
  const exec::Budgets least_ram = plan::nearest_budgets(request).smallest;
  return {log_between(random, bytes(least_device.device_bytes, 0.97), bytes(roomy.device_bytes(), 1.1)),
          log_between(random, bytes(least_ram.ram_bytes, 0.9), bytes(least_device.ram_bytes, 3))};
}

TEST(PlannedRuns, StayWithinPlanAndBudgetOrNameBudgetsThatWork) {
  const CheckpointFile files[2] = {{tiny_spec(), false}, {tiny_spec(), true}};
  int refused = 0, resident_weights = 0;
  std::array<int, 3> schedules{};
  for (int i = 0; i < kJobs; ++i) {
    const std::uint64_t seed = kFirstSeed + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const bool on_host = i % 2 == 0;
    const checkpoint::Checkpoint& checkpoint = files[random() % 2].get();
    const SmallJob job(tiny_spec(), {.text_len = between(random, 1, 40),
                                     .latent_t = log_between(random, 1, 24),
                                     .latent_h = between(random, 1, 9),
                                     .latent_w = between(random, 1, 9),
                                     .audio_t = between(random, 1, 20)});
    plan::Request request{.checkpoint = checkpoint, .layout = job.layout, .device_is_host = on_host};
    request.holdings = {{mem::Space::kDevice, cpu::workspace_bytes(1), "workspace"}};
    request.calibration = on_host ? plan::expect_cpu(1) : plan::expect(*plan::find_card("h100"));
    // What the planner prefers on networks so small would leave the other schedules out.
    if (i % 3 == 1) request.without = exec::Schedule::kHeadGroups;
    request.budgets = random_budgets(request, random);
    plan::Result result = plan::make_plan(request);
    if (const auto* refusal = std::get_if<plan::Refusal>(&result)) {
      ++refused;
      request.budgets = refusal->smallest;
      result = plan::make_plan(request);
    }
    ASSERT_TRUE(std::holds_alternative<plan::Plan>(result));
    const auto& plan = std::get<plan::Plan>(result);
    ++schedules[static_cast<std::size_t>(plan.dials.schedule)];
    resident_weights += plan.dials.resident_blocks > 0;
    const Outcome out = run(checkpoint, job, plan, request.budgets, on_host, seed);
    for (int s = 0; s < mem::kNumSpaces; ++s)
      EXPECT_EQ(out.peaks[static_cast<std::size_t>(s)], plan.footprint.peak_bytes(static_cast<mem::Space>(s)))
          << plan.dials.describe();
    EXPECT_LE(plan.footprint.device_bytes(), request.budgets.device_bytes);
    EXPECT_LE(plan.footprint.ram_bytes(), request.budgets.ram_bytes);
    // Now and then the bits, against those of the simplest plan.
    if (i % 10 != 0) continue;
    plan::Plan simplest = plan;
    simplest.dials = {};
    const Outcome expected = run(checkpoint, job, simplest, {}, true, seed);
    EXPECT_TRUE(out.video == expected.video && out.audio == expected.audio) << plan.dials.describe();
  }
  fmt::print("{} of {} refused at first; resident {}, head-groups {}, flat {}; {} with resident weights\n",
             refused, kJobs, schedules[0], schedules[1], schedules[2], resident_weights);
  // Both sides of the budgets were met, and every kind of plan.
  EXPECT_GT(refused, kJobs / 20);
  EXPECT_LT(refused, kJobs / 2);
  EXPECT_GT(resident_weights, kJobs / 50);
  for (const int count : schedules) EXPECT_GT(count, kJobs / 50);
}

}  // namespace
}  // namespace h3s::test
