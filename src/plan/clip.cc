#include "plan/clip.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace h3s::plan {
namespace {

constexpr double kFramesPerSecond = 24, kAudioStepsPerSecond = 40;
constexpr double kMostSeconds = 1e5;  // past any size that spec::Layout takes

[[noreturn]] void bad_reference(const std::string& text) {
  fail(Status::kInvalidArgument,
       "[clip] expected a reference such as image=1024x768, video=640x480x124 or audio=5, got \"{}\"", text);
}

std::int64_t latents(const char* what, std::int64_t pixels) {
  if (pixels < kLatentPixels || pixels % kLatentPixels != 0)
    fail(Status::kInvalidArgument, "[clip] {} must be a multiple of {} pixels, got {}", what, kLatentPixels,
         pixels);
  return pixels / kLatentPixels;
}

std::int64_t audio_steps(double seconds) {
  if (!(seconds > 0 && seconds <= kMostSeconds))
    fail(Status::kInvalidArgument, "[clip] audio must last above 0, at most {} seconds, got {}", kMostSeconds,
         seconds);
  return std::max<std::int64_t>(1, std::llrint(seconds * kAudioStepsPerSecond));
}

// "A x B x C" as whole numbers.
std::vector<std::int64_t> sizes(const std::string& text, const std::string& whole) {
  std::vector<std::int64_t> values;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value <= 0) bad_reference(whole);
    values.push_back(value);
    if (next == end) return values;
    if (*next != 'x') bad_reference(whole);
    at = next + 1;
  }
}

double seconds_in(const std::string& text, const std::string& whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) bad_reference(whole);
  return value;
}

}  // namespace

spec::JobSpec job_of(const Clip& clip) {
  if (clip.frames < 1) fail(Status::kInvalidArgument, "[clip] frames must be 1 or more, got {}", clip.frames);
  const std::int64_t frames = spec::align_frames(clip.frames);
  spec::JobSpec job{
      .text_len = clip.text_tokens,
      .latent_t = spec::latent_frames(frames),
      .latent_h = latents("height", clip.height),
      .latent_w = latents("width", clip.width),
      .audio_t = clip.audio_seconds ? audio_steps(*clip.audio_seconds) : spec::audio_latent_steps(frames),
      .keyframes = {},
      .references = clip.references,
      .text_tags = {}};
  for (std::int64_t i = 0; i < clip.keyframes; ++i) job.keyframes.push_back({.frame_idx = i, .latent_t = 1});
  return job;
}

spec::Reference parse_reference(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) bad_reference(text);
  const std::string kind = text.substr(0, equals), rest = text.substr(equals + 1);
  if (kind == "audio")
    return {.kind = spec::ReferenceKind::kAudio, .audio_t = audio_steps(seconds_in(rest, text))};
  if (kind != "image" && kind != "video") bad_reference(text);
  const bool image = kind == "image";
  const std::vector<std::int64_t> size = sizes(rest, text);
  if (size.size() != (image ? 2u : 3u)) bad_reference(text);
  const std::int64_t frames = image ? 1 : spec::latent_frames(spec::align_frames(size[2]));
  return {.kind = image ? spec::ReferenceKind::kImage : spec::ReferenceKind::kVideo,
          .latent_t = frames,
          .latent_h = latents("reference height", size[1]),
          .latent_w = latents("reference width", size[0])};
}

double seconds_of(std::int64_t frames) {
  return static_cast<double>(frames) / kFramesPerSecond;
}

}  // namespace h3s::plan
