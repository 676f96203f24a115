// The engine against an independent plain-loop network, on shapes the stored reference files do not have: one
// frame, one audio step, odd latents, every kind of condition.
#include <gtest/gtest.h>

#include "exec/engine_fixture.h"
#include "verify/compare.h"

namespace h3s::test {
namespace {

using spec::ReferenceKind;

struct Case {
  const char* name;
  spec::JobSpec job;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"one_frame", {.text_len = 5, .latent_t = 1, .latent_h = 6, .latent_w = 10, .audio_t = 7}},
      {"one_audio_step", {.text_len = 5, .latent_t = 3, .latent_h = 6, .latent_w = 8, .audio_t = 1}},
      {"one_text_token", {.text_len = 1, .latent_t = 2, .latent_h = 4, .latent_w = 8, .audio_t = 3}},
      {"odd_height", {.text_len = 5, .latent_t = 2, .latent_h = 5, .latent_w = 8, .audio_t = 4}},
      {"odd_both", {.text_len = 5, .latent_t = 2, .latent_h = 7, .latent_w = 9, .audio_t = 4}},
      {"smallest", {.text_len = 1, .latent_t = 1, .latent_h = 1, .latent_w = 1, .audio_t = 1}},
      {"keyframe_with_audio",
       {.text_len = 6,
        .latent_t = 5,
        .latent_h = 6,
        .latent_w = 6,
        .audio_t = 9,
        .keyframes = {{.frame_idx = 0, .latent_t = 1}, {.frame_idx = 4, .latent_t = 2, .audio_t = 3}}}},
      {"every_reference",
       {.text_len = 7,
        .latent_t = 2,
        .latent_h = 6,
        .latent_w = 8,
        .audio_t = 5,
        .references =
            {{.kind = ReferenceKind::kAudio, .audio_t = 4},
             {.kind = ReferenceKind::kVideo, .latent_t = 2, .latent_h = 4, .latent_w = 6, .audio_t = 3},
             {.kind = ReferenceKind::kVideo, .latent_t = 2, .latent_h = 6, .latent_w = 4},
             {.kind = ReferenceKind::kImage, .latent_t = 1, .latent_h = 4, .latent_w = 8}},
        .text_tags = {0, 0, 1, 1, 2, 0, 1}}}};
  return all;
}

reference::Inputs reference_inputs(const verify::JobInputs& in) {
  return {in.text, in.video, in.audio, in.visual_rows, in.audio_rows};
}

// f32: the same bound as against the stored files, 2e-6.
constexpr double kF32Bound = 2e-6;

class AgainstReference : public testing::TestWithParam<std::tuple<std::size_t, bool>> {
 protected:
  AgainstReference()
      : case_(cases()[std::get<0>(GetParam())]),
        spec_(small_spec(std::get<1>(GetParam()))),
        run_(spec_, case_.job) {}

  reference::Result exact(reference::Numerics numerics, bool int8) const {
    const reference::Model model(spec_, kSeed, numerics, int8);
    return forward(model, spec_, case_.job, reference_inputs(run_.inputs), 0.7f,
                   {.visual_aug = 1, .audio_aug = 1}, numerics);
  }
  verify::Capture engine(bool int8, DType compute) const {
    const CheckpointFile file(spec_, int8);
    return run_captured(run_.capture_job(file.get(), compute), verify::plan_list("few")[1]);
  }

  const Case& case_;
  spec::ModelSpec spec_;
  SmallJob run_;
};

TEST_P(AgainstReference, F32) {
  const reference::Result expected = exact(reference::Numerics::kExact, false);
  const verify::Capture ours = engine(false, DType::kF32);
  for (const auto& [name, values] : expected.tensors) {
    const verify::Check check = verify::check_f32(name, ours.tensors.at(name), values, kF32Bound);
    EXPECT_TRUE(check.ok) << name << ": error " << check.our_error << " bound " << kF32Bound;
  }
}

// The error of the engine's roundings is that of the portable ones, and both share most of it.
TEST_P(AgainstReference, BF16) {
  const reference::Result yardstick = exact(reference::Numerics::kExact, false);
  const reference::Result portable = exact(reference::Numerics::kPortable, false);
  const verify::Capture ours = engine(false, DType::kBF16);
  for (const auto& [name, values] : portable.tensors) {
    if (name == "t_emb") continue;
    const verify::Check check = verify::check_ratio(name, ours.tensors.at(name), values, yardstick.at(name),
                                                    verify::kSharedRoundings);
    EXPECT_TRUE(check.ok) << name << " n=" << check.elements << ": error " << check.our_error << " portable "
                          << check.stock_error << " distance " << check.distance;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AgainstReference,
                         testing::Combine(testing::Range<std::size_t>(0, cases().size()), testing::Bool()),
                         [](const auto& param_info) {
                           return std::string(cases()[std::get<0>(param_info.param)].name) +
                                  (std::get<1>(param_info.param) ? "_curve" : "_full");
                         });

}  // namespace
}  // namespace h3s::test
