// The packed sequence of one job: segments, position ids, timesteps and modulation rows.
//
// Order: [text | keyframe conditions | references | target audio | target video]. Pure functions of the
// sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/row_ops.h"
#include "spec/model_spec.h"

namespace h3s::spec {

struct Keyframe {
  std::int64_t frame_idx = 0;  // pixel frame the picture or clip starts at
  std::int64_t latent_t = 0;   // latent frames; 0: no picture
  std::int64_t audio_t = 0;    // audio latent steps; 0: no audio
};

enum class ReferenceKind { kImage, kAudio, kVideo };

struct Reference {
  ReferenceKind kind = ReferenceKind::kImage;
  std::int64_t latent_t = 0, latent_h = 0, latent_w = 0;  // image: latent_t = 1; audio: all 0
  std::int64_t audio_t = 0;                               // audio reference, or a video's sound track
};

// What the packed layout depends on. Latent sizes are the tensors' own; odd h and w are padded to even.
struct JobSpec {
  std::int64_t text_len = 0;
  std::int64_t latent_t = 0, latent_h = 0, latent_w = 0;
  std::int64_t audio_t = 0;
  std::vector<Keyframe> keyframes;
  std::vector<Reference> references;
  std::vector<std::int64_t> text_tags;  // empty: every text token has tag 1; else one tag (0..2) a token
  // Where keyframe times start when references are given too: 0.33 counts from the text alone, the later form
  // adds the references' advances. They differ only when both are present.
  bool keyframes_after_references = false;
};

enum class SegmentKind { kText, kCond, kCondAudio, kRefImage, kRefAudio, kAudio, kVideo };
const char* segment_kind_name(SegmentKind kind);  // "text", "cond", "cond_audio", ...

struct Segment {
  SegmentKind kind = SegmentKind::kText;
  std::int64_t start = 0, stop = 0;  // rows of the packed sequence
  // Rows of video kinds: latent grid after padding; of audio kinds: steps (rows = 2 x steps).
  std::int64_t latent_t = 0, latent_h = 0, latent_w = 0, steps = 0;
  double origin = 0;             // time of the first row
  double w_low = 0, w_high = 0;  // w coordinate of the two stereo channels of audio kinds
};

class Layout {
 public:
  // Throws Error(kInvalidArgument) for sizes that make no sequence (empty text, zero latents, odd reference
  // grids, tags of the wrong count or value).
  explicit Layout(const JobSpec& job);

  const JobSpec& job() const { return job_; }
  const std::vector<Segment>& segments() const { return segments_; }
  std::int64_t tokens() const { return segments_.back().stop; }
  const Segment& audio() const { return segments_[segments_.size() - 2]; }
  const Segment& video() const { return segments_.back(); }

  // Position ids (t, h, w) of rows [start, stop) into out[(stop - start) * 3].
  void positions(std::int64_t start, std::int64_t stop, double* out) const;

 private:
  JobSpec job_;
  std::vector<Segment> segments_;
};

// Timesteps of one step and the modulation row of every segment.
struct Timesteps {
  double t_video = 0, t_audio = 0;
  double sigma_video = 1, sigma_audio = 1;  // what the network sees; audio on its own shift
  std::vector<double> unique;               // ascending; one row of t_emb each
  std::vector<kernels::ModSegment> segments;
  std::int64_t video_row = 0, audio_row = 0;  // rows of `unique` for the final layer
};

struct TimestepOptions {
  double shift_video = kShiftVideo, shift_audio = kShiftAudio;
  double visual_aug = kVisualConditionTimestep, audio_aug = kAudioConditionTimestep;
  // The sampler hands 1000 sigma; a GPU divides by multiplying with float(1/1000), a CPU divides.
  bool reciprocal_division = true;
  // Later stock computes the shift in binary64 instead of step by step in binary32.
  bool double_precision = false;
};

Timesteps make_timesteps(const Layout& layout, float sigma, const TimestepOptions& options);

// The sigmas of both streams in binary32, step by step whatever `double_precision` says: what the audio carry
// of the outer forward is computed from.
struct StreamSigmas {
  float video = 1, audio = 1;
};
StreamSigmas stream_sigmas(float sigma, const TimestepOptions& options);

// Pixel sizes to latent sizes, as stock aligns them.
std::int64_t align_frames(std::int64_t frames);  // up to 17k + 5, at least 5
std::int64_t latent_frames(std::int64_t aligned_frames);
std::int64_t audio_latent_steps(std::int64_t aligned_frames);  // round-half-even(F / 24 * 40)

}  // namespace h3s::spec
