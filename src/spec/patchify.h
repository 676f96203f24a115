// Between latents and rows of the packed sequence, on any range of rows.
//
// A latent is [C, T, h, w] (video) or [C, 2, A] (audio), float32, the last axis fastest. Odd h or w is padded
// to even at the far end with the values of the near end (circular); on the way back the padding is dropped.
#pragma once

#include <cstdint>

namespace h3s::spec {

struct VideoShape {
  std::int64_t channels = 0, t = 0, h = 0, w = 0;  // h, w: the tensor's own, before padding

  std::int64_t rows() const { return t * grid_h() * grid_w(); }
  std::int64_t columns() const { return channels * 4; }
  std::int64_t grid_h() const { return (h + 1) / 2; }  // patches along h
  std::int64_t grid_w() const { return (w + 1) / 2; }
  std::int64_t elements() const { return channels * t * h * w; }
};

struct AudioShape {
  std::int64_t channels = 0, steps = 0;

  std::int64_t rows() const { return 2 * steps; }
  std::int64_t columns() const { return channels; }
  std::int64_t elements() const { return channels * 2 * steps; }
};

// Rows [row0, row1) into out[(row1 - row0) * columns]: row (t, y, x), x fastest; column 4c + 2p + q holds
// latent[c][t][2y + p][2x + q].
void patchify_rows(const float* latent, const VideoShape& shape, std::int64_t row0, std::int64_t row1,
                   float* out);

// The inverse: writes the latent values that rows [row0, row1) cover, each exactly once, and no others.
void unpatchify_rows(const float* rows, const VideoShape& shape, std::int64_t row0, std::int64_t row1,
                     float* latent);

// Row s * A + a (stereo channel s, step a), column c holds latent[c][s][a].
void pack_audio_rows(const float* latent, const AudioShape& shape, std::int64_t row0, std::int64_t row1,
                     float* out);
void unpack_audio_rows(const float* rows, const AudioShape& shape, std::int64_t row0, std::int64_t row1,
                       float* latent);

}  // namespace h3s::spec
