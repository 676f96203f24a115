#include "spec/check_job.h"

#include "base/error.h"

namespace h3s::spec {
namespace {

// Far past any real job, small enough that no byte count overflows with widths of up to 2^24: text and audio
// 2^24 rows, 2^16 latent frames (three hours), frames of 2^13 latents (131,072 pixels) a side, 2^30 latents a
// channel in all.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLatents = std::int64_t{1} << 30;
constexpr std::int64_t kMaxFrames = std::int64_t{1} << 16;
constexpr std::int64_t kMaxSide = std::int64_t{1} << 13;

void check_size(const std::string& what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    fail(Status::kInvalidArgument, "[layout] {} must be {} to {}, got {}", what, low, high, value);
}

void check_even_side(const std::string& what, std::int64_t value) {
  check_size(what, value, kPatch, kMaxSide);
  if (value % kPatch != 0) fail(Status::kInvalidArgument, "[layout] {} must be even, got {}", what, value);
}

void check_keyframe(const Keyframe& keyframe, std::size_t idx) {
  const std::string name = fmt::format("keyframe {} ", idx);
  check_size(name + "frame index", keyframe.frame_idx, 0, kMaxRows);
  check_size(name + "latent frames", keyframe.latent_t, 0, kMaxFrames);
  check_size(name + "audio steps", keyframe.audio_t, 0, kMaxRows);
  if (keyframe.latent_t == 0 && keyframe.audio_t == 0)
    fail(Status::kInvalidArgument, "[layout] {}has neither a picture nor audio", name);
}

void check_reference(const Reference& reference, std::size_t idx) {
  const std::string name = fmt::format("reference {} ", idx);
  check_size(name + "audio steps", reference.audio_t, 0, kMaxRows);
  if (reference.kind == ReferenceKind::kAudio) {
    check_size(name + "latent frames", reference.latent_t, 0, 0);
    return;
  }
  const bool image = reference.kind == ReferenceKind::kImage;
  check_size(name + "latent frames", reference.latent_t, 1, image ? 1 : kMaxFrames);
  if (image) check_size(name + "audio steps", reference.audio_t, 0, 0);
  check_even_side(name + "latent height", reference.latent_h);
  check_even_side(name + "latent width", reference.latent_w);
  check_size(name + "latents of a channel", reference.latent_t * reference.latent_h * reference.latent_w, 1,
             kMaxLatents);
}

void check_tags(const JobSpec& job) {
  const auto num_tags = static_cast<std::int64_t>(job.text_tags.size());
  if (num_tags != 0 && num_tags != job.text_len)
    fail(Status::kInvalidArgument, "[layout] expected one text tag for each of {} tokens, got {}",
         job.text_len, num_tags);
  for (const std::int64_t tag : job.text_tags) check_size("text tag", tag, 0, kModalities - 1);
}

}  // namespace

void check_job(const JobSpec& job) {
  check_size("text length", job.text_len, 1, kMaxRows);
  check_size("latent frames", job.latent_t, 1, kMaxFrames);
  check_size("latent height", job.latent_h, 1, kMaxSide);
  check_size("latent width", job.latent_w, 1, kMaxSide);
  check_size("latents of a channel", job.latent_t * job.latent_h * job.latent_w, 1, kMaxLatents);
  check_size("audio steps", job.audio_t, 1, kMaxRows);
  for (std::size_t i = 0; i < job.keyframes.size(); ++i) check_keyframe(job.keyframes[i], i);
  for (std::size_t i = 0; i < job.references.size(); ++i) check_reference(job.references[i], i);
  check_tags(job);
}

}  // namespace h3s::spec
