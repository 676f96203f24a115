// Timesteps of the two streams and modulation rows: one row of the time embedding for each distinct timestep,
// three modalities each.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "spec/layout.h"

namespace h3s::spec {
namespace {

constexpr float kStepsPerSigma = 1000.0f;
constexpr float kMinSigma = 1e-6f;

constexpr std::int64_t kTagVideo = 0, kTagText = 1, kTagAudio = 2;

// The network's sigma: the sampler hands on f(1000 sigma), the network takes it back by a division.
float network_sigma(float sigma, bool reciprocal_division) {
  const float timestep = sigma * kStepsPerSigma;
  const float back = reciprocal_division ? timestep * (1.0f / kStepsPerSigma) : timestep / kStepsPerSigma;
  return std::max(back, kMinSigma);
}

// Moves sigma from a schedule of shift `from` to one of shift `to`. Every operation rounds to Real; the
// differences of the shifts are binary64 first, as Python floats are.
template <typename Real>
Real reshift(Real sigma, double from, double to) {
  const Real base = sigma / (static_cast<Real>(from) + sigma * static_cast<Real>(1.0 - from));
  return static_cast<Real>(to) * base / (Real{1} + static_cast<Real>(to - 1.0) * base);
}

template <typename Real>
void set_streams(Timesteps& steps, Real sigma_video, const TimestepOptions& options) {
  const Real sigma_audio = reshift(sigma_video, options.shift_video, options.shift_audio);
  steps.sigma_video = sigma_video;
  steps.sigma_audio = sigma_audio;
  steps.t_video = Real{1} - sigma_video;
  steps.t_audio = Real{1} - sigma_audio;
}

double segment_timestep(SegmentKind kind, const Timesteps& steps, const TimestepOptions& options) {
  switch (kind) {
    case SegmentKind::kText:
    case SegmentKind::kVideo:
      return steps.t_video;
    case SegmentKind::kAudio:
      return steps.t_audio;
    case SegmentKind::kCond:
    case SegmentKind::kRefImage:
      return std::max(steps.t_video, options.visual_aug);
    case SegmentKind::kCondAudio:
    case SegmentKind::kRefAudio:
      return std::max(steps.t_audio, options.audio_aug);
  }
  fail(Status::kInternal, "[timesteps] unknown segment kind {}", static_cast<int>(kind));
}

std::int64_t segment_tag(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kText:
      return kTagText;
    case SegmentKind::kAudio:
    case SegmentKind::kCondAudio:
    case SegmentKind::kRefAudio:
      return kTagAudio;
    default:
      return kTagVideo;
  }
}

std::int64_t row_of(const std::vector<double>& unique, double t) {
  return std::lower_bound(unique.begin(), unique.end(), t) - unique.begin();
}

std::vector<double> unique_timesteps(const Layout& layout, const Timesteps& steps,
                                     const TimestepOptions& options) {
  std::vector<double> unique;
  for (const Segment& s : layout.segments()) unique.push_back(segment_timestep(s.kind, steps, options));
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  return unique;
}

// Text is cut into the longest runs of one tag.
void append_text_runs(const std::vector<std::int64_t>& tags, std::int64_t first_row,
                      std::vector<kernels::ModSegment>& out) {
  const auto num_tags = static_cast<std::int64_t>(tags.size());
  const auto tag_at = [&](std::int64_t i) { return tags[static_cast<std::size_t>(i)]; };
  for (std::int64_t start = 0, stop = 0; start < num_tags; start = stop) {
    while (stop < num_tags && tag_at(stop) == tag_at(start)) ++stop;
    out.push_back({start, stop, first_row + tag_at(start)});
  }
}

std::vector<kernels::ModSegment> modulation_rows(const Layout& layout, const Timesteps& steps,
                                                 const TimestepOptions& options) {
  std::vector<kernels::ModSegment> out;
  const std::vector<std::int64_t>& tags = layout.job().text_tags;
  for (const Segment& s : layout.segments()) {
    const double t = segment_timestep(s.kind, steps, options);
    const std::int64_t first_row = kModalities * row_of(steps.unique, t);
    if (s.kind == SegmentKind::kText && !tags.empty()) {
      append_text_runs(tags, first_row, out);
    } else {
      out.push_back({s.start, s.stop, first_row + segment_tag(s.kind)});
    }
  }
  return out;
}

}  // namespace

StreamSigmas stream_sigmas(float sigma, const TimestepOptions& options) {
  const float video = network_sigma(sigma, options.reciprocal_division);
  return {video, reshift(video, options.shift_video, options.shift_audio)};
}

Timesteps make_timesteps(const Layout& layout, float sigma, const TimestepOptions& options) {
  Timesteps steps;
  const float sigma_video = network_sigma(sigma, options.reciprocal_division);
  if (options.double_precision) {
    set_streams<double>(steps, sigma_video, options);
  } else {
    set_streams<float>(steps, sigma_video, options);
  }
  steps.unique = unique_timesteps(layout, steps, options);
  steps.segments = modulation_rows(layout, steps, options);
  steps.video_row = row_of(steps.unique, steps.t_video);
  steps.audio_row = row_of(steps.unique, steps.t_audio);
  return steps;
}

}  // namespace h3s::spec
