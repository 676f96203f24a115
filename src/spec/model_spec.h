// The MiniMax-H3 network as numbers.
#pragma once

#include <cstdint>

namespace h3s::spec {

inline constexpr std::int64_t kPatch = 2;            // pixels of latent per patch along h and w; 1 along t
inline constexpr std::int64_t kModalities = 3;       // modulation tags: video-like 0, text 1, audio-like 2
inline constexpr std::int64_t kModulationParts = 6;  // shift, scale, gate of attention and of the MLP
inline constexpr std::int64_t kRopeFrequencies = 16;
inline constexpr double kShiftVideo = 12.0;
inline constexpr double kShiftAudio = 3.0;
inline constexpr double kVisualConditionTimestep = 0.999;
inline constexpr double kAudioConditionTimestep = 1.0;

struct ModelSpec {
  std::int64_t hidden = 5376;       // D
  std::int64_t layers = 50;         // DiT blocks
  std::int64_t refiner_layers = 2;  // token refiner blocks
  std::int64_t heads = 56;
  std::int64_t head_dim = 128;
  std::int64_t ffn = 14336;  // SwiGLU width
  std::int64_t video_channels = 24;
  std::int64_t audio_channels = 32;
  std::int64_t text_dim = 5120;
  std::int64_t timestep_dim = 256;  // sinusoid width; full form only
  std::int64_t time_hidden = 5376;  // full form only
  std::int64_t time_dim = 2688;     // width of the time embedding; curve form: columns of the curve table
  std::int64_t curve_grid = 0;      // rows of the curve table; 0 = full form

  bool curve() const { return curve_grid > 0; }
  std::int64_t inner() const { return heads * head_dim; }                        // attention width
  std::int64_t patch_width() const { return video_channels * kPatch * kPatch; }  // columns of a video row
  bool operator==(const ModelSpec&) const = default;
};

}  // namespace h3s::spec
