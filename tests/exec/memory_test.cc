// measured <= planned <= budget; refusals name a budget that works; flat does not grow with the sequence.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"

namespace h3s::test {
namespace {

using exec::Footprint;
using mem::Space;

constexpr int kThreads = 2;
constexpr std::array<Space, 3> kSpaces{Space::kDevice, Space::kPinned, Space::kHost};

exec::Holdings backend_bytes() {
  return {{Space::kDevice, cpu::workspace_bytes(kThreads), "workspace"}};
}

// Runs a job with every space's budget set to `planned`; returns the peaks.
std::array<std::int64_t, 3> run_within(const CheckpointFile& file, const SmallJob& run,
                                       const exec::SessionOptions& options, const Footprint& planned) {
  mem::Accountant books(mem::make_heap_allocator(true));
  for (const Space space : kSpaces) books.set_budget(space, planned.peak_bytes(space));
  const auto backend = cpu::make_backend(kThreads, books);
  {
    exec::Session session(*backend, books, file.get(), run.layout, options);
    session.set_conditioning(run.conditioning());
    std::vector<float> video(run.inputs.video.size()), audio(run.inputs.audio.size());
    session.forward(run.inputs.video.data(), run.inputs.audio.data(), 0.5f, video.data(), audio.data());
  }
  EXPECT_EQ(books.current_bytes(Space::kDevice), cpu::workspace_bytes(kThreads))
      << "a session left memory behind";
  EXPECT_EQ(books.current_bytes(Space::kPinned), 0);
  std::array<std::int64_t, 3> peaks{};
  for (const Space space : kSpaces) {
    const mem::SpaceReport report = books.report(space);
    peaks[mem::index(space)] = report.peak_bytes;
    EXPECT_EQ(report.peak_reserved_bytes, report.peak_bytes) << "an arena with bytes that nobody was given";
  }
  return peaks;
}

void expect_footprint_is_measured(checkpoint::WeightFormat format) {
  const CheckpointFile file(small_spec(), format);
  const SmallJob run(small_spec(), ragged_job());
  for (const verify::NamedPlan& plan : verify::plan_list("all")) {
    const exec::SessionOptions options{.dials = plan.dials};
    const Footprint planned = measure_footprint(file.get(), run.layout, options, true, backend_bytes());
    const auto measured = run_within(file, run, options, planned);
    for (const Space space : kSpaces)
      EXPECT_EQ(measured[static_cast<std::size_t>(space)], planned.peak_bytes(space))
          << mem::space_name(space) << " under " << plan.dials.describe();
  }
}

TEST(Footprint, IsWhatARunMeasures) {
  expect_footprint_is_measured(checkpoint::WeightFormat::kInt8Tensorwise);
}

// Keeps O whole in every schedule.
TEST(Footprint, IsWhatARunMeasuresWithInputPeaks) {
  expect_footprint_is_measured(checkpoint::WeightFormat::kNvfp4);
}

std::int64_t flat_device_bytes(const CheckpointFile& file, std::int64_t latent_t, std::int64_t head_group,
                               bool project_ahead) {
  spec::JobSpec job = ragged_job();
  job.latent_t = latent_t;
  const spec::Layout layout(job);
  const exec::SessionOptions options{.dials = {.schedule = exec::Schedule::kFlat,
                                               .head_group = head_group,
                                               .q_chunk = 64,
                                               .kv_chunk = 64,
                                               .mlp_chunk = 64,
                                               .head_chunk = 64,
                                               .project_ahead = project_ahead}};
  return measure_footprint(file.get(), layout, options, true).peak_bytes(Space::kDevice);
}

TEST(Footprint, FlatGrowsByTheHeadsHeldAndNothingElse) {
  const CheckpointFile file(small_spec(), false);
  constexpr std::int64_t kRowsPerFrame = 7 * 8, kShort = 64,
                         kLong = 512;           // frames; rows a multiple of 256 B apart
  constexpr std::int64_t kHeadBytes = 128 * 2;  // a token's q, k or v of one head in bf16
  for (const std::int64_t g : {1, 2, 3})
    for (const bool ahead : {false, true}) {
      const std::int64_t heads_held = ahead && g < small_spec().heads ? 5 * g : 3 * g;
      EXPECT_EQ(flat_device_bytes(file, kLong, g, ahead) - flat_device_bytes(file, kShort, g, ahead),
                (kLong - kShort) * kRowsPerFrame * heads_held * kHeadBytes);
    }
}

TEST(Accountant, RefusalChangesNothingAndNamesHolders) {
  mem::Accountant books(mem::make_heap_allocator());
  books.set_budget(Space::kDevice, 4096);
  const mem::Buffer held = books.allocate(Space::kDevice, 3000, "first");
  try {
    books.allocate(Space::kDevice, 2000, "second");
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kOverBudget);
    EXPECT_NE(std::string(e.what()).find("second"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("first 3.00 KiB"), std::string::npos) << e.what();
  }
  EXPECT_EQ(books.current_bytes(Space::kDevice), 3072);
  EXPECT_EQ(books.peak_bytes(Space::kDevice), 3072);
}

}  // namespace
}  // namespace h3s::test
