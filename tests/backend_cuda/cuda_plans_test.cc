// Every plan gives the bits of the first on the GPU too; and with the reference kernels they are the CPU
// engine's bits.
#include <gtest/gtest.h>

#include "exec/engine_fixture.h"

namespace h3s::test {
namespace {

struct Numerics {
  const char* name;
  checkpoint::WeightFormat format;
  bool curve;
  DType compute;
};

class CudaPlans : public testing::TestWithParam<Numerics> {};

void expect_equal_plans(const Numerics& n, bool reference) {
  const spec::ModelSpec spec = small_spec(n.curve);
  const CheckpointFile file(spec, n.format);
  const SmallJob run(spec, ragged_job());
  verify::CaptureJob job = run.capture_job(file.get(), n.compute);
  job.device = {.cuda = 0, .reference = reference};
  const std::vector<verify::NamedPlan> plans = verify::plan_list(reference ? "some" : "all");
  const verify::Capture first = run_captured(job, plans.front());
  for (const verify::NamedPlan& plan : plans)
    EXPECT_EQ(first_difference(first, run_captured(job, plan)), "") << plan.describe();
  if (!reference) return;
  verify::CaptureJob cpu = job;
  cpu.device = {};
  EXPECT_EQ(first_difference(run_captured(cpu, plans.front()), first), "") << "GPU reference against the CPU";
}

TEST_P(CudaPlans, GiveEqualBits) {
  expect_equal_plans(GetParam(), false);
}
TEST_P(CudaPlans, ReferenceHasTheBitsOfTheCpu) {
  expect_equal_plans(GetParam(), true);
}

using checkpoint::WeightFormat;
constexpr Numerics kNumerics[] = {{"bf16", WeightFormat::kBF16, true, DType::kBF16},
                                  {"fp32", WeightFormat::kBF16, true, DType::kF32},
                                  {"int8", WeightFormat::kInt8Tensorwise, true, DType::kBF16},
                                  {"bf16_full", WeightFormat::kBF16, false, DType::kBF16},
                                  {"fp8", WeightFormat::kFloat8E4M3, true, DType::kBF16},
                                  {"fp8_e5m2", WeightFormat::kFloat8E5M2, false, DType::kBF16},
                                  {"mxfp8", WeightFormat::kMxfp8, true, DType::kBF16},
                                  {"nvfp4", WeightFormat::kNvfp4, true, DType::kBF16},
                                  {"w4a8", WeightFormat::kAsymW4A8, true, DType::kBF16},
                                  {"w4a4", WeightFormat::kConvrotW4A4, true, DType::kBF16}};

INSTANTIATE_TEST_SUITE_P(Numerics, CudaPlans, testing::ValuesIn(kNumerics),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace h3s::test
