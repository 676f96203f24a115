// The orchestration orders its queues by events alone: on a device that runs nothing until it must, and then
// in any order the events allow, the bits are those of the synchronous backend.
#include <gtest/gtest.h>

#include <bit>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"

namespace h3s::test {
namespace {

struct Outputs {
  std::vector<float> video, audio;
  bool operator==(const Outputs&) const = default;
};

// Two steps of the network, so that a step's first uploads meet the last one's downloads.
Outputs run_steps(kernels::Backend& backend, mem::Accountant& accountant, const CheckpointFile& file,
                  const SmallJob& run, const exec::Dials& dials) {
  exec::Session session(backend, accountant, file.get(), run.layout, {.dials = dials});
  session.set_conditioning(run.conditioning());
  Outputs out{run.inputs.video, run.inputs.audio};
  for (const float sigma : {1.0f, 0.6f}) {
    Outputs next = out;
    session.forward(out.video.data(), out.audio.data(), sigma, next.video.data(), next.audio.data());
    out = next;
  }
  return out;
}

class OrderedQueues : public testing::TestWithParam<checkpoint::WeightFormat> {};

TEST_P(OrderedQueues, OrderedByEventsAlone) {
  // Five blocks: each of the ring's two slots is overwritten while the other computes.
  spec::ModelSpec spec = small_spec();
  spec.layers = 5;
  const CheckpointFile file(spec, GetParam());
  const SmallJob run(spec, ragged_job());
  mem::Accountant plain_books(mem::make_heap_allocator());
  const auto plain = cpu::make_backend(2, plain_books);
  const Outputs expected = run_steps(*plain, plain_books, file, run, {});

  for (const exec::Dials& dials :
       {exec::Dials{
            .q_chunk = 0, .kv_chunk = 0, .mlp_chunk = 0, .head_chunk = 0},  // nothing but weights to order
        exec::Dials{.schedule = exec::Schedule::kResident, .q_chunk = 100, .kv_chunk = 61, .mlp_chunk = 40},
        exec::Dials{.schedule = exec::Schedule::kHeadGroups,
        .head_group = 2,
        .q_chunk = 90,
        .kv_chunk = 120,
        .mlp_chunk = 77,
        .head_chunk = 50},
        exec::Dials{.schedule = exec::Schedule::kFlat,
        .head_group = 1,
        .q_chunk = 64,
        .kv_chunk = 50,
        .mlp_chunk = 33,
        .head_chunk = 29},
        exec::Dials{.schedule = exec::Schedule::kFlat,
        .head_group = 1,
        .q_chunk = 64,
        .kv_chunk = 25,
        .mlp_chunk = 70,
        .head_chunk = 50,
        .project_ahead = true},
        exec::Dials{.schedule = exec::Schedule::kFlat,
        .head_group = 1,
        .q_chunk = 64,
        .kv_chunk = 25,
        .mlp_chunk = 70,
        .head_chunk = 50,
        .project_ahead = true,
        .keep_projection_input = true},
        exec::Dials{.schedule = exec::Schedule::kFlat,
        .head_group = 1,
        .q_chunk = 90,
        .kv_chunk = 33,
        .keep_projection_input = true}})
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      mem::Accountant books(mem::make_heap_allocator(/*poison=*/true));
      const auto inner = cpu::make_backend(1, books);
      DeferredBackend backend(*inner, seed);
      const Outputs out = run_steps(backend, books, file, run, dials);
      EXPECT_TRUE(out == expected) << dials.describe() << " seed " << seed;
    }
}

// Buffers outlive the work that uses them, also when a forward ends early: nothing queued may run into freed
// memory.
TEST(Queues, AnInterruptedForwardDrainsBeforeItFrees) {
  const CheckpointFile file(small_spec(), true);
  const SmallJob run(small_spec(), ragged_job());
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    mem::Accountant books(mem::make_heap_allocator(/*poison=*/true));
    const auto inner = cpu::make_backend(1, books);
    const std::int64_t baseline = books.current_bytes(mem::Space::kDevice);
    DeferredBackend backend(*inner, seed);
    {
      exec::Session session(backend, books, file.get(), run.layout,
                            {.dials = {.schedule = exec::Schedule::kFlat, .head_group = 1, .q_chunk = 64}});
      session.set_conditioning(run.conditioning());
      session.on_block([](std::int64_t, std::int64_t) { throw Error(Status::kIo, "stop"); });
      std::vector<float> video(run.inputs.video), audio(run.inputs.audio);
      EXPECT_THROW(
          session.forward(run.inputs.video.data(), run.inputs.audio.data(), 0.5f, video.data(), audio.data()),
          Error);
    }
    EXPECT_EQ(books.current_bytes(mem::Space::kDevice), baseline);
    EXPECT_EQ(books.current_bytes(mem::Space::kPinned), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, OrderedQueues,
                         testing::Values(checkpoint::WeightFormat::kBF16,
                                         checkpoint::WeightFormat::kInt8Tensorwise,
                                         checkpoint::WeightFormat::kNvfp4),
                         [](const auto& param_info) { return weight_format_name(param_info.param); });

}  // namespace
}  // namespace h3s::test
