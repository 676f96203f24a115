// A network stand-in: nonlinear, mixes neighbours, rounds to bf16 as the real one does; the same bits every
// time.
#pragma once

#include <cmath>

#include "base/float16.h"
#include "sample/sampler.h"

namespace h3s::test {

inline void fake_velocity(const float* x, std::int64_t n, float sigma, float* v) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float mixed = 0.75f * round_to<BF16>(x[i]) + 0.25f * round_to<BF16>(x[(i * 7 + 3) % n]);
    v[i] = round_to<BF16>(mixed * sigma / (1.0f + std::fabs(mixed)));
  }
}

inline sample::Network fake_network(std::int64_t num_video, std::int64_t num_audio) {
  return
      [=](const float* video, const float* audio, float sigma, float* video_velocity, float* audio_velocity) {
        fake_velocity(video, num_video, sigma, video_velocity);
        fake_velocity(audio, num_audio, sigma, audio_velocity);
      };
}

}  // namespace h3s::test
