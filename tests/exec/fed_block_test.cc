// Structure against the stored results: the portable roundings, each block fed with the stored output of the
// one before, so that errors do not pile up and a single misplaced rounding shows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/float16.h"
#include "exec/engine_fixture.h"
#include "reference/portable_linears.h"
#include "spec/patchify.h"
#include "verify/compare.h"
#include "verify/golden.h"

namespace h3s::test {
namespace {

using reference::Matrix;

constexpr double kDistance = 6e-4;
constexpr double kDistanceOf4Bits = 2e-3;  // activations of four bits: a code that flips weighs more
constexpr double kEqualBlock = 0.97;       // share of equal elements
constexpr double kEqualFinal = 0.998;

Matrix matrix(const std::vector<float>& values, std::int64_t cols) {
  Matrix m(static_cast<std::int64_t>(values.size()) / cols, cols);
  std::copy(values.begin(), values.end(), m.values.begin());
  return m;
}

double equal_share(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
  return static_cast<double>(equal) / static_cast<double>(a.size());
}

std::vector<float> floats(const Matrix& m) {
  return {m.values.begin(), m.values.end()};
}

// Stored outputs as rows of the sequence, sign undone.
std::vector<float> stored_video_rows(const verify::Golden& g) {
  const spec::VideoShape shape{g.spec.video_channels, g.job.latent_t, g.job.latent_h, g.job.latent_w};
  std::vector<float> rows(static_cast<std::size_t>(shape.rows() * shape.columns()));
  spec::patchify_rows(g.floats("video_out").data(), shape, 0, shape.rows(), rows.data());
  for (float& v : rows) v = -v;
  return rows;
}
std::vector<float> stored_audio_rows(const verify::Golden& g) {
  const spec::AudioShape shape{g.spec.audio_channels, g.job.audio_t};
  std::vector<float> rows(static_cast<std::size_t>(shape.rows() * shape.columns()));
  spec::pack_audio_rows(g.floats("audio_out").data(), shape, 0, shape.rows(), rows.data());
  for (float& v : rows) v = -v;
  return rows;
}

Matrix segment_rows(const Matrix& x, const spec::Segment& s) {
  Matrix part(s.stop - s.start, x.cols);
  std::copy(x.row(s.start), x.row(s.stop), part.values.begin());
  return part;
}

std::vector<float> rounded(std::vector<float> values) {
  for (float& v : values) v = round_to<BF16>(v);
  return values;
}

reference::Model portable_model(const verify::Golden& g) {
  constexpr auto kPortable = reference::Numerics::kPortable;
  if (g.format == "bf16" || g.format == "int8_tensorwise")
    return {g.spec, g.seed, kPortable, g.format == "int8_tensorwise"};
  return {g.spec, g.seed, kPortable, reference::portable_linears(g.file, g.format)};
}

class FedBlocks : public testing::TestWithParam<const char*> {};

TEST_P(FedBlocks, ReproduceTheStoredResults) {
  const std::string path = std::string(H3S_GOLDEN_DIR) + "/" + GetParam() + ".safetensors";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const verify::Golden g = verify::Golden::open(path);
  const reference::Model model = portable_model(g);
  const double distance = g.format == "nvfp4" || g.format == "convrot_w4a4" ? kDistanceOf4Bits : kDistance;
  const spec::Layout layout(g.job);
  const spec::Timesteps t = spec::make_timesteps(layout, g.sigma, g.timesteps);
  const Matrix t_emb = matrix(g.floats("t_emb"), g.spec.time_dim);

  Matrix x = matrix(g.floats("embed"), g.spec.hidden);
  for (std::int64_t i = 0; i < g.spec.layers; ++i) {
    const std::vector<float> stored = g.floats(fmt::format("block{}", i));
    const std::vector<float> ours = floats(model.block(i, x, t_emb, layout, t.segments));
    EXPECT_LE(verify::relative_rms(ours, stored), distance) << "block " << i;
    EXPECT_GE(equal_share(ours, stored), kEqualBlock) << "block " << i;
    x = matrix(stored, g.spec.hidden);
  }
  const auto video = rounded(floats(model.video_rows(segment_rows(x, layout.video()), t_emb, t.video_row)));
  const auto audio = rounded(floats(model.audio_rows(segment_rows(x, layout.audio()), t_emb, t.audio_row)));
  EXPECT_GE(equal_share(video, stored_video_rows(g)), kEqualFinal);
  EXPECT_GE(equal_share(audio, stored_audio_rows(g)), kEqualFinal);
}

INSTANTIATE_TEST_SUITE_P(Golden, FedBlocks,
                         testing::Values("curve.bf16.t2va.bf16", "curve.bf16.ref2va.bf16",
                                         "full.bf16.t2va.bf16", "full.bf16.fl2va.bf16",
                                         "curve.int8_tensorwise.t2va.bf16", "full.int8_tensorwise.t2va.bf16",
                                         "curve.float8_e4m3fn.t2va.bf16", "curve.mxfp8.t2va.bf16",
                                         "curve.nvfp4.t2va.bf16", "curve.asym_w4a8_int8.t2va.bf16",
                                         "curve.convrot_w4a4.t2va.bf16"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace h3s::test
