#include "spec/patchify.h"

namespace h3s::spec {
namespace {

// Calls visit(index in rows, h, w of the padded frame, offset of the frame) for every value of the rows.
template <typename Visit>
void for_each_value(const VideoShape& shape, std::int64_t row0, std::int64_t row1, const Visit& visit) {
  const std::int64_t frame = shape.h * shape.w;
  std::int64_t i = 0;
  for (std::int64_t row = row0; row < row1; ++row) {
    const std::int64_t x = row % shape.grid_w();
    const std::int64_t y = row / shape.grid_w() % shape.grid_h();
    const std::int64_t t = row / shape.grid_w() / shape.grid_h();
    for (std::int64_t c = 0; c < shape.channels; ++c)
      for (std::int64_t p = 0; p < 2; ++p)
        for (std::int64_t q = 0; q < 2; ++q) visit(i++, 2 * y + p, 2 * x + q, (c * shape.t + t) * frame);
  }
}

template <typename Visit>
void for_each_sample(const AudioShape& shape, std::int64_t row0, std::int64_t row1, const Visit& visit) {
  std::int64_t i = 0;
  for (std::int64_t row = row0; row < row1; ++row)
    for (std::int64_t c = 0; c < shape.channels; ++c) visit(i++, c * shape.rows() + row);
}

}  // namespace

void patchify_rows(const float* latent, const VideoShape& shape, std::int64_t row0, std::int64_t row1,
                   float* out) {
  for_each_value(shape, row0, row1, [&](std::int64_t i, std::int64_t h, std::int64_t w, std::int64_t frame) {
    out[i] = latent[frame + h % shape.h * shape.w + w % shape.w];
  });
}

void unpatchify_rows(const float* rows, const VideoShape& shape, std::int64_t row0, std::int64_t row1,
                     float* latent) {
  for_each_value(shape, row0, row1, [&](std::int64_t i, std::int64_t h, std::int64_t w, std::int64_t frame) {
    if (h < shape.h && w < shape.w) latent[frame + h * shape.w + w] = rows[i];
  });
}

void pack_audio_rows(const float* latent, const AudioShape& shape, std::int64_t row0, std::int64_t row1,
                     float* out) {
  for_each_sample(shape, row0, row1, [&](std::int64_t i, std::int64_t element) { out[i] = latent[element]; });
}

void unpack_audio_rows(const float* rows, const AudioShape& shape, std::int64_t row0, std::int64_t row1,
                       float* latent) {
  for_each_sample(shape, row0, row1,
                  [&](std::int64_t i, std::int64_t element) { latent[element] = rows[i]; });
}

}  // namespace h3s::spec
