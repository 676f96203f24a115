#include "sample/audio_carry.h"

#include "base/float16.h"

namespace h3s::sample {
namespace {

float rounded(float x, DType compute) {
  return compute == DType::kBF16 ? round_to<BF16>(x) : x;
}

}  // namespace

AudioCarry::AudioCarry(float sigma, const spec::TimestepOptions& options, DType compute) : compute_(compute) {
  const double a = options.shift_video / options.shift_audio;
  active_ = a != 1.0;
  if (!active_) return;
  const spec::StreamSigmas sigmas = spec::stream_sigmas(sigma, options);
  carry_ = rounded(sigmas.audio / sigmas.video, compute);
  gain_ = rounded(1.0f + static_cast<float>(a - 1.0) * sigmas.audio, compute);
  mix_ = static_cast<float>(1.0 - a);
}

void AudioCarry::enter(const float* state, std::int64_t n, float* x) const {
  for (std::int64_t i = 0; i < n; ++i) x[i] = rounded(rounded(state[i], compute_) * carry_, compute_);
}

void AudioCarry::leave(const float* x, std::int64_t n, float* velocity) const {
  if (!active_) return;
  for (std::int64_t i = 0; i < n; ++i) {
    const float kept = rounded(mix_ * x[i], compute_);
    velocity[i] = rounded(kept + rounded(gain_ * velocity[i], compute_), compute_);
  }
}

}  // namespace h3s::sample
