// Every plan gives the bits of the first: schedules x chunk sizes x head groups x thread counts, every
// weight format.
#include <gtest/gtest.h>

#include "exec/engine_fixture.h"

namespace h3s::test {
namespace {

using exec::Dials;
using exec::Schedule;

struct Numerics {
  const char* name;
  checkpoint::WeightFormat format;
  bool curve;
  DType compute;
};

// Chunks that leave exactly `tail` rows for the last one.
std::vector<verify::NamedPlan> tail_plans(std::int64_t tokens) {
  std::vector<verify::NamedPlan> plans;
  int i = 0;
  for (const std::int64_t tail : {1, 63, 64, 65, 127, 129, 259}) {
    const std::int64_t chunk = tokens - tail;
    const Schedule schedule =
        std::array{Schedule::kResident, Schedule::kHeadGroups, Schedule::kFlat}[i++ % 3];
    plans.push_back({{.schedule = schedule,
                      .head_group = 2,
                      .q_chunk = chunk,
                      .kv_chunk = chunk,
                      .mlp_chunk = chunk,
                      .head_chunk = chunk},
                     1 + i % 3});
  }
  return plans;
}

class Plans : public testing::TestWithParam<Numerics> {};

TEST_P(Plans, GiveEqualBits) {
  const Numerics& n = GetParam();
  const spec::ModelSpec spec = small_spec(n.curve);
  const CheckpointFile file(spec, n.format);
  const SmallJob run(spec, ragged_job());
  const verify::CaptureJob job = run.capture_job(file.get(), n.compute);

  std::vector<verify::NamedPlan> plans = verify::plan_list("all");
  for (const auto& plan : tail_plans(run.layout.tokens())) plans.push_back(plan);
  plans.push_back({{.schedule = Schedule::kFlat, .head_group = 1, .q_chunk = 7, .min_tokens = 1000}, 2});
  // Only the text is short enough to go unchunked.
  plans.push_back({{.schedule = Schedule::kFlat, .head_group = 1, .kv_chunk = 8, .min_tokens = 100}, 2});
  ASSERT_GE(plans.size(), 24u);
  const verify::Capture first = run_captured(job, plans.front());
  for (const verify::NamedPlan& plan : plans)
    EXPECT_EQ(first_difference(first, run_captured(job, plan)), "") << plan.describe();
}

constexpr Numerics kNumerics[] = {{"bf16", checkpoint::WeightFormat::kBF16, true, DType::kBF16},
                                  {"fp32", checkpoint::WeightFormat::kBF16, true, DType::kF32},
                                  {"int8", checkpoint::WeightFormat::kInt8Tensorwise, true, DType::kBF16},
                                  {"bf16_full", checkpoint::WeightFormat::kBF16, false, DType::kBF16},
                                  {"fp8", checkpoint::WeightFormat::kFloat8E5M2, true, DType::kBF16},
                                  {"mxfp8", checkpoint::WeightFormat::kMxfp8, true, DType::kBF16},
                                  {"nvfp4", checkpoint::WeightFormat::kNvfp4, false, DType::kBF16},
                                  {"w4a8", checkpoint::WeightFormat::kAsymW4A8, true, DType::kBF16},
                                  {"w4a4", checkpoint::WeightFormat::kConvrotW4A4, true, DType::kBF16},
                                  {"w4a4_fp32", checkpoint::WeightFormat::kConvrotW4A4, true, DType::kF32}};

INSTANTIATE_TEST_SUITE_P(Numerics, Plans, testing::ValuesIn(kNumerics),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(Plans, PrefixDoesNotChangeBits) {
  const spec::ModelSpec spec = small_spec();
  const CheckpointFile plain(spec, true), prefixed(spec, true, "model.diffusion_model.");
  const SmallJob run(spec, ragged_job());
  const verify::NamedPlan plan = verify::plan_list("few").front();
  EXPECT_EQ(first_difference(run_captured(run.capture_job(plain.get(), DType::kBF16), plan),
                             run_captured(run.capture_job(prefixed.get(), DType::kBF16), plan)),
            "");
}

}  // namespace
}  // namespace h3s::test
