#include "spec/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace h3s::spec {
namespace {

JobSpec text_to_video(std::int64_t text, std::int64_t t, std::int64_t h, std::int64_t w, std::int64_t audio) {
  JobSpec job;
  job.text_len = text;
  job.latent_t = t;
  job.latent_h = h;
  job.latent_w = w;
  job.audio_t = audio;
  return job;
}

std::vector<double> row(const Layout& layout, std::int64_t i) {
  std::vector<double> out(3);
  layout.positions(i, i + 1, out.data());
  return out;
}

std::vector<double> all_rows(const Layout& layout) {
  std::vector<double> out(static_cast<std::size_t>(layout.tokens()) * 3);
  layout.positions(0, layout.tokens(), out.data());
  return out;
}

struct Expected {
  std::int64_t first, last;  // inclusive, as tables print them
  SegmentKind kind;
  double first_t, last_t;
};

void expect_segments(const Layout& layout, const std::vector<Expected>& expected) {
  ASSERT_EQ(layout.segments().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    const Segment& s = layout.segments()[i];
    EXPECT_EQ(s.start, expected[i].first);
    EXPECT_EQ(s.stop - 1, expected[i].last);
    EXPECT_STREQ(segment_kind_name(s.kind), segment_kind_name(expected[i].kind));
    EXPECT_NEAR(row(layout, s.start)[0], expected[i].first_t, 1e-9);
    EXPECT_NEAR(row(layout, s.stop - 1)[0], expected[i].last_t, 1e-9);
  }
}

// First, second and last coordinate of the target's axes.
struct AxisCase {
  std::int64_t h, w;
  double h_first, h_last, w_first, w_last;
};

class GridAxis : public testing::TestWithParam<AxisCase> {};

TEST_P(GridAxis, HasTheWorkedCoordinates) {
  const AxisCase& c = GetParam();
  const Layout layout(text_to_video(1, 1, c.h, c.w, 1));
  const std::vector<double> first = row(layout, layout.video().start);
  const std::vector<double> last = row(layout, layout.tokens() - 1);
  EXPECT_EQ(first[1], c.h_first);
  EXPECT_EQ(first[2], c.w_first);
  EXPECT_EQ(last[1], c.h_last);
  EXPECT_EQ(last[2], c.w_last);
}

INSTANTIATE_TEST_SUITE_P(Frames, GridAxis,
                         testing::Values(AxisCase{48, 86, 4.046602117797946, 26.95728139201855,
                                                  -5.416504538945347, 36.42038804876184},
                                         AxisCase{48, 84, 3.9051368637047297, 27.08695787493733,
                                                  -5.166010488516722, 36.158105227158785},
                                         AxisCase{30, 52, 3.8471275949959995, 26.53248941767013,
                                                  -5.064978835340266, 35.4445958480064}));

TEST(Layout, SecondCoordinatesOf48By86) {
  const Layout layout(text_to_video(1, 1, 48, 86, 1));
  EXPECT_EQ(row(layout, layout.video().start + 1)[2], -4.4203880487618425);
  EXPECT_EQ(row(layout, layout.video().start + 43)[1], 5.04271860798145);
}

TEST(Layout, LatentFramesLastOneThenFourFourFourFourPixelFrames) {
  const Layout layout(text_to_video(1, 7, 2, 2, 1));
  const std::int64_t start = layout.video().start;
  const double expected[] = {
      1, 2.6666666666666667, 9.3333333333333333, 16, 22.6666666666666667, 29.3333333333333333, 31};
  for (int k = 0; k < 7; ++k) EXPECT_NEAR(row(layout, start + k)[0], expected[k], 1e-12) << k;
}

TEST(Layout, LastFrameOfLongClips) {
  const std::pair<std::int64_t, double> cases[] = {{2, 5.0 / 3.0},        {37, 200.0},
                                                   {87, 483.33333333333}, {102, 568.3333333333},
                                                   {207, 1163.33333333},  {267, 1503.33333333}};
  for (const auto& [frames, offset] : cases) {
    const Layout layout(text_to_video(1, frames, 2, 2, 1));
    EXPECT_NEAR(row(layout, layout.tokens() - 1)[0], 1 + offset, 1e-6) << frames;
  }
}

TEST(Layout, WorkedTextToVideo) {
  const Layout layout(text_to_video(500, 102, 48, 84, 575));
  EXPECT_EQ(layout.tokens(), 104466);
  expect_segments(layout, {{0, 499, SegmentKind::kText, 0, 499},
                           {500, 1649, SegmentKind::kAudio, 500, 1074},
                           {1650, 104465, SegmentKind::kVideo, 500, 500 + 568.3333333333333}});
  EXPECT_EQ(row(layout, 1074), (std::vector<double>{1074, 0, -5.166010488516722}));
  EXPECT_EQ(row(layout, 1075), (std::vector<double>{500, 0, 36.158105227158785}));
}

TEST(Layout, WorkedFirstAndLastFrame) {
  JobSpec job = text_to_video(500, 102, 48, 84, 575);
  job.keyframes = {{.frame_idx = 0, .latent_t = 1}, {.frame_idx = 344, .latent_t = 1}};
  const Layout layout(job);
  EXPECT_EQ(layout.tokens(), 106482);
  expect_segments(layout, {{0, 499, SegmentKind::kText, 0, 499},
                           {500, 1507, SegmentKind::kCond, 500, 500},
                           {1508, 2515, SegmentKind::kCond, 1073.3333333333335, 1073.3333333333335},
                           {2516, 3665, SegmentKind::kAudio, 500, 1074},
                           {3666, 106481, SegmentKind::kVideo, 500, 500 + 568.3333333333333}});
  EXPECT_EQ(row(layout, 1508)[0], 1073.3333333333335);
}

JobSpec worked_references() {
  JobSpec job = text_to_video(300, 37, 48, 86, 207);
  job.references = {
      {.kind = ReferenceKind::kImage, .latent_t = 1, .latent_h = 48, .latent_w = 86},
      {.kind = ReferenceKind::kAudio, .audio_t = 200},
      {.kind = ReferenceKind::kVideo, .latent_t = 37, .latent_h = 30, .latent_w = 52, .audio_t = 207}};
  return job;
}

TEST(Layout, WorkedReferences) {
  const Layout layout(worked_references());
  EXPECT_EQ(layout.tokens(), 55174);
  expect_segments(layout, {{0, 299, SegmentKind::kText, 0, 299},
                           {300, 1331, SegmentKind::kRefImage, 300, 300},
                           {1332, 1731, SegmentKind::kRefAudio, 301, 500},
                           {1732, 2145, SegmentKind::kRefAudio, 501, 707},
                           {2146, 16575, SegmentKind::kRefImage, 501, 701},
                           {16576, 16989, SegmentKind::kAudio, 708, 914},
                           {16990, 55173, SegmentKind::kVideo, 708, 908}});
  EXPECT_EQ(row(layout, 1332)[2], -5.416504538945347);
  EXPECT_EQ(row(layout, 1731)[2], 36.42038804876184);
  EXPECT_EQ(row(layout, 1732)[2], -5.064978835340266);
  EXPECT_EQ(row(layout, 2145)[2], 35.4445958480064);
}

TEST(Layout, KeyframeAudioFollowsItsPictureOnTheTargetAxis) {
  JobSpec job = text_to_video(4, 2, 4, 6, 3);
  job.keyframes = {{.frame_idx = 3, .latent_t = 2, .audio_t = 5}, {.frame_idx = 0, .audio_t = 2}};
  const Layout layout(job);
  expect_segments(layout, {{0, 3, SegmentKind::kText, 0, 3},
                           {4, 15, SegmentKind::kCond, 9, 9 + 5.0 / 3.0},
                           {16, 25, SegmentKind::kCondAudio, 9, 13},
                           {26, 29, SegmentKind::kCondAudio, 4, 5},
                           {30, 35, SegmentKind::kAudio, 4, 6},
                           {36, 47, SegmentKind::kVideo, 4, 4 + 5.0 / 3.0}});
  EXPECT_EQ(row(layout, 16)[2], row(layout, 30)[2]);
  EXPECT_EQ(row(layout, 25)[2], row(layout, 35)[2]);
}

TEST(Layout, KeyframesMayCountFromAfterTheReferences) {
  JobSpec job = worked_references();
  job.keyframes = {{.frame_idx = 0, .latent_t = 1}};
  EXPECT_EQ(row(Layout(job), 300)[0], 300);
  job.keyframes_after_references = true;
  EXPECT_EQ(row(Layout(job), 300)[0], 708);
}

TEST(Layout, EmptyAudioReferenceHasNoSegment) {
  JobSpec job = text_to_video(4, 1, 2, 2, 1);
  job.references = {{.kind = ReferenceKind::kAudio}};
  EXPECT_EQ(Layout(job).segments().size(), 3u);
}

TEST(Layout, OddSizesAreLaidOutAsTheNextEvenOnes) {
  EXPECT_EQ(all_rows(Layout(text_to_video(3, 2, 5, 7, 4))), all_rows(Layout(text_to_video(3, 2, 6, 8, 4))));
}

TEST(Layout, AnyRowRangeEqualsTheSliceOfTheWhole) {
  JobSpec job = text_to_video(7, 6, 5, 8, 11);
  job.keyframes = {{.frame_idx = 5, .latent_t = 7, .audio_t = 3}};
  job.references = {
      {.kind = ReferenceKind::kVideo, .latent_t = 3, .latent_h = 4, .latent_w = 2, .audio_t = 5},
      {.kind = ReferenceKind::kAudio, .audio_t = 2}};
  const Layout layout(job);
  const std::vector<double> whole = all_rows(layout);
  std::mt19937 random(20261130);
  std::uniform_int_distribution<std::int64_t> pick(0, layout.tokens());
  for (int trial = 0; trial < 500; ++trial) {
    const auto [first, last] = std::minmax({pick(random), pick(random)});
    std::vector<double> part(static_cast<std::size_t>(last - first) * 3);
    layout.positions(first, last, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * 3)) << first << ".." << last;
  }
}

TEST(Layout, RefusesSizesThatMakeNoSequence) {
  const auto refused = [](auto change) {
    JobSpec job = text_to_video(4, 2, 4, 4, 3);
    change(job);
    EXPECT_THROW(Layout{job}, Error);
  };
  refused([](JobSpec& job) { job.text_len = 0; });
  refused([](JobSpec& job) { job.latent_t = 0; });
  refused([](JobSpec& job) { job.latent_h = -1; });
  refused([](JobSpec& job) { job.latent_w = std::int64_t{1} << 40; });
  refused([](JobSpec& job) { job.audio_t = 0; });
  refused([](JobSpec& job) { job.text_tags = {1, 1, 1}; });
  refused([](JobSpec& job) { job.text_tags = {1, 1, 1, 3}; });
  refused([](JobSpec& job) { job.keyframes = {{.frame_idx = -1, .latent_t = 1}}; });
  refused([](JobSpec& job) { job.keyframes = {{.frame_idx = 0}}; });
  refused([](JobSpec& job) {
    job.references = {{.kind = ReferenceKind::kImage, .latent_t = 1, .latent_h = 3, .latent_w = 4}};
  });
  refused([](JobSpec& job) {
    job.references = {{.kind = ReferenceKind::kImage, .latent_t = 2, .latent_h = 4, .latent_w = 4}};
  });
}

TEST(Frames, AlignAndConvertAsTheWorkedTableDoes) {
  EXPECT_EQ(align_frames(-3), 5);
  EXPECT_EQ(align_frames(5), 5);
  EXPECT_EQ(align_frames(6), 22);
  EXPECT_EQ(align_frames(124), 124);
  EXPECT_EQ(align_frames(125), 141);
  struct Row {
    std::int64_t frames, latent, audio;
  };
  for (const Row& r : {Row{5, 2, 8}, Row{124, 37, 207}, Row{294, 87, 490}, Row{345, 102, 575},
                       Row{702, 207, 1170}, Row{906, 267, 1510}}) {
    EXPECT_EQ(latent_frames(r.frames), r.latent);
    EXPECT_EQ(audio_latent_steps(r.frames), r.audio);
  }
}

}  // namespace
}  // namespace h3s::spec
