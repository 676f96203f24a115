#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "sample/audio_carry.h"
#include "sample/float_buffer.h"
#include "sample/randn.h"

namespace h3s::sample {
namespace {

void check_sigmas(const std::vector<float>& sigmas) {
  if (sigmas.size() < 2) fail(Status::kInvalidArgument, "[sampler] a schedule needs at least one step");
  for (std::size_t i = 0; i + 1 < sigmas.size(); ++i)
    if (!(sigmas[i] > 0.0f && sigmas[i] <= 1.0f && sigmas[i + 1] <= sigmas[i]))
      fail(Status::kInvalidArgument, "[sampler] sigmas must descend from at most 1, got {} then {}",
           sigmas[i], sigmas[i + 1]);
  if (sigmas.back() != 0.0f)
    fail(Status::kInvalidArgument, "[sampler] the last sigma must be 0, got {}", sigmas.back());
}

// 1e6 bounds both shifts. The ratio scales the audio latent in float32 and must be an ordinary number there.
void check_shifts(const spec::TimestepOptions& timesteps) {
  for (const double shift : {timesteps.shift_video, timesteps.shift_audio})
    if (!(shift > 0.0 && shift <= 1e6))  // a NaN too
      fail(Status::kInvalidArgument, "[sampler] shifts must be above 0, at most 1e6, got {}", shift);
  if (!std::isnormal(static_cast<float>(timesteps.shift_video / timesteps.shift_audio)))
    fail(Status::kInvalidArgument, "[sampler] the shifts {} and {} are too far apart", timesteps.shift_video,
         timesteps.shift_audio);
}

SamplerOptions checked(SamplerOptions options) {
  check_sampler_options(options);
  return options;
}

// x holds noise. Each product and the sum round to float32, as two tensors' product and sum do.
void scale_noise(float* x, std::int64_t n, const float* latent, float latent_scale, float sigma) {
  const float rest = 1.0f - sigma;
  for (std::int64_t i = 0; i < n; ++i) {
    const float start = latent == nullptr ? 0.0f : latent[i] * latent_scale;
    x[i] = sigma * x[i] + rest * start;
  }
}

// The two-stage form, each operation one float32 rounding: denoised = x - v sigma; d = (x - denoised) /
// sigma; x + d (next - sigma).
struct EulerStep {
  float sigma, next;

  float operator()(float x, float velocity) const {
    const float denoised = x - velocity * sigma;
    return x + (x - denoised) / sigma * (next - sigma);
  }
};

}  // namespace

void check_sampler_options(const SamplerOptions& options) {
  check_sigmas(options.sigmas);
  check_shifts(options.timesteps);
  if (options.video_elements < 1 || options.audio_elements < 1)
    fail(Status::kInvalidArgument, "[sampler] expected video and audio, got {} and {} elements",
         options.video_elements, options.audio_elements);
  if (options.compute != DType::kBF16 && options.compute != DType::kF32)
    fail(Status::kInvalidArgument, "[sampler] the compute type must be BF16 or F32, got {}",
         dtype_name(options.compute));
}

EulerSampler::EulerSampler(mem::Accountant& accountant, SamplerOptions options)
    : options_(checked(std::move(options))),
      audio_scale_(options_.timesteps.shift_video / options_.timesteps.shift_audio),
      state_(allocate_floats(accountant, elements(), "sampler state")),
      velocity_(allocate_floats(accountant, elements(), "velocity")),
      carried_audio_(allocate_floats(accountant, options_.audio_elements, "audio as the network sees it")) {}

void EulerSampler::start(std::uint64_t seed, const float* video_latent, const float* audio_latent) {
  const std::int64_t num_video = options_.video_elements, num_audio = options_.audio_elements;
  auto* video = state_.as<float>();
  float* audio = video + num_video;
  TorchGenerator generator(seed);
  generator.randn(video, num_video);
  generator.randn(audio, num_audio);
  scale_noise(video, num_video, video_latent, 1.0f, options_.sigmas.front());
  scale_noise(audio, num_audio, audio_latent, static_cast<float>(audio_scale_), options_.sigmas.front());
  steps_done_ = 0;
}

void EulerSampler::restore(std::int64_t steps_done, const void* state) {
  if (steps_done < 0 || steps_done > num_steps())
    fail(Status::kInvalidArgument, "[sampler] {} steps done of a schedule of {}", steps_done, num_steps());
  std::memcpy(state_.data(), state, static_cast<std::size_t>(elements()) * sizeof(float));
  steps_done_ = steps_done;
}

void EulerSampler::step(const Network& network) {
  H3S_ASSERT(!done());
  const float sigma = options_.sigmas[static_cast<std::size_t>(steps_done_)];
  const float next = options_.sigmas[static_cast<std::size_t>(steps_done_) + 1];
  evaluate(network, sigma);
  auto *x = state_.as<float>(), *velocity = velocity_.as<float>();
  const EulerStep moved{sigma, next};
  for (std::int64_t i = 0; i < elements(); ++i)  // all of them before the state changes
    if (!std::isfinite(moved(x[i], velocity[i])))
      fail(Status::kBadFile,
           "[sampler] step {} of {} gives {} latents that are not finite: weights or inputs are out of range",
           steps_done_ + 1, num_steps(), i < options_.video_elements ? "video" : "audio");
  std::transform(x, x + elements(), velocity, x, moved);
  ++steps_done_;
}

void EulerSampler::evaluate(const Network& network, float sigma) {
  const AudioCarry carry(sigma, options_.timesteps, options_.compute);
  auto* velocity = velocity_.as<float>();
  float* audio_velocity = velocity + options_.video_elements;
  auto* audio = carried_audio_.as<float>();
  carry.enter(state() + options_.video_elements, options_.audio_elements, audio);
  network(video(), audio, sigma, velocity, audio_velocity);
  carry.leave(audio, options_.audio_elements, audio_velocity);
}

const float* EulerSampler::plain_audio() {
  const auto scale = static_cast<float>(audio_scale_);
  const float* audio = state() + options_.video_elements;
  auto* out = carried_audio_.as<float>();
  std::transform(audio, audio + options_.audio_elements, out, [scale](float x) { return x / scale; });
  return out;
}

std::int64_t EulerSampler::host_bytes(std::int64_t video_elements, std::int64_t audio_elements) {
  return 2 * float_buffer_bytes(video_elements + audio_elements) + float_buffer_bytes(audio_elements);
}

}  // namespace h3s::sample
