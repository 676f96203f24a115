#include "spec/layout.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "spec/check_job.h"

namespace h3s::spec {
namespace {

// Rope time units of one pixel frame: one unit is an audio step, 40 of them to 24 frames.
constexpr double kUnitsPerFrame = 5.0 / 3.0;
constexpr double kGridScale = 32.0;  // a square frame spans 32 rope units along h and w
constexpr std::int64_t kFramesPerSecond = 24;
constexpr std::int64_t kAudioStepsPerSecond = 40;

std::int64_t round_up_to_patch(std::int64_t size) {
  return (size + kPatch - 1) / kPatch * kPatch;
}

// Rope units that latent frame k of a video lasts: it holds 1, 4, 4, 4, 4 pixel frames, repeating.
double frame_span(std::int64_t k) {
  return kUnitsPerFrame * (k % 5 == 0 ? 1.0 : 4.0);
}

// Running sums from the left, as stock adds them: the order fixes the last bit.
double total_span(std::int64_t frames) {
  double sum = 0;
  for (std::int64_t k = 0; k < frames; ++k) sum += frame_span(k);
  return sum;
}

std::vector<double> frame_times(double origin, std::int64_t frames) {
  std::vector<double> times(static_cast<std::size_t>(frames));
  double sum = 0;
  for (std::int64_t k = 0; k < frames; ++k) {
    times[static_cast<std::size_t>(k)] = origin + sum;
    sum += frame_span(k);
  }
  return times;
}

// Coordinate of patch j along an axis of `side` latents in a frame of h x w latents. Evaluated in this order.
double grid_coordinate(std::int64_t j, std::int64_t side, std::int64_t h, std::int64_t w) {
  const double ratio = static_cast<double>(side) / std::sqrt(static_cast<double>(h * w));
  const double step = ratio / static_cast<double>(side / kPatch);
  return (static_cast<double>(j) * step + (1.0 - ratio) / 2.0) * kGridScale;
}

std::vector<double> grid_axis(std::int64_t side, std::int64_t h, std::int64_t w) {
  std::vector<double> axis(static_cast<std::size_t>(side / kPatch));
  for (std::size_t j = 0; j < axis.size(); ++j)
    axis[j] = grid_coordinate(static_cast<std::int64_t>(j), side, h, w);
  return axis;
}

// Appends segments one after another.
class Packer {
 public:
  void text(std::int64_t rows) { push({.kind = SegmentKind::kText}, rows); }

  void grid(SegmentKind kind, double origin, std::int64_t t, std::int64_t h, std::int64_t w) {
    push({.kind = kind, .latent_t = t, .latent_h = h, .latent_w = w, .origin = origin},
         t * (h / kPatch) * (w / kPatch));
  }

  // h, w: the frame whose first and last w coordinate place the two stereo channels.
  void audio(SegmentKind kind, double origin, std::int64_t steps, std::int64_t h, std::int64_t w) {
    push({.kind = kind,
          .steps = steps,
          .origin = origin,
          .w_low = grid_coordinate(0, w, h, w),
          .w_high = grid_coordinate(w / kPatch - 1, w, h, w)},
         2 * steps);
  }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void push(Segment segment, std::int64_t rows) {
    if (rows == 0) return;
    segment.start = row_;
    segment.stop = row_ += rows;
    segments_.push_back(segment);
  }

  std::vector<Segment> segments_;
  std::int64_t row_ = 0;
};

double reference_advance(const Reference& reference) {
  if (reference.kind == ReferenceKind::kImage) return 1.0;
  return std::max(static_cast<double>(reference.audio_t), total_span(reference.latent_t));
}

double keyframe_base(const JobSpec& job) {
  double advance = 0;
  if (job.keyframes_after_references)
    for (const Reference& reference : job.references) advance += reference_advance(reference);
  return static_cast<double>(job.text_len) + advance;
}

void pack_keyframes(Packer& packer, const JobSpec& job, std::int64_t h, std::int64_t w) {
  const double base = keyframe_base(job);
  for (const Keyframe& keyframe : job.keyframes) {
    const double origin = base + kUnitsPerFrame * static_cast<double>(keyframe.frame_idx);
    packer.grid(SegmentKind::kCond, origin, keyframe.latent_t, h, w);
    packer.audio(SegmentKind::kCondAudio, origin, keyframe.audio_t, h, w);
  }
}

// h, w: the target's frame, which places the channels of a reference without a picture of its own.
void pack_reference(Packer& packer, const Reference& reference, double cursor, std::int64_t h,
                    std::int64_t w) {
  const bool own_frame = reference.kind != ReferenceKind::kAudio;
  packer.audio(SegmentKind::kRefAudio, cursor, reference.audio_t, own_frame ? reference.latent_h : h,
               own_frame ? reference.latent_w : w);
  packer.grid(SegmentKind::kRefImage, cursor, reference.latent_t, reference.latent_h, reference.latent_w);
}

std::vector<Segment> pack(const JobSpec& job) {
  const std::int64_t h = round_up_to_patch(job.latent_h);
  const std::int64_t w = round_up_to_patch(job.latent_w);
  Packer packer;
  packer.text(job.text_len);
  pack_keyframes(packer, job, h, w);
  auto cursor = static_cast<double>(job.text_len);
  for (const Reference& reference : job.references) {
    pack_reference(packer, reference, cursor, h, w);
    cursor += reference_advance(reference);
  }
  packer.audio(SegmentKind::kAudio, cursor, job.audio_t, h, w);
  packer.grid(SegmentKind::kVideo, cursor, job.latent_t, h, w);
  return packer.take();
}

double* put(double* out, double t, double h, double w) {
  out[0] = t;
  out[1] = h;
  out[2] = w;
  return out + 3;
}

// The functions below write rows [first, last) of one segment, counted from the segment's start.
double* text_positions(std::int64_t first, std::int64_t last, double* out) {
  for (std::int64_t row = first; row < last; ++row) out = put(out, static_cast<double>(row), 0.0, 0.0);
  return out;
}

double* audio_positions(const Segment& s, std::int64_t first, std::int64_t last, double* out) {
  for (std::int64_t row = first; row < last; ++row)
    out = put(out, s.origin + static_cast<double>(row % s.steps), 0.0, row < s.steps ? s.w_low : s.w_high);
  return out;
}

double* grid_positions(const Segment& s, std::int64_t first, std::int64_t last, double* out) {
  const std::vector<double> times = frame_times(s.origin, s.latent_t);
  const std::vector<double> axis_h = grid_axis(s.latent_h, s.latent_h, s.latent_w);
  const std::vector<double> axis_w = grid_axis(s.latent_w, s.latent_h, s.latent_w);
  for (auto row = static_cast<std::size_t>(first); row < static_cast<std::size_t>(last); ++row) {
    const std::size_t line = row / axis_w.size();
    out = put(out, times[line / axis_h.size()], axis_h[line % axis_h.size()], axis_w[row % axis_w.size()]);
  }
  return out;
}

double* segment_positions(const Segment& s, std::int64_t first, std::int64_t last, double* out) {
  if (s.kind == SegmentKind::kText) return text_positions(first, last, out);
  if (s.steps > 0) return audio_positions(s, first, last, out);
  return grid_positions(s, first, last, out);
}

}  // namespace

const char* segment_kind_name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kText:
      return "text";
    case SegmentKind::kCond:
      return "cond";
    case SegmentKind::kCondAudio:
      return "cond_audio";
    case SegmentKind::kRefImage:
      return "ref_img";
    case SegmentKind::kRefAudio:
      return "ref_audio";
    case SegmentKind::kAudio:
      return "audio";
    case SegmentKind::kVideo:
      return "video";
  }
  return "?";
}

Layout::Layout(const JobSpec& job) : job_(job) {
  check_job(job_);
  segments_ = pack(job_);
}

void Layout::positions(std::int64_t start, std::int64_t stop, double* out) const {
  H3S_ASSERT(0 <= start && start <= stop && stop <= tokens());
  for (const Segment& s : segments_) {
    const std::int64_t first = std::max(start, s.start);
    const std::int64_t last = std::min(stop, s.stop);
    if (first < last) out = segment_positions(s, first - s.start, last - s.start, out);
  }
}

std::int64_t align_frames(std::int64_t frames) {
  const std::int64_t past_first = std::max<std::int64_t>(frames, 5) - 5;
  return 5 + (past_first + 16) / 17 * 17;
}

std::int64_t latent_frames(std::int64_t aligned_frames) {
  return aligned_frames <= 5 ? 2 : 5 * ((aligned_frames - 5) / 17) + 2;
}

std::int64_t audio_latent_steps(std::int64_t aligned_frames) {
  const double seconds = static_cast<double>(aligned_frames) / kFramesPerSecond;
  return static_cast<std::int64_t>(std::nearbyint(seconds * kAudioStepsPerSecond));
}

}  // namespace h3s::spec
