// Clips as people give them, and cards by name.
#include "plan/clip.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/cards.h"

namespace h3s::test {
namespace {

TEST(Clip, IsTheLayoutThatTheInputsFileWouldGive) {
  // The picture of docs/inputs.md, and the sequence that the hardware figures are measured at.
  const spec::JobSpec job = plan::job_of({.width = 1376, .height = 768, .frames = 124});
  EXPECT_EQ(job.latent_t, 37);
  EXPECT_EQ(job.latent_h, 48);
  EXPECT_EQ(job.latent_w, 86);
  EXPECT_EQ(job.audio_t, 207);
  EXPECT_EQ(spec::Layout(job).tokens(), 39098);
  const spec::JobSpec longer = plan::job_of({.width = 1376, .height = 768, .frames = 702});
  EXPECT_EQ(spec::Layout(longer).tokens(), 216464);
  EXPECT_NEAR(static_cast<double>(spec::Layout(longer).tokens()), 217088, 0.003 * 217088);
}

TEST(Clip, AudioKeyframesAndReferencesAddTheirTokens) {
  plan::Clip clip{.width = 64, .height = 64, .frames = 5, .audio_seconds = 2.0, .text_tokens = 10};
  clip.keyframes = 2;
  clip.references = {plan::parse_reference("image=128x64"), plan::parse_reference("audio=1.5"),
                     plan::parse_reference("video=64x32x22")};
  const spec::Layout layout(plan::job_of(clip));
  // text, 2 keyframes of 2 x 2, image 2 x 4, audio 2 x 60, video 7 x 1 x 2, target audio 2 x 80, video 2 x 2
  // x 2
  EXPECT_EQ(layout.tokens(), 10 + 2 * 4 + 2 * 4 + 120 + 7 * 2 + 160 + 8);
}

TEST(Clip, RefusesWhatMakesNoClip) {
  const auto refused = [](const plan::Clip& clip) {
    EXPECT_THROW(plan::job_of(clip), Error) << clip.width << " x " << clip.height << ", " << clip.frames;
  };
  refused({.width = 1377, .height = 768, .frames = 5});
  refused({.width = 1376, .height = 8, .frames = 5});
  refused({.width = 1376, .height = 768, .frames = 0});
  refused({.width = 1376, .height = 768, .frames = 5, .audio_seconds = 0.0});
  refused({.width = 1376, .height = 768, .frames = 5, .audio_seconds = -1.0});
  for (const char* text :
       {"", "image", "image=", "image=64", "image=64x64x64", "video=64x64", "audio=", "audio=x", "audio=0",
        "image=63x64", "picture=64x64", "image=64x-64", "image=64x64x", "video=64x64x99999999999999999999"})
    EXPECT_THROW(plan::parse_reference(text), Error) << text;
}

TEST(Cards, AreFoundByTheDriversName) {
  const auto name = [](const char* device) {
    const plan::Card* card = plan::match_card(device);
    return std::string(card == nullptr ? "none" : card->name);
  };
  EXPECT_EQ(name("NVIDIA H200"), "h200");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(name("NVIDIA GeForce RTX 5070 Ti"), "rtx5070ti");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4070 Ti SUPER"), "none");
  EXPECT_EQ(name("NVIDIA GeForce RTX 3080 Laptop GPU"), "none");
  EXPECT_EQ(name("GRID K2"), "none");
  EXPECT_STREQ(plan::nearest_card(89, 66)->name, "rtx4080");
  EXPECT_EQ(plan::nearest_card(10, 1), nullptr);
}

TEST(Cards, AscendInMemoryAndGiveRatesThatAreAllSet) {
  double memory = 0;
  for (const plan::Card& card : plan::cards()) {
    EXPECT_GE(card.memory_gib, memory) << card.name;
    memory = card.memory_gib;
    EXPECT_EQ(plan::find_card(card.name), &card);
    const plan::Calibration c = plan::expect(card);
    EXPECT_EQ(c.measured, std::string(card.name) == "h200");
    for (const double rate : {c.int8.ops, c.bf16.ops, c.f32.ops, c.attention_bf16.ops, c.attention_f32.ops,
                              c.row_bytes, c.quantize_bytes, c.upload_bytes, c.download_bytes, c.host_bytes})
      EXPECT_GT(rate, 1e9) << card.name;
  }
}

}  // namespace
}  // namespace h3s::test
