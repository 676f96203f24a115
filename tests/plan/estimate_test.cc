// Estimates against what was measured on the card the rates are of, and against arithmetic by hand.
#include "plan/estimate.h"

#include <gtest/gtest.h>

#include "lora_file.h"
#include "plan/cards.h"
#include "plan/clip.h"

namespace h3s::test {
namespace {

using exec::Dials;
using exec::Schedule;

struct Job {
  checkpoint::Checkpoint checkpoint;
  spec::Layout layout;
  exec::WeightLoader loader;
  plan::Calibration calibration;
  bool device_is_host;

  Job(spec::ModelSpec spec, const plan::Clip& clip, plan::Calibration rates,
      checkpoint::WeightFormat format = checkpoint::WeightFormat::kInt8Tensorwise)
      : checkpoint(checkpoint::Checkpoint::without_data(spec, format)),
        layout(plan::job_of(clip)),
        loader(checkpoint, DType::kBF16, !rates.overlaps),
        calibration(rates),
        device_is_host(!rates.overlaps) {}
  plan::Estimate estimate(const Dials& dials) const {
    return plan::TimeModel(calibration, loader, layout, device_is_host, true).estimate(dials);
  }
};

spec::ModelSpec real_spec(std::int64_t layers) {
  spec::ModelSpec spec;
  spec.layers = layers;
  return spec;
}

Dials chunked(Schedule schedule, std::int64_t heads) {
  return {.schedule = schedule,
          .head_group = heads,
          .q_chunk = 16384,
          .kv_chunk = 8192,
          .mlp_chunk = 8192,
          .head_chunk = 8192};
}

const plan::Clip kLongClip{.width = 1376, .height = 768, .frames = 702};

// bench/results/two-blocks-h200.json: seconds of one step with its weights loaded, text excluded.
TEST(Estimate, AgreesWithTwoBlocksMeasuredOnTheH200) {
  const Job job(real_spec(2), kLongClip, plan::expect(*plan::find_card("h200")));
  ASSERT_EQ(job.layout.tokens(), 216464);
  const auto expect_seconds = [&](const Dials& dials, double measured) {
    EXPECT_NEAR(job.estimate(dials).seconds, measured, 0.1 * measured) << dials.describe();
  };
  expect_seconds(chunked(Schedule::kResident, 56), 4.672);
  expect_seconds(chunked(Schedule::kHeadGroups, 8), 4.719);
  expect_seconds(chunked(Schedule::kHeadGroups, 4), 4.793);
  expect_seconds(chunked(Schedule::kFlat, 8), 5.149);
}

TEST(Estimate, AttentionIsItsOperationsOverItsRate) {
  const Job job(real_spec(3), kLongClip, plan::expect(*plan::find_card("h200")));
  const double s = 216464, operations = 3 * 4 * s * s * 56 * 128;
  EXPECT_NEAR(job.estimate(chunked(Schedule::kResident, 56)).stages[plan::kAttend].compute,
              operations / job.calibration.attention_bf16.ops, 1e-9 * operations);
}

// What is multiplied decides, not how it is stored. bench/results/formats-h200.json: blocks of W4A8 take as
// long as those of int8.
TEST(Estimate, FormatsTakeAsLongAsTheProductsTheyMake) {
  using checkpoint::WeightFormat;
  const auto seconds = [](WeightFormat format) {
    const Job job(real_spec(2), kLongClip, plan::expect(*plan::find_card("rtx4060")), format);
    const plan::Estimate estimate = job.estimate(chunked(Schedule::kResident, 56));
    return estimate.stages[plan::kProject].compute + estimate.stages[plan::kFinish].compute;
  };
  const double int8 = seconds(WeightFormat::kInt8Tensorwise), bf16 = seconds(WeightFormat::kBF16);
  ASSERT_LT(int8, 0.5 * bf16);
  for (const WeightFormat format : {WeightFormat::kAsymW4A8, WeightFormat::kConvrotW4A4})
    EXPECT_NEAR(seconds(format), int8, 0.05 * int8) << weight_format_name(format);
  for (const WeightFormat format : {WeightFormat::kFloat8E4M3, WeightFormat::kMxfp8, WeightFormat::kNvfp4})
    EXPECT_NEAR(seconds(format), bf16, 0.05 * bf16) << weight_format_name(format);
}

TEST(Estimate, CopiesHideBehindComputeWhereTheyCanAndAddWhereTheyCannot) {
  plan::Calibration rates = plan::expect(*plan::find_card("h200"));
  const Dials dials = chunked(Schedule::kHeadGroups, 8);
  const plan::Stage beside = Job(real_spec(2), kLongClip, rates).estimate(dials).stages[plan::kAttend];
  EXPECT_LT(beside.seconds, beside.compute + 0.3 * beside.download);
  rates.overlaps = false;
  const plan::Stage after = Job(real_spec(2), kLongClip, rates).estimate(dials).stages[plan::kAttend];
  EXPECT_DOUBLE_EQ(after.seconds, after.compute + after.download);
  rates.overlaps = true;
  rates.download_bytes = 1e6;
  const plan::Stage slow = Job(real_spec(2), kLongClip, rates).estimate(dials).stages[plan::kAttend];
  EXPECT_GE(slow.seconds, slow.download);
}

// A short clip cannot hide the weights: each resident block saves its share, and all of them the whole.
TEST(Estimate, ResidentBlocksSaveStreaming) {
  const Job job(real_spec(10), {.width = 256, .height = 256, .frames = 5},
                plan::expect(*plan::find_card("h200")));
  Dials dials = chunked(Schedule::kResident, 56);
  double previous = job.estimate(dials).stages[plan::kWeights].seconds;
  EXPECT_GT(previous, 0);
  for (dials.resident_blocks = 1; dials.resident_blocks <= 10; ++dials.resident_blocks) {
    const double seconds = job.estimate(dials).stages[plan::kWeights].seconds;
    EXPECT_LE(seconds, previous) << dials.resident_blocks;
    previous = seconds;
  }
  EXPECT_EQ(previous, 0);
}

TEST(Estimate, OneSlotWaitsForEveryUpload) {
  const Job job(real_spec(10), kLongClip, plan::expect(*plan::find_card("h200")));
  Dials dials = chunked(Schedule::kResident, 56);
  EXPECT_EQ(job.estimate(dials).stages[plan::kWeights].seconds, 0);
  dials.weight_slots = 1;
  const plan::Stage stage = job.estimate(dials).stages[plan::kWeights];
  EXPECT_DOUBLE_EQ(stage.seconds, stage.upload);
}

TEST(Estimate, RanksAreHalfAPercentWide) {
  EXPECT_EQ(plan::time_rank(100), plan::time_rank(100.1));
  EXPECT_LT(plan::time_rank(100), plan::time_rank(101));
  EXPECT_LT(plan::time_rank(1e-6), plan::time_rank(1.01e-6));
}

// A LoRA of rank 32 on the out_proj of each of two blocks: merged once a load, so once where the blocks stay.
TEST(Estimate, MergingCountsForEveryLoad) {
  const plan::Clip clip{.width = 64, .height = 64, .frames = 5};
  plan::Calibration rates = plan::expect(*plan::find_card("h200"));
  rates.merge = {.weights = 1e6, .ops = 1e8};  // slower than anything beside it
  Job job(real_spec(2), clip, rates);
  constexpr std::int64_t kRank = 32;
  LoraFile lora;
  const std::int64_t n = job.checkpoint.spec().hidden, k = job.checkpoint.spec().inner();
  for (int i = 0; i < 2; ++i) lora.pair(fmt::format("blocks.{}.attn.out_proj", i), n, k, kRank);
  const std::vector<checkpoint::LoraRequest> requests{{lora.write(), 1.0f}};
  const auto merged = job.checkpoint.with_loras(requests, checkpoint::LoraMode::kMerge);
  const exec::WeightLoader loader(merged, DType::kBF16, false);
  const auto estimate = [&](Dials dials) {
    return plan::TimeModel(rates, loader, job.layout, false, true).estimate(dials);
  };
  const auto weights = static_cast<double>(n * k);
  const double block = weights / rates.merge.weights + 2 * weights * kRank / rates.merge.ops;
  Dials dials = chunked(Schedule::kResident, 56);
  dials.weight_slots = 1;  // two slots would hold both blocks
  EXPECT_NEAR(estimate(dials).seconds, 2 * block, 0.05 * block);
  dials.resident_blocks = 2;
  EXPECT_LT(estimate(dials).seconds, 0.05 * block);
  EXPECT_NEAR(estimate(dials).setup_seconds, 2 * block, 0.05 * block);
  EXPECT_LT(job.estimate(dials).setup_seconds, 0.5 * block) << "without the LoRA";
}

}  // namespace
}  // namespace h3s::test
