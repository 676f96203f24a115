// What crosses between host and device in a step: planned as the session's own counters count it.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/sequence.h"
#include "plan/cards.h"
#include "plan/clip.h"
#include "plan/estimate.h"
#include "plan/plan.h"

namespace h3s::test {
namespace {

using exec::Dials;
using exec::Schedule;

// Bytes of the second step, on a device that is not the host; the first loads what stays.
double counted(const CheckpointFile& file, const SmallJob& job, const Dials& dials) {
  mem::Accountant books(mem::make_heap_allocator());
  const auto inner = cpu::make_backend(1, books);
  DeferredBackend backend(*inner, 1);
  exec::Session session(backend, books, file.get(), job.layout, {.dials = dials});
  session.set_conditioning(job.conditioning());
  std::vector<float> video(job.inputs.video.size()), audio(job.inputs.audio.size());
  for (const float sigma : {1.0f, 0.5f})
    session.forward(job.inputs.video.data(), job.inputs.audio.data(), sigma, video.data(), audio.data());
  const exec::Traffic traffic = session.last_traffic();
  return static_cast<double>(traffic.up_bytes() + traffic.down_bytes());
}

double planned(const CheckpointFile& file, const SmallJob& job, const Dials& dials) {
  const exec::WeightLoader loader(file.get(), DType::kBF16, false);
  plan::Calibration rates = plan::expect(*plan::find_card("h200"));
  return plan::TimeModel(rates, loader, job.layout, false, true)
      .estimate(exec::effective_dials(dials, file.get().spec(), job.layout.tokens()))
      .host_traffic_bytes;
}

class PlannedTraffic : public testing::TestWithParam<bool> {};

TEST_P(PlannedTraffic, IsWhatTheSessionCounts) {
  const CheckpointFile file(small_spec(), /*int8=*/GetParam());
  const SmallJob job(small_spec(), ragged_job());
  // The plan counts a video patch in and out for every token; text has none, audio's are narrower.
  const spec::Segment& video = job.layout.video();
  const auto others = static_cast<double>(job.layout.tokens() - (video.stop - video.start));
  const double patches = 2 * sizeof(float) * others * static_cast<double>(small_spec().patch_width());
  for (const Schedule schedule : {Schedule::kResident, Schedule::kHeadGroups, Schedule::kFlat})
    for (const std::int64_t group : {1, 2})
      for (const bool keep : {false, true})
        for (const bool ahead : {false, true}) {
          const Dials dials{.schedule = schedule,
                            .head_group = group,
                            .q_chunk = 128,
                            .kv_chunk = 64,
                            .mlp_chunk = 64,
                            .head_chunk = 64,
                            .resident_blocks = small_spec().layers,
                            .project_ahead = ahead,
                            .keep_projection_input = keep};
          const double bytes = counted(file, job, dials);
          EXPECT_NEAR(planned(file, job, dials), bytes, 0.03 * bytes + patches) << dials.describe();
        }
}

INSTANTIATE_TEST_SUITE_P(Weights, PlannedTraffic, testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "int8" : "bf16"; });

// 50 blocks in 8 GiB: x stays on the device, and O's way out and in is less than half a terabyte a step.
TEST(PlannedTraffic, OfALongClipIsBounded) {
  const auto checkpoint =
      checkpoint::Checkpoint::without_data(spec::ModelSpec{}, checkpoint::WeightFormat::kInt8Tensorwise);
  const spec::Layout layout(plan::job_of({.width = 1376, .height = 768, .frames = 852}));
  EXPECT_NEAR(static_cast<double>(layout.tokens()), 262'720, 2'000);
  const plan::Calibration rates = plan::expect(*plan::find_card("h200"));
  plan::Request request{.checkpoint = checkpoint, .layout = layout, .device_is_host = false};
  request.holdings = {{mem::Space::kDevice, rates.context_bytes, "driver's context"}};
  request.budgets = {std::int64_t{8} << 30, std::int64_t{24} << 30};
  request.calibration = rates;
  const plan::Plan plan = plan::require_plan(request);
  EXPECT_EQ(plan.dials.schedule, Schedule::kHeadGroups);
  EXPECT_LE(plan.time.host_traffic_bytes, 0.5e12);
}

}  // namespace
}  // namespace h3s::test
