#include "sample/job.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "sample/float_buffer.h"

namespace h3s::sample {
namespace {

SamplerOptions sampler_options(const Inputs& inputs, const JobOptions& options) {
  return {.video_elements = inputs.video_shape().elements(),
          .audio_elements = inputs.audio_shape().elements(),
          .sigmas = make_schedule(options.schedule()),
          .compute = options.compute,
          .timesteps = options.timesteps};
}

bool uses_initial_latents(const Inputs& inputs) {
  return inputs.initial_video() != nullptr;
}

void check_initial_latents(const Inputs& inputs, const JobOptions& options) {
  if (options.denoise < 1.0 && !uses_initial_latents(inputs))
    fail(Status::kBadFile, "{}: initial.video: denoise {} needs latents to start from", inputs.file().path(),
         options.denoise);
}

// Negated comparisons, so that a NaN is refused too.
void check_shares(const spec::TimestepOptions& timesteps) {
  for (const double aug : {timesteps.visual_aug, timesteps.audio_aug})
    if (!(aug >= 0.0 && aug <= 1.0))
      fail(Status::kInvalidArgument, "[job] the share of a condition must be 0 to 1, got {}", aug);
}

std::string number(double value) {
  return fmt::format("{}", value);
}

}  // namespace

ScheduleOptions JobOptions::schedule() const {
  return {.scheduler = scheduler, .steps = steps, .shift = timesteps.shift_video, .denoise = denoise};
}

ConditionOptions JobOptions::conditions() const {
  return {.seed = seed, .visual_aug = timesteps.visual_aug, .audio_aug = timesteps.audio_aug};
}

Settings describe(const JobOptions& options) {
  const spec::TimestepOptions& timesteps = options.timesteps;
  return {{"seed", std::to_string(options.seed)},
          {"scheduler", scheduler_name(options.scheduler)},
          {"steps", std::to_string(options.steps)},
          {"denoise", number(options.denoise)},
          {"compute", options.compute == DType::kBF16 ? "bf16" : "fp32"},
          {"shift_video", number(timesteps.shift_video)},
          {"shift_audio", number(timesteps.shift_audio)},
          {"visual_cond_noise_aug", number(timesteps.visual_aug)},
          {"audio_cond_noise_aug", number(timesteps.audio_aug)},
          {"sigma_division", timesteps.reciprocal_division ? "reciprocal" : "true"},
          {"timestep_precision", timesteps.double_precision ? "binary64" : "binary32"}};
}

SamplerOptions Job::check(const Inputs& inputs, const JobOptions& options) {
  check_shares(options.timesteps);
  SamplerOptions sampler = sampler_options(inputs, options);
  check_sampler_options(sampler);
  check_initial_latents(inputs, options);
  return sampler;
}

Job::Job(const Inputs& inputs, const JobOptions& options, bool resuming, mem::Accountant& accountant)
    : Job(inputs, options, check(inputs, options), resuming, accountant) {}

Job::Job(const Inputs& inputs, const JobOptions& options, SamplerOptions sampler, bool resuming,
         mem::Accountant& accountant)
    : text_(inputs.text(accountant)),
      rows_(make_condition_rows(inputs, options.conditions(), accountant)),
      sampler_(accountant, std::move(sampler)) {
  if (!resuming) start(inputs, options.seed, accountant);
}

void Job::start(const Inputs& inputs, std::uint64_t seed, mem::Accountant& accountant) {
  if (!uses_initial_latents(inputs)) return sampler_.start(seed, nullptr, nullptr);
  const mem::Buffer video = inputs.load(*inputs.initial_video(), accountant, "initial latents");
  const mem::Buffer audio = inputs.load(*inputs.initial_audio(), accountant, "initial latents");
  sampler_.start(seed, video.as<float>(), audio.as<float>());
}

Job::HostBytes Job::host_bytes(const Inputs& inputs, const JobOptions& options, bool resuming) {
  const std::int64_t video = inputs.video_shape().elements(), audio = inputs.audio_shape().elements();
  const std::int64_t text = float_buffer_bytes(inputs.file().at("text").elements());
  const ConditionBytes conditions = condition_bytes(inputs, options.conditions());
  const bool loads_initial = !resuming && uses_initial_latents(inputs);
  const std::int64_t initial = loads_initial ? float_buffer_bytes(video) + float_buffer_bytes(audio) : 0;
  const std::int64_t held = text + conditions.held + EulerSampler::host_bytes(video, audio);
  return {held, std::max(text + conditions.peak, held + initial)};
}

std::int64_t Job::host_bytes(const spec::ModelSpec& spec, const spec::Layout& layout) {
  const spec::JobSpec& job = layout.job();
  const spec::VideoShape video{spec.video_channels, job.latent_t, job.latent_h, job.latent_w};
  const spec::AudioShape audio{spec.audio_channels, job.audio_t};
  const std::int64_t text = float_buffer_bytes(job.text_len * spec.text_dim);
  const ConditionBytes conditions = condition_bytes(spec, layout);
  const std::int64_t held =
      text + conditions.held + EulerSampler::host_bytes(video.elements(), audio.elements());
  return std::max(text + conditions.peak, held);
}

}  // namespace h3s::sample
