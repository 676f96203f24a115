#include <gtest/gtest.h>

#include "base/float16.h"
#include "spec/layout.h"

namespace h3s::spec {
namespace {

JobSpec small_job() {
  JobSpec job;
  job.text_len = 4;
  job.latent_t = 1;
  job.latent_h = job.latent_w = 2;
  job.audio_t = 1;
  return job;
}

std::vector<std::int64_t> rows(const Timesteps& steps) {
  std::vector<std::int64_t> out;
  for (const kernels::ModSegment& s : steps.segments) out.push_back(s.row);
  return out;
}

// The 8-step simple schedule at shifts 12 and 3, as a GPU evaluates it.
struct StepCase {
  float sigma, sigma_video, t_video, t_audio, t_audio_double;
};

class SimpleSchedule : public testing::TestWithParam<StepCase> {};

TEST_P(SimpleSchedule, HasStocksTimesteps) {
  const StepCase& c = GetParam();
  const Layout layout(small_job());
  TimestepOptions options;
  const Timesteps steps = make_timesteps(layout, c.sigma, options);
  EXPECT_EQ(steps.sigma_video, c.sigma_video);
  EXPECT_EQ(steps.t_video, c.t_video);
  EXPECT_EQ(steps.t_audio, c.t_audio);
  options.double_precision = true;
  EXPECT_EQ(static_cast<float>(make_timesteps(layout, c.sigma, options).t_audio), c.t_audio_double);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, SimpleSchedule,
    testing::Values(StepCase{1.0f, 1.0f, 0.0f, 0.0f, 0.0f},
                    StepCase{0.9882352948188782f, 0.988235354423523f, 0.01176464557647705f,
                             0.04545426368713379f, 0.045454319566488266f},
                    StepCase{0.9729729890823364f, 0.9729729890823364f, 0.027027010917663574f,
                             0.10000008344650269f, 0.09999994188547134f},
                    StepCase{0.9523809552192688f, 0.9523810148239136f, 0.047618985176086426f,
                             0.16666638851165771f, 0.16666647791862488f},
                    StepCase{0.9230769276618958f, 0.9230769276618958f, 0.07692307233810425f,
                             0.2500000596046448f, 0.2499999850988388f},
                    StepCase{0.8780487775802612f, 0.878048837184906f, 0.121951162815094f, 0.3571428060531616f,
                             0.35714274644851685f},
                    StepCase{0.800000011920929f, 0.800000011920929f, 0.19999998807907104f,
                             0.4999999403953552f, 0.4999999701976776f},
                    StepCase{0.6315789222717285f, 0.6315789222717285f, 0.3684210777282715f,
                             0.7000000476837158f, 0.7000000476837158f}));

TEST(Timesteps, TrueDivisionReturnsTheSchedulesSigma) {
  TimestepOptions options;
  options.reciprocal_division = false;
  for (const float sigma : {0.9882352948188782f, 0.9523809552192688f, 0.8780487775802612f})
    EXPECT_EQ(make_timesteps(Layout(small_job()), sigma, options).sigma_video, sigma);
}

TEST(Timesteps, SigmaHasAFloor) {
  EXPECT_EQ(make_timesteps(Layout(small_job()), 0.0f, {}).sigma_video, 1e-6f);
}

TEST(Timesteps, OneRowAtSigmaOneAndTwoAfter) {
  const Layout layout(small_job());
  const Timesteps first = make_timesteps(layout, 1.0f, {});
  EXPECT_EQ(first.unique, std::vector<double>{0.0});
  EXPECT_EQ(rows(first), (std::vector<std::int64_t>{1, 2, 0}));
  const Timesteps second = make_timesteps(layout, 0.8f, {});
  EXPECT_EQ(second.unique.size(), 2u);
  EXPECT_EQ(rows(second), (std::vector<std::int64_t>{1, 5, 0}));
  EXPECT_EQ(second.video_row, 0);
  EXPECT_EQ(second.audio_row, 1);
}

JobSpec job_with_references() {
  JobSpec job = small_job();
  job.references = {{.kind = ReferenceKind::kImage, .latent_t = 1, .latent_h = 2, .latent_w = 2},
                    {.kind = ReferenceKind::kAudio, .audio_t = 2}};
  job.text_tags = {1, 0, 0, 1};
  return job;
}

TEST(Timesteps, ReferencesAddRowsAndTagsCutTheText) {
  const Timesteps steps = make_timesteps(Layout(job_with_references()), 0.8f, {});
  ASSERT_EQ(steps.unique.size(), 4u);
  EXPECT_EQ(steps.unique[2], 0.999);
  EXPECT_EQ(steps.unique[3], 1.0);
  EXPECT_EQ(rows(steps), (std::vector<std::int64_t>{1, 0, 1, 6, 11, 5, 0}));
  EXPECT_EQ(steps.segments[1].start, 1);
  EXPECT_EQ(steps.segments[1].stop, 3);
}

TEST(Timesteps, VisualConditionMergesWithAVideoPastIt) {
  const Timesteps steps = make_timesteps(Layout(job_with_references()), 0.0005f, {});
  ASSERT_EQ(steps.unique.size(), 3u);  // t_video, t_audio, 1
  EXPECT_EQ(rows(steps)[3], 0);
}

TEST(Timesteps, AudioAndVideoMergeAtEqualShifts) {
  TimestepOptions options;
  options.shift_audio = options.shift_video;
  options.double_precision = true;
  const Timesteps steps = make_timesteps(Layout(small_job()), 1.0f, options);
  EXPECT_EQ(steps.unique.size(), 1u);
}

TEST(Timesteps, SegmentsCoverTheSequence) {
  const Layout layout(job_with_references());
  const Timesteps steps = make_timesteps(layout, 0.5f, {});
  std::int64_t row = 0;
  for (const kernels::ModSegment& s : steps.segments) {
    EXPECT_EQ(s.start, row);
    row = s.stop;
  }
  EXPECT_EQ(row, layout.tokens());
}

}  // namespace
}  // namespace h3s::spec
