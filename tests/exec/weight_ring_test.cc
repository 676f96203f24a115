// Weights on the device: whatever stays and however many slots the rest streams through, the bits are the
// same, measured bytes are the planned ones, and what stays is uploaded once.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"
#include "exec/weight_ring.h"

namespace h3s::test {
namespace {

constexpr std::int64_t kLayers = 5;

spec::ModelSpec five_blocks() {
  spec::ModelSpec spec = small_spec();
  spec.layers = kLayers;
  return spec;
}

exec::Dials placed(std::int64_t resident_blocks, std::int64_t slots) {
  exec::Dials dials{.q_chunk = 200, .kv_chunk = 100, .mlp_chunk = 100};
  dials.resident_blocks = resident_blocks;
  dials.weight_slots = slots;
  return dials;
}

struct Outcome {
  std::vector<float> video, audio;
  std::array<std::int64_t, mem::kNumSpaces> peaks{};
  std::int64_t last_step_uploads = 0;  // bytes
};

// Three steps: the first loads what stays, the later ones meet what the ones before left in the slots. A new
// conditioning in between sends the refiner's blocks through the same slots.
Outcome run_steps(const CheckpointFile& file, const SmallJob& run, const exec::Dials& dials,
                  std::uint64_t seed) {
  Outcome out{run.inputs.video, run.inputs.audio, {}, 0};
  mem::Accountant books(mem::make_heap_allocator(/*poison=*/true));
  const auto inner = cpu::make_backend(1, books);
  DeferredBackend backend(*inner, seed);
  {
    exec::Session session(backend, books, file.get(), run.layout, {.dials = dials});
    session.set_conditioning(run.conditioning());
    for (const float sigma : {1.0f, 0.7f, 0.4f}) {
      const std::int64_t before = backend.uploaded_bytes();
      if (sigma == 0.7f) session.set_conditioning(run.conditioning());
      Outcome next = out;
      session.forward(out.video.data(), out.audio.data(), sigma, next.video.data(), next.audio.data());
      out = std::move(next);
      out.last_step_uploads = backend.uploaded_bytes() - before;
    }
  }
  for (int i = 0; i < mem::kNumSpaces; ++i)
    out.peaks[static_cast<std::size_t>(i)] = books.peak_bytes(static_cast<mem::Space>(i));
  return out;
}

class WeightPlacements : public testing::TestWithParam<bool> {};

TEST_P(WeightPlacements, ChangeNoBitAndHoldWhatWasPlanned) {
  const CheckpointFile file(five_blocks(), GetParam());
  const SmallJob run(five_blocks(), ragged_job());
  const exec::WeightLoader loader(file.get(), DType::kBF16, false);
  const Outcome expected = run_steps(file, run, placed(0, 2), 1);
  const std::int64_t without_blocks = run_steps(file, run, placed(kLayers, 1), 1).last_step_uploads;
  for (std::int64_t resident = 0; resident <= kLayers; ++resident)
    for (const std::int64_t slots : {1, 2, 3, 9}) {
      const exec::Dials dials = placed(resident, slots);
      SCOPED_TRACE(fmt::format("{} resident, {} slots", resident, slots));
      const Outcome out = run_steps(file, run, dials, static_cast<std::uint64_t>(10 * resident + slots));
      EXPECT_TRUE(out.video == expected.video && out.audio == expected.audio);
      const exec::Footprint planned =
          exec::measure_footprint(file.get(), run.layout, {.dials = dials}, false,
                                  {{mem::Space::kDevice, cpu::workspace_bytes(1), ""}});
      for (int i = 0; i < mem::kNumSpaces; ++i)
        EXPECT_EQ(out.peaks[static_cast<std::size_t>(i)], planned.peak_bytes(static_cast<mem::Space>(i)));
      // Blocks are of one size here. A step begins and ends with what its slots had time to fetch ahead.
      const exec::WeightPlacement placement(dials, kLayers, false);
      const std::int64_t block = loader.sizes().blocks[0];
      const std::int64_t uploaded = out.last_step_uploads - without_blocks;
      const std::int64_t streamed = placement.streamed_blocks(kLayers);
      const std::int64_t ahead = streamed == 0 ? 0 : std::max<std::int64_t>(1, placement.slots - 1);
      EXPECT_EQ(uploaded % block, 0);
      EXPECT_LE(std::abs(uploaded / block - streamed), ahead) << uploaded;
    }
}

INSTANTIATE_TEST_SUITE_P(Weights, WeightPlacements, testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "int8" : "bf16"; });

TEST(WeightPlacement, AppliesTheDialsToTheNetwork) {
  const auto placement = [](std::int64_t resident, std::int64_t slots, bool device_is_host) {
    return exec::WeightPlacement(placed(resident, slots), kLayers, device_is_host);
  };
  EXPECT_EQ(placement(9, 2, false).resident_blocks, kLayers);
  EXPECT_EQ(placement(9, 2, false).slots, 1);  // the refiner still needs one
  EXPECT_EQ(placement(2, 9, false).slots, 3);
  EXPECT_EQ(placement(0, 9, true).slots, 1);
  EXPECT_EQ(placement(3, 2, false).streamed_blocks(kLayers), 0);  // the other two stay in their slots
  EXPECT_EQ(placement(2, 2, false).streamed_blocks(kLayers), 3);
  EXPECT_THROW(placement(-1, 2, false), Error);
  EXPECT_THROW(placement(0, 0, false), Error);
}

}  // namespace
}  // namespace h3s::test
