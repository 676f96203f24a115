#include "spec/patchify.h"

namespace h3s::spec {
namespace {

// Where the four values of a patch lie in their frame of one channel, in the order of the columns. Past the
// end of an odd side: where they come from (wrapped), and that they are padding.
struct Patch {
  std::int64_t offset[4];
  bool padding[4];
};

Patch patch_at(const VideoShape& shape, std::int64_t y, std::int64_t x) {
  Patch patch;
  for (std::int64_t k = 0; k < 4; ++k) {
    const std::int64_t h = 2 * y + k / 2, w = 2 * x + k % 2;
    patch.padding[k] = h >= shape.h || w >= shape.w;
    patch.offset[k] = h % shape.h * shape.w + w % shape.w;
  }
  return patch;
}

// Calls visit(index in rows, element of the latent, padding) for every value of the rows.
template <typename Visit>
void for_each_value(const VideoShape& shape, std::int64_t row0, std::int64_t row1, const Visit& visit) {
  std::int64_t i = 0;
  for (std::int64_t row = row0; row < row1; ++row) {
    const std::int64_t line = row / shape.grid_w(), t = line / shape.grid_h();
    const Patch patch = patch_at(shape, line % shape.grid_h(), row % shape.grid_w());
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      const std::int64_t frame = (c * shape.t + t) * shape.h * shape.w;
      for (std::int64_t k = 0; k < 4; ++k) visit(i++, frame + patch.offset[k], patch.padding[k]);
    }
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
  for_each_value(shape, row0, row1,
                 [&](std::int64_t i, std::int64_t element, bool) { out[i] = latent[element]; });
}

void unpatchify_rows(const float* rows, const VideoShape& shape, std::int64_t row0, std::int64_t row1,
                     float* latent) {
  for_each_value(shape, row0, row1, [&](std::int64_t i, std::int64_t element, bool padding) {
    if (!padding) latent[element] = rows[i];
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
