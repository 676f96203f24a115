// How the audio stream rides on the video schedule: the outer forward around the network.
//
// The sampler's audio state is the audio latent times sigma_v / sigma_a, so that one Euler step serves both
// streams. Before the network that factor is taken out, after it the audio velocity is translated back. All
// in the compute type C, one rounding to C an operation:
//   x_a = C(C(state) * carry),  carry = C(sigma_a / sigma_v)
//   out = C(C((1 - a) x_a) + C(gain * out)),  a = shift_video / shift_audio, gain = C(1 + (a - 1) sigma_a)
// With equal shifts (a = 1) both are the identity but for the rounding to C.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "spec/layout.h"

namespace h3s::sample {

class AudioCarry {
 public:
  // One step at schedule value `sigma`; compute is kBF16 or kF32.
  AudioCarry(float sigma, const spec::TimestepOptions& options, DType compute);

  // The audio latent the network sees: x[n] from the sampler's state[n].
  void enter(const float* state, std::int64_t n, float* x) const;
  // Translates the network's audio velocity[n] in place; x as enter() gave it.
  void leave(const float* x, std::int64_t n, float* velocity) const;

  float carry() const { return carry_; }
  float gain() const { return gain_; }

 private:
  bool active_ = false;
  DType compute_;
  float carry_ = 1, gain_ = 1, mix_ = 0;  // mix = 1 - a
};

}  // namespace h3s::sample
