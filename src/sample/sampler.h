// Flow-matching Euler over one flat float32 state: video latent first, then audio.
//
// Knows no backend: the network is a function. Bits depend on the schedule, the seed, the initial latents and
// the network alone. Memory, all Space::kHost: the state and the velocity, 4 B an element each, and the audio
// again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "mem/accountant.h"
#include "spec/layout.h"

namespace h3s::sample {

// One evaluation at schedule value sigma. All arrays float32: video and audio hold the latents, the
// velocities are written in the same shapes with stock's sign, rounded to the compute type. The function
// rounds its inputs itself.
using Network = std::function<void(const float* video, const float* audio, float sigma, float* video_velocity,
                                   float* audio_velocity)>;

struct SamplerOptions {
  std::int64_t video_elements = 0, audio_elements = 0;
  std::vector<float> sigmas;  // descending, the last is 0
  DType compute = DType::kBF16;
  spec::TimestepOptions timesteps;  // shifts of the two streams
};

// Throws Error(kInvalidArgument) for a schedule, sizes or shifts that cannot be run.
void check_sampler_options(const SamplerOptions& options);

class EulerSampler {
 public:
  // Throws as check_sampler_options, and Error(kOverBudget) from the accountant.
  EulerSampler(mem::Accountant& accountant, SamplerOptions options);

  // Before step 0: sigma_0 noise + (1 - sigma_0) latent. Noise comes from one generator, video before audio.
  // Null latents are zeros; the audio latent is the plain one, not yet carried.
  void start(std::uint64_t seed, const float* video_latent, const float* audio_latent);

  // Takes up a run: `state` holds the elements() floats of state() after `steps_done` steps, at any
  // alignment.
  void restore(std::int64_t steps_done, const void* state);

  // One step. If the network throws, the state is what it was before. The same when the step would leave
  // values that are not finite: Error(kBadFile) names it.
  void step(const Network& network);

  bool done() const { return steps_done_ == num_steps(); }
  std::int64_t steps_done() const { return steps_done_; }
  std::int64_t num_steps() const { return static_cast<std::int64_t>(options_.sigmas.size()) - 1; }
  const SamplerOptions& options() const { return options_; }

  std::int64_t elements() const { return options_.video_elements + options_.audio_elements; }
  const float* state() const { return state_.as<float>(); }  // [elements()], audio carried

  // The latents of the state as the VAEs want them: video as it is, audio without the carry factor. The audio
  // lies in a buffer that the next step overwrites.
  const float* video() const { return state(); }
  const float* plain_audio();

  // What the constructor allocates.
  static std::int64_t host_bytes(std::int64_t video_elements, std::int64_t audio_elements);

 private:
  void evaluate(const Network& network, float sigma);

  SamplerOptions options_;
  double audio_scale_;  // shift_video / shift_audio
  std::int64_t steps_done_ = 0;
  mem::Buffer state_, velocity_, carried_audio_;
};

}  // namespace h3s::sample
