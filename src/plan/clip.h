// A clip as people describe it, in pixels, frames and seconds, as a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/layout.h"

namespace h3s::plan {

struct Clip {
  std::int64_t width = 0, height = 0;   // pixels, multiples of 16
  std::int64_t frames = 0;              // pixel frames, 24 a second; made up to 17 k + 5
  std::optional<double> audio_seconds;  // absent: as long as the video
  std::int64_t text_tokens = 500;
  std::int64_t keyframes = 0;  // pictures of the clip's size
  std::vector<spec::Reference> references;
};

inline constexpr std::int64_t kLatentPixels = 16;  // a latent is this many pixels wide and high

// Throws Error(kInvalidArgument) for sizes that make no sequence.
spec::JobSpec job_of(const Clip& clip);

// "image=1024x768", "video=640x480x124" (frames), "audio=5" (seconds). Throws Error(kInvalidArgument).
spec::Reference parse_reference(const std::string& text);

double seconds_of(std::int64_t frames);

}  // namespace h3s::plan
