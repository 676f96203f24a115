#include "spec/patchify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace h3s::spec {
namespace {

std::vector<float> counting(std::int64_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 1.0f);
  return out;
}

std::vector<float> patchify(const std::vector<float>& latent, const VideoShape& shape) {
  std::vector<float> rows(static_cast<std::size_t>(shape.rows() * shape.columns()));
  patchify_rows(latent.data(), shape, 0, shape.rows(), rows.data());
  return rows;
}

TEST(Patchify, FollowsTheIndexMap) {
  const VideoShape shape{.channels = 6, .t = 2, .h = 4, .w = 6};
  const std::vector<float> latent = counting(shape.elements());
  const std::vector<float> rows = patchify(latent, shape);
  const auto at = [&](int c, int t, int h, int w) { return latent[((c * 2 + t) * 4 + h) * 6 + w]; };
  // Row (t 1, y 1, x 2), channel 5, lower left of the patch: column 4 * 5 + 2 * 1 + 0 = 22.
  EXPECT_EQ(rows[((1 * 2 + 1) * 3 + 2) * 24 + 22], at(5, 1, 3, 4));
  EXPECT_EQ(rows[0], at(0, 0, 0, 0));
  EXPECT_EQ(rows[1], at(0, 0, 0, 1));
}

TEST(Patchify, OddSidesWrapAround) {
  const VideoShape shape{.channels = 1, .t = 1, .h = 3, .w = 3};
  const std::vector<float> rows = patchify(counting(9), shape);
  EXPECT_EQ(std::vector<float>(rows.begin() + 4, rows.begin() + 8), (std::vector<float>{3, 1, 6, 4}));
  EXPECT_EQ(std::vector<float>(rows.begin() + 8, rows.begin() + 12), (std::vector<float>{7, 8, 1, 2}));
  EXPECT_EQ(std::vector<float>(rows.begin() + 12, rows.begin() + 16), (std::vector<float>{9, 7, 3, 1}));
}

TEST(Patchify, OneByOneFrameFillsItsPatch) {
  EXPECT_EQ(patchify({7.0f}, {.channels = 1, .t = 1, .h = 1, .w = 1}), (std::vector<float>{7, 7, 7, 7}));
}

class PatchifyShapes : public testing::TestWithParam<VideoShape> {};

TEST_P(PatchifyShapes, UnpatchifyInverts) {
  const VideoShape shape = GetParam();
  const std::vector<float> latent = counting(shape.elements());
  const std::vector<float> rows = patchify(latent, shape);
  std::vector<float> back(latent.size(), std::nanf(""));
  unpatchify_rows(rows.data(), shape, 0, shape.rows(), back.data());
  EXPECT_EQ(back, latent);
}

TEST_P(PatchifyShapes, RowRangesComposeToTheWhole) {
  const VideoShape shape = GetParam();
  const std::vector<float> latent = counting(shape.elements());
  const std::vector<float> whole = patchify(latent, shape);
  std::vector<float> pieces(whole.size()), back(latent.size());
  for (std::int64_t row = 0; row < shape.rows(); row += 5) {
    const std::int64_t stop = std::min(row + 5, shape.rows());
    patchify_rows(latent.data(), shape, row, stop, pieces.data() + row * shape.columns());
    unpatchify_rows(whole.data() + row * shape.columns(), shape, row, stop, back.data());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(back, latent);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PatchifyShapes,
                         testing::Values(VideoShape{24, 5, 6, 10}, VideoShape{24, 1, 5, 9},
                                         VideoShape{3, 2, 4, 7}, VideoShape{2, 3, 1, 2},
                                         VideoShape{1, 1, 7, 1}));

TEST(AudioRows, FollowTheIndexMapAndInvert) {
  const AudioShape shape{.channels = 32, .steps = 5};
  const std::vector<float> latent = counting(shape.elements());
  std::vector<float> rows(latent.size()), back(latent.size());
  for (std::int64_t row = 0; row < shape.rows(); row += 3) {
    const std::int64_t stop = std::min(row + 3, shape.rows());
    pack_audio_rows(latent.data(), shape, row, stop, rows.data() + row * 32);
    unpack_audio_rows(rows.data() + row * 32, shape, row, stop, back.data());
  }
  EXPECT_EQ(rows[(1 * 5 + 3) * 32 + 17], latent[(17 * 2 + 1) * 5 + 3]);
  EXPECT_EQ(back, latent);
}

}  // namespace
}  // namespace h3s::spec
