// The scales of block formats, shared by weights and activations.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/float8.h"

namespace h3s {

// mxfp8: the least e with 2^e >= largest / 448, from -127 (also for a block of zeros) to 127 (also for NaN).
inline int mx_exponent(float largest) {
  const float ratio = std::max(largest / E4M3::kLargest, 0x1p-127f);  // the first when that is NaN
  const std::uint32_t u = std::bit_cast<std::uint32_t>(ratio);
  const int floor = static_cast<int>(u >> 23) - 127;  // of a subnormal -127, and 2^-127 is one
  const bool power = (u & 0x7FFFFFu) == (floor == -127 ? 0x400000u : 0u);
  return std::min(power ? floor : floor + 1, 127);
}

// nvfp4: the e4m3 scale of a block whose largest magnitude is given, under the tensor's scale g; 0 when the
// block's numbers are too small for one, NaN for a block with one. Above 0, a block scale times g is what
// e2m1 codes are multiples of.
inline float nvfp4_block_scale(float largest, float g) {
  if (!(g > 0)) return 0;
  return round_small<E4M3>((largest / E2M1::kLargest) / g);
}

// What values are multiplied with before they become e2m1 codes; 0 for a block without scale.
inline float nvfp4_multiplier(float block_scale, float g) {
  const float step = block_scale * g;
  return step > 0 ? 1.0f / step : 0.0f;
}

}  // namespace h3s
