#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/float16.h"
#include "fake_network.h"
#include "sample/audio_carry.h"
#include "sample/randn.h"
#include "sample/schedules.h"

namespace h3s::sample {
namespace {

constexpr std::int64_t kVideo = 53, kAudio = 22;

SamplerOptions options_for(std::int64_t steps, DType compute = DType::kBF16, double denoise = 1.0) {
  SamplerOptions options;
  options.video_elements = kVideo;
  options.audio_elements = kAudio;
  options.sigmas = make_schedule({.steps = steps, .denoise = denoise});
  options.compute = compute;
  return options;
}

std::vector<float> state_of(const EulerSampler& sampler) {
  return {sampler.state(), sampler.state() + sampler.elements()};
}

TEST(Noise, VideoIsDrawnBeforeAudioFromOneGenerator) {
  mem::Accountant accountant(mem::make_heap_allocator(true));
  EulerSampler sampler(accountant, options_for(4));
  sampler.start(42, nullptr, nullptr);
  TorchGenerator generator(42);
  std::vector<float> expected(kVideo + kAudio);
  generator.randn(expected.data(), kVideo);
  generator.randn(expected.data() + kVideo, kAudio);
  EXPECT_EQ(state_of(sampler), expected);
}

TEST(Step, ThatIsNotFiniteIsRefusedAndKeepsTheStateBefore) {
  for (const float bad : {NAN, INFINITY}) {
    for (const std::int64_t place : {std::int64_t{0}, kVideo - 1, kVideo + kAudio - 1}) {
      mem::Accountant accountant(mem::make_heap_allocator(true));
      EulerSampler sampler(accountant, options_for(4));
      sampler.start(42, nullptr, nullptr);
      sampler.step(test::fake_network(kVideo, kAudio));
      const std::vector<float> before = state_of(sampler);
      try {
        sampler.step([&](const float* video, const float* audio, float sigma, float* video_velocity,
                         float* audio_velocity) {
          test::fake_network(kVideo, kAudio)(video, audio, sigma, video_velocity, audio_velocity);
          (place < kVideo ? video_velocity[place] : audio_velocity[place - kVideo]) = bad;
        });
        FAIL() << bad << " at " << place;
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), Status::kBadFile);
        EXPECT_NE(std::string(error.what()).find("step 2 of 4"), std::string::npos) << error.what();
      }
      EXPECT_EQ(state_of(sampler), before);
      EXPECT_EQ(sampler.steps_done(), 1);
    }
  }
}

TEST(Options, ShiftsThatCannotBeRunAreRefused) {
  for (const double shift : {double{NAN}, double{INFINITY}, 0.0, -1.0, 2e6, 1e-45}) {
    SamplerOptions options = options_for(4);
    options.timesteps.shift_audio = shift;
    EXPECT_THROW(check_sampler_options(options), Error) << shift;
  }
  EXPECT_NO_THROW(check_sampler_options(options_for(4)));
}

TEST(Noise, PartialDenoiseMixesInTheLatents) {
  mem::Accountant accountant(mem::make_heap_allocator(true));
  const SamplerOptions options = options_for(4, DType::kBF16, 0.5);
  EulerSampler sampler(accountant, options);
  const std::vector<float> video(kVideo, 2.0f), audio(kAudio, 0.5f);
  sampler.start(1, video.data(), audio.data());
  std::vector<float> noise(kVideo);
  TorchGenerator(1).randn(noise.data(), kVideo);
  const float sigma = options.sigmas[0];
  ASSERT_LT(sigma, 1.0f);
  EXPECT_EQ(sampler.state()[7], sigma * noise[7] + (1.0f - sigma) * 2.0f);
  // The audio latent enters times shift_video / shift_audio = 4.
  mem::Accountant plain(mem::make_heap_allocator());
  SamplerOptions equal_shifts = options;
  equal_shifts.timesteps.shift_audio = equal_shifts.timesteps.shift_video;
  EulerSampler without_carry(plain, equal_shifts);
  const std::vector<float> scaled(kAudio, 2.0f);
  without_carry.start(1, video.data(), scaled.data());
  EXPECT_EQ(state_of(sampler), state_of(without_carry));
}

// Rows of the worked table: carry and gain in bf16 at the 8-step simple schedule, shifts 12 and 3.
TEST(AudioCarry, HasTheWorkedFactors) {
  const std::vector<float> sigmas = make_schedule({.steps = 8});
  const float carry[] = {1, 0.96484375f, 0.92578125f, 0.875f, 0.8125f, 0.73046875f, 0.625f, 0.474609375f};
  const float gain[] = {4, 3.859375f, 3.703125f, 3.5f, 3.25f, 2.921875f, 2.5f, 1.8984375f};
  for (std::size_t i = 0; i < 8; ++i) {
    const AudioCarry factors(sigmas[i], {}, DType::kBF16);
    EXPECT_EQ(factors.carry(), carry[i]) << i;
    EXPECT_EQ(factors.gain(), gain[i]) << i;
  }
}

TEST(AudioCarry, RoundsEveryOperation) {
  const AudioCarry factors(0.8f, {}, DType::kBF16);
  const float state = 1.2345f, network_velocity = 0.4375f;
  float x = 0, v = network_velocity;
  factors.enter(&state, 1, &x);
  EXPECT_EQ(x, round_to<BF16>(round_to<BF16>(1.2345f) * 0.625f));
  factors.leave(&x, 1, &v);
  EXPECT_EQ(v, round_to<BF16>(round_to<BF16>(-3.0f * x) + round_to<BF16>(2.5f * network_velocity)));
}

TEST(AudioCarry, IsOffAtEqualShifts) {
  spec::TimestepOptions options;
  options.shift_audio = options.shift_video;
  const AudioCarry factors(0.8f, options, DType::kF32);
  const float state = 1.2345f;
  float x = 0, v = 0.7f;
  factors.enter(&state, 1, &x);
  factors.leave(&x, 1, &v);
  EXPECT_EQ(x, state);
  EXPECT_EQ(v, 0.7f);
}

// A velocity field v = (x - target) / sigma sends the state to the target in any number of steps, audio
// included: this closes only if the carry is undone exactly where it is done.
TEST(Euler, ReachesTheTargetOfAStraightField) {
  mem::Accountant accountant(mem::make_heap_allocator(true));
  EulerSampler sampler(accountant, options_for(8, DType::kF32));
  sampler.start(5, nullptr, nullptr);
  const auto to_target = [](const float* x, std::int64_t n, float sigma, float target, float* v) {
    for (std::int64_t i = 0; i < n; ++i) v[i] = (x[i] - target) / sigma;
  };
  const Network network = [&](const float* video, const float* audio, float sigma, float* vv, float* av) {
    to_target(video, kVideo, sigma, 0.75f, vv);
    to_target(audio, kAudio, spec::stream_sigmas(sigma, {}).audio, -0.5f, av);
  };
  while (!sampler.done()) sampler.step(network);
  const std::vector<float> audio(sampler.plain_audio(), sampler.plain_audio() + kAudio);
  for (std::int64_t i = 0; i < kVideo; ++i) EXPECT_NEAR(sampler.video()[i], 0.75f, 2e-6f);
  for (const float a : audio) EXPECT_NEAR(a, -0.5f, 2e-6f);
}

TEST(Euler, KeepsTheTwoStageForm) {
  mem::Accountant accountant(mem::make_heap_allocator());
  SamplerOptions options = options_for(4, DType::kF32);
  EulerSampler sampler(accountant, options);
  sampler.start(5, nullptr, nullptr);
  const float x = sampler.state()[0], v = 0.3f;
  sampler.step([&](const float*, const float*, float, float* vv, float* av) {
    std::fill_n(vv, kVideo, v);
    std::fill_n(av, kAudio, v);
  });
  const float denoised = x - v * options.sigmas[0];
  const float d = (x - denoised) / options.sigmas[0];
  const float dt = options.sigmas[1] - options.sigmas[0];
  EXPECT_EQ(sampler.state()[0], x + d * dt);
}

TEST(Euler, RepeatsItselfBitForBit) {
  std::vector<float> results[2];
  for (std::vector<float>& result : results) {
    mem::Accountant accountant(mem::make_heap_allocator(true));
    EulerSampler sampler(accountant, options_for(5));
    sampler.start(11, nullptr, nullptr);
    while (!sampler.done()) sampler.step(test::fake_network(kVideo, kAudio));
    result = state_of(sampler);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Euler, AFailedStepChangesNothing) {
  mem::Accountant accountant(mem::make_heap_allocator());
  EulerSampler sampler(accountant, options_for(4));
  sampler.start(11, nullptr, nullptr);
  const std::vector<float> before = state_of(sampler);
  EXPECT_THROW(sampler.step([](const float*, const float*, float, float*, float*) {
    fail(Status::kOverBudget, "no room");
  }),
               Error);
  EXPECT_EQ(state_of(sampler), before);
  EXPECT_EQ(sampler.steps_done(), 0);
}

TEST(Sampler, HoldsWhatItSaysAndGivesItBack) {
  mem::Accountant accountant(mem::make_heap_allocator());
  SamplerOptions options = options_for(4);
  options.video_elements = 1 << 16;
  options.audio_elements = 1 << 10;
  {
    EulerSampler sampler(accountant, options);
    EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 4 * (2 * ((1 << 16) + (1 << 10)) + (1 << 10)));
  }
  EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 0);
  accountant.set_budget(mem::Space::kHost, 1 << 18);
  EXPECT_THROW(EulerSampler(accountant, options), Error);
  EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 0);
}

TEST(Sampler, RefusesBadSchedules) {
  mem::Accountant accountant(mem::make_heap_allocator());
  const auto refused = [&](std::vector<float> sigmas) {
    SamplerOptions options = options_for(1);
    options.sigmas = std::move(sigmas);
    EXPECT_THROW(EulerSampler(accountant, options), Error);
  };
  refused({});
  refused({1.0f});
  refused({1.0f, 0.5f});
  refused({0.5f, 0.7f, 0.0f});
  refused({std::nanf(""), 0.0f});
  refused({2.0f, 0.0f});
}

}  // namespace
}  // namespace h3s::sample
