// LoRAs on the GPU: every plan gives the bits of the first, the reference kernels have the CPU's bits, and
// the fast ones are as far from a float32 run as the CPU is.
#include <gtest/gtest.h>

#include <cmath>

#include "exec/engine_fixture.h"
#include "lora_file.h"

namespace h3s::test {
namespace {

using checkpoint::LoraMode;
using checkpoint::WeightFormat;

struct Numerics {
  const char* name;
  WeightFormat format;
  bool curve;
  DType compute;
  LoraMode mode;
};

class CudaLora : public testing::TestWithParam<Numerics> {
 protected:
  CudaLora()
      : spec_(small_spec(GetParam().curve)), file_(spec_, GetParam().format), run_(spec_, ragged_job()) {
    fused_.all_layers(spec_, 20);
    split_.pair("transformer_blocks.1.attn.to_k", spec_.inner(), spec_.hidden, 3);
    split_.pair("transformer_blocks.1.ff.net.0.proj", 2 * spec_.ffn, spec_.hidden, 5);
    const std::vector<checkpoint::LoraRequest> requests{{fused_.write(), 0.75f}, {split_.write(), -1.0f}};
    adapted_ = std::make_unique<checkpoint::Checkpoint>(file_.get().with_loras(requests, GetParam().mode));
  }
  verify::Capture capture(const verify::NamedPlan& plan, const backend::DeviceChoice& device,
                          DType compute = GetParam().compute) {
    verify::CaptureJob job = run_.capture_job(*adapted_, compute);
    job.device = device;
    return run_captured(job, plan);
  }

  static constexpr backend::DeviceChoice kGpu{.cuda = 0};
  static constexpr backend::DeviceChoice kPlainGpu{.cuda = 0, .reference = true};
  spec::ModelSpec spec_;
  CheckpointFile file_;
  SmallJob run_;
  LoraFile fused_, split_;
  std::unique_ptr<checkpoint::Checkpoint> adapted_;
};

double relative_rms(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(difference / size);
}

TEST_P(CudaLora, PlansGiveEqualBits) {
  const std::vector<verify::NamedPlan> plans =
      verify::plan_list(GetParam().mode == LoraMode::kRuntime ? "all" : "few");
  const verify::Capture first = capture(plans.front(), kGpu);
  for (const verify::NamedPlan& plan : plans)
    EXPECT_EQ(first_difference(first, capture(plan, kGpu)), "") << plan.describe();
}

TEST_P(CudaLora, ReferenceHasTheBitsOfTheCpu) {
  const std::vector<verify::NamedPlan> plans = verify::plan_list("few");
  const verify::Capture cpu = capture(plans.front(), {});
  for (const verify::NamedPlan& plan : plans)
    EXPECT_EQ(first_difference(cpu, capture(plan, kPlainGpu)), "") << plan.describe();
}

// By the rule for formats: the ratio of the two errors against a float32 run is 1 within 5 %.
TEST_P(CudaLora, ErrorIsTheCpus) {
  if (GetParam().compute == DType::kF32) return;
  const verify::NamedPlan plan = verify::plan_list("few").front();
  const verify::Capture exact = capture(plan, {}, DType::kF32), cpu = capture(plan, {}),
                        gpu = capture(plan, kGpu);
  for (const std::string name : {"block0", "block1", "video_out"}) {
    const std::vector<float>& want = exact.tensors.at(name);
    ASSERT_GE(want.size(), 2000u);
    const double ratio = relative_rms(gpu.tensors.at(name), want) / relative_rms(cpu.tensors.at(name), want);
    EXPECT_NEAR(ratio, 1, 0.05) << name;
  }
}

constexpr Numerics kNumerics[] = {
    {"bf16", WeightFormat::kBF16, true, DType::kBF16, LoraMode::kRuntime},
    {"fp32", WeightFormat::kBF16, true, DType::kF32, LoraMode::kRuntime},
    {"int8", WeightFormat::kInt8Tensorwise, true, DType::kBF16, LoraMode::kRuntime},
    {"bf16_full", WeightFormat::kBF16, false, DType::kBF16, LoraMode::kRuntime},
    {"fp8", WeightFormat::kFloat8E4M3, true, DType::kBF16, LoraMode::kRuntime},
    {"mxfp8", WeightFormat::kMxfp8, true, DType::kBF16, LoraMode::kRuntime},
    {"nvfp4", WeightFormat::kNvfp4, true, DType::kBF16, LoraMode::kRuntime},
    {"w4a8", WeightFormat::kAsymW4A8, true, DType::kBF16, LoraMode::kRuntime},
    {"w4a4", WeightFormat::kConvrotW4A4, true, DType::kBF16, LoraMode::kRuntime},
    {"merged_int8", WeightFormat::kInt8Tensorwise, true, DType::kBF16, LoraMode::kMerge},
    {"merged_nvfp4", WeightFormat::kNvfp4, true, DType::kBF16, LoraMode::kMerge}};

INSTANTIATE_TEST_SUITE_P(Numerics, CudaLora, testing::ValuesIn(kNumerics),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace h3s::test
