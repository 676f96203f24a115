#include <optional>

#include "checkpoint/generator.h"
#include "spec/patchify.h"
#include "verify/captured_run.h"
#include "verify/verify.h"

namespace h3s::verify {
namespace {

std::vector<float> random_values(const char* name, std::uint64_t seed, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  checkpoint::TensorGenerator::input(name, seed).values(0, count, values.data());
  return values;
}

JobInputs random_inputs(const spec::ModelSpec& spec, const RandomJob& random) {
  const spec::JobSpec& job = random.job;
  const spec::VideoShape video{spec.video_channels, job.latent_t, job.latent_h, job.latent_w};
  const spec::AudioShape audio{spec.audio_channels, job.audio_t};
  return {.text = random_values("random.text", random.seed, job.text_len * spec.text_dim),
          .video = random_values("random.video", random.seed, video.elements()),
          .audio = random_values("random.audio", random.seed, audio.elements()),
          .visual_rows = {},
          .audio_rows = {}};
}

}  // namespace

Report verify_model(const checkpoint::Checkpoint& checkpoint, const RandomJob& random,
                    const std::vector<NamedPlan>& plans, const Progress& progress,
                    const backend::DeviceChoice& device) {
  const spec::Layout layout(random.job);
  const JobInputs inputs = random_inputs(checkpoint.spec(), random);
  const CaptureJob job{checkpoint, layout, inputs, {}, random.sigma, random.compute, {}, device};
  Report report{.path = checkpoint.file().path(), .skipped = "", .checks = {}, .plans = {}};
  std::optional<Capture> first;
  for (const NamedPlan& plan : plans) {
    if (progress) progress(plan.describe());
    Capture capture = run_captured(job, plan);
    PlanResult result{.plan = plan,
                      .difference = first ? first_difference(*first, capture) : "",
                      .peak_bytes = capture.peak_bytes};
    result.equal = result.difference.empty();
    report.plans.push_back(result);
    if (!first) first = std::move(capture);
  }
  return report;
}

}  // namespace h3s::verify
