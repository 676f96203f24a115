#include "sample/condition.h"

#include <algorithm>

#include "sample/float_buffer.h"
#include "sample/randn.h"

namespace h3s::sample {
namespace {

// How the latents of one stream become rows.
struct Stream {
  const char* tag;
  std::int64_t (*num_values)(const io::TensorInfo&);  // in the rows of a latent
  void (*fill)(const io::TensorInfo&, const float* latent, float* rows);
};

spec::VideoShape video_shape(const io::TensorInfo& info) {
  return {info.shape[1], info.shape[2], info.shape[3], info.shape[4]};
}

spec::AudioShape audio_shape(const io::TensorInfo& info) {
  return {info.shape[1], info.shape[3]};
}

const Stream kVisual = {
    "visual condition rows",
    [](const io::TensorInfo& info) { return video_shape(info).rows() * video_shape(info).columns(); },
    [](const io::TensorInfo& info, const float* latent, float* rows) {
      spec::patchify_rows(latent, video_shape(info), 0, video_shape(info).rows(), rows);
    }};

const Stream kAudio = {"audio condition rows", [](const io::TensorInfo& info) { return info.elements(); },
                       [](const io::TensorInfo& info, const float* latent, float* rows) {
                         spec::pack_audio_rows(latent, audio_shape(info), 0, audio_shape(info).rows(), rows);
                       }};

// The conditions of one stream, and the noise they get.
struct StreamJob {
  const Stream& stream;
  const std::vector<const io::TensorInfo*>& latents;
  double aug;
  std::uint64_t seed;

  bool noisy() const { return aug < 1.0; }
};

StreamJob visual_job(const Inputs& inputs, const ConditionOptions& options) {
  return {kVisual, inputs.visual_latents(), options.visual_aug, options.seed};
}

StreamJob audio_job(const Inputs& inputs, const ConditionOptions& options) {
  return {kAudio, inputs.audio_latents(), options.audio_aug, options.seed + 1};
}

std::int64_t total_values(const StreamJob& job) {
  std::int64_t sum = 0;
  for (const io::TensorInfo* info : job.latents) sum += job.stream.num_values(*info);
  return sum;
}

std::int64_t transient_bytes(const StreamJob& job) {
  std::int64_t most = 0;
  for (const io::TensorInfo* info : job.latents)
    most = std::max(most, float_buffer_bytes(job.noisy() ? job.stream.num_values(*info) : info->elements()));
  return most;
}

void add_noise(const StreamJob& job, float* rows, std::int64_t count, mem::Accountant& accountant) {
  const mem::Buffer buffer = allocate_floats(accountant, count, "condition noise");
  auto* noise = buffer.as<float>();
  TorchGenerator(job.seed).randn(noise, count);
  const auto keep = static_cast<float>(job.aug), rest = static_cast<float>(1.0 - job.aug);
  for (std::int64_t i = 0; i < count; ++i) rows[i] = keep * rows[i] + rest * noise[i];
}

void fill_rows(const StreamJob& job, const Inputs& inputs, const io::TensorInfo& info, float* rows,
               mem::Accountant& accountant) {
  const mem::Buffer latent = inputs.load(info, accountant, "condition latent");
  job.stream.fill(info, latent.as<float>(), rows);
}

mem::Buffer make_rows(const StreamJob& job, const Inputs& inputs, mem::Accountant& accountant) {
  mem::Buffer out = allocate_floats(accountant, total_values(job), job.stream.tag);
  auto* rows = out.as<float>();
  for (const io::TensorInfo* info : job.latents) {
    const std::int64_t count = job.stream.num_values(*info);
    fill_rows(job, inputs, *info, rows, accountant);
    if (job.noisy()) add_noise(job, rows, count, accountant);
    rows += count;
  }
  return out;
}

}  // namespace

ConditionRows make_condition_rows(const Inputs& inputs, const ConditionOptions& options,
                                  mem::Accountant& accountant) {
  ConditionRows rows;
  rows.visual = make_rows(visual_job(inputs, options), inputs, accountant);
  rows.audio = make_rows(audio_job(inputs, options), inputs, accountant);
  return rows;
}

ConditionBytes condition_bytes(const Inputs& inputs, const ConditionOptions& options) {
  const StreamJob visual = visual_job(inputs, options), audio = audio_job(inputs, options);
  const std::int64_t visual_bytes = float_buffer_bytes(total_values(visual));
  const std::int64_t held = visual_bytes + float_buffer_bytes(total_values(audio));
  return {held, std::max(visual_bytes + transient_bytes(visual), held + transient_bytes(audio))};
}

ConditionBytes condition_bytes(const spec::ModelSpec& spec, const spec::Layout& layout) {
  std::int64_t visual = 0, most_visual = 0, audio = 0, most_audio = 0;
  for (const spec::Segment& segment : layout.segments()) {
    const std::int64_t rows = segment.stop - segment.start;
    if (segment.kind == spec::SegmentKind::kCond || segment.kind == spec::SegmentKind::kRefImage) {
      visual += rows * spec.patch_width();
      most_visual = std::max(most_visual, float_buffer_bytes(rows * spec.patch_width()));
    }
    if (segment.kind == spec::SegmentKind::kCondAudio || segment.kind == spec::SegmentKind::kRefAudio) {
      audio += rows * spec.audio_channels;
      most_audio = std::max(most_audio, float_buffer_bytes(rows * spec.audio_channels));
    }
  }
  const std::int64_t held = float_buffer_bytes(visual) + float_buffer_bytes(audio);
  return {held, std::max(float_buffer_bytes(visual) + most_visual, held + most_audio)};
}

}  // namespace h3s::sample
