// LoRAs beside the weights: every plan gives the bits of the first, memory is what was planned and grows with
// the chunk alone, and a run without them afterwards has the bits of one before.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"
#include "lora_file.h"

namespace h3s::test {
namespace {

using checkpoint::LoraMode;
using checkpoint::LoraRequest;
using checkpoint::WeightFormat;

constexpr std::int64_t kRank = 5;  // no multiple of anything

struct Numerics {
  const char* name;
  WeightFormat format;
  bool curve;
  DType compute;
  LoraMode mode = LoraMode::kRuntime;
};

// Two LoRAs of every layer, one of them with q, k and v apart, as the layouts for training have them.
struct Loras {
  LoraFile fused, split;
  std::vector<LoraRequest> requests;

  explicit Loras(const spec::ModelSpec& spec) {
    fused.all_layers(spec, kRank);
    for (std::int64_t i = 0; i < spec.layers; ++i) {
      const std::string block = fmt::format("transformer_blocks.{}.", i);
      for (const char* which : {"q", "k", "v"})
        split.pair(block + "attn.to_" + which, spec.inner(), spec.hidden, 3);
      split.pair(block + "ff.net.0.proj", 2 * spec.ffn, spec.hidden, 2);
    }
    requests = {{fused.write(), 0.75f}, {split.write(), -1.5f}};
  }
};

class LoraPlans : public testing::TestWithParam<Numerics> {};

TEST_P(LoraPlans, GiveEqualBits) {
  const Numerics& n = GetParam();
  const spec::ModelSpec spec = small_spec(n.curve);
  const CheckpointFile file(spec, n.format);
  const Loras loras(spec);
  const checkpoint::Checkpoint adapted = file.get().with_loras(loras.requests, n.mode);
  const SmallJob run(spec, ragged_job());
  const verify::CaptureJob job = run.capture_job(adapted, n.compute),
                           base = run.capture_job(file.get(), n.compute);
  const std::vector<verify::NamedPlan> plans =
      verify::plan_list(n.mode == LoraMode::kRuntime ? "all" : "some");
  const verify::Capture before = run_captured(base, plans.front());
  const verify::Capture first = run_captured(job, plans.front());
  EXPECT_NE(first_difference(before, first), "") << "the LoRAs change nothing";
  for (const verify::NamedPlan& plan : plans)
    EXPECT_EQ(first_difference(first, run_captured(job, plan)), "") << plan.describe();
  EXPECT_EQ(first_difference(before, run_captured(base, plans.front())), "") << "removal";
}

constexpr Numerics kNumerics[] = {
    {"bf16", WeightFormat::kBF16, true, DType::kBF16},
    {"fp32", WeightFormat::kBF16, true, DType::kF32},
    {"int8", WeightFormat::kInt8Tensorwise, true, DType::kBF16},
    {"bf16_full", WeightFormat::kBF16, false, DType::kBF16},
    {"fp8", WeightFormat::kFloat8E4M3, true, DType::kBF16},
    {"mxfp8", WeightFormat::kMxfp8, true, DType::kBF16},
    {"nvfp4", WeightFormat::kNvfp4, false, DType::kBF16},
    {"w4a8", WeightFormat::kAsymW4A8, true, DType::kBF16},
    {"w4a4", WeightFormat::kConvrotW4A4, true, DType::kBF16},
    {"merged_bf16", WeightFormat::kBF16, false, DType::kBF16, LoraMode::kMerge},
    {"merged_int8", WeightFormat::kInt8Tensorwise, true, DType::kBF16, LoraMode::kMerge},
    {"merged_fp8", WeightFormat::kFloat8E4M3, true, DType::kBF16, LoraMode::kMerge},
    {"merged_nvfp4", WeightFormat::kNvfp4, true, DType::kBF16, LoraMode::kMerge},
    {"merged_w4a8_fp32", WeightFormat::kAsymW4A8, true, DType::kF32, LoraMode::kMerge}};

INSTANTIATE_TEST_SUITE_P(Numerics, LoraPlans, testing::ValuesIn(kNumerics),
                         [](const auto& param_info) { return param_info.param.name; });

// Strength 0 goes through both products and must change nothing but the sign of zeros.
TEST(LoraPlans, StrengthZeroIsTheBase) {
  const spec::ModelSpec spec = small_spec();
  const CheckpointFile file(spec, WeightFormat::kInt8Tensorwise);
  LoraFile lora;
  lora.all_layers(spec, kRank);
  const std::vector<LoraRequest> requests{{lora.write(), 0.0f}};
  const SmallJob run(spec, ragged_job());
  const verify::NamedPlan plan = verify::plan_list("few").front();
  const auto adapted = file.get().with_loras(requests, LoraMode::kRuntime);
  const verify::Capture base = run_captured(run.capture_job(file.get(), DType::kBF16), plan);
  const verify::Capture zero = run_captured(run.capture_job(adapted, DType::kBF16), plan);
  for (const auto& [name, values] : base.tensors) EXPECT_EQ(values, zero.tensors.at(name)) << name;
}

// ---- memory ----

using mem::Space;
constexpr int kThreads = 2;

std::array<std::int64_t, 3> measured_peaks(const checkpoint::Checkpoint& checkpoint, const SmallJob& run,
                                           const exec::SessionOptions& options) {
  mem::Accountant books(mem::make_heap_allocator(true));
  const auto backend = cpu::make_backend(kThreads, books);
  exec::Session session(*backend, books, checkpoint, run.layout, options);
  session.set_conditioning(run.conditioning());
  std::vector<float> video(run.inputs.video.size()), audio(run.inputs.audio.size());
  session.forward(run.inputs.video.data(), run.inputs.audio.data(), 0.5f, video.data(), audio.data());
  std::array<std::int64_t, 3> peaks{};
  for (const Space space : mem::kSpaces) peaks[mem::index(space)] = books.report(space).peak_bytes;
  return peaks;
}

class LoraMemory : public testing::TestWithParam<LoraMode> {};

TEST_P(LoraMemory, IsWhatWasPlanned) {
  for (const WeightFormat format :
       {WeightFormat::kInt8Tensorwise, WeightFormat::kNvfp4, WeightFormat::kBF16}) {
    const spec::ModelSpec spec = small_spec();
    const CheckpointFile file(spec, format);
    const Loras loras(spec);
    const auto adapted = file.get().with_loras(loras.requests, GetParam());
    const SmallJob run(spec, ragged_job());
    for (const verify::NamedPlan& plan : verify::plan_list("some")) {
      const exec::SessionOptions options{.dials = plan.dials};
      const exec::Footprint planned =
          measure_footprint(adapted, run.layout, options, true,
                            {{Space::kDevice, cpu::workspace_bytes(kThreads), "workspace"}});
      const auto measured = measured_peaks(adapted, run, options);
      for (const Space space : mem::kSpaces)
        EXPECT_EQ(measured[mem::index(space)], planned.peak_bytes(space))
            << mem::space_name(space) << " under " << plan.dials.describe();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LoraMemory, testing::Values(LoraMode::kRuntime, LoraMode::kMerge),
                         [](const auto& param_info) { return lora_mode_name(param_info.param); });

// Rank 128 at eight times the tokens: what the LoRA adds is its weights and a chunk's products, as before.
TEST(LoraMemory, GrowsWithTheChunkAlone) {
  constexpr std::int64_t kLoraRank = 128, kChunk = 64;
  const spec::ModelSpec spec = small_spec();
  const CheckpointFile file(spec, WeightFormat::kInt8Tensorwise);
  LoraFile lora;
  lora.all_layers(spec, kLoraRank);
  const std::vector<LoraRequest> requests{{lora.write(), 1.0f}};
  const auto adapted = file.get().with_loras(requests, LoraMode::kRuntime);
  for (const exec::Schedule schedule :
       {exec::Schedule::kResident, exec::Schedule::kHeadGroups, exec::Schedule::kFlat}) {
    const exec::SessionOptions options{.dials = {.schedule = schedule,
                                                 .head_group = 1,
                                                 .q_chunk = kChunk,
                                                 .kv_chunk = kChunk,
                                                 .mlp_chunk = kChunk,
                                                 .head_chunk = kChunk}};
    const auto added = [&](std::int64_t frames) {
      spec::JobSpec job = ragged_job();
      job.latent_t = frames;
      const spec::Layout layout(job);
      const auto bytes = [&](const checkpoint::Checkpoint& checkpoint) {
        return measure_footprint(checkpoint, layout, options, true).device_bytes();
      };
      return bytes(adapted) - bytes(file.get());
    };
    EXPECT_EQ(added(64), added(8)) << exec::schedule_name(schedule);
    EXPECT_GT(added(8), 0);
  }
}

}  // namespace
}  // namespace h3s::test
