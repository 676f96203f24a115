// Stochastic rounding of weights that are quantised again after a LoRA was merged into them: which of the two
// neighbours a value becomes is drawn by a counter, so that a layer always becomes the same codes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/float16.h"
#include "base/float8.h"

namespace h3s::checkpoint {

// CRC-32 (reflected polynomial EDB88320, first and last inverted) of a key: the seed of its layer.
inline std::uint32_t draw_seed(std::string_view key) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : key) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

// In [0, 1), for element `idx` of a matrix, row by row.
inline float draw(std::uint32_t seed, std::uint64_t idx) {
  const std::uint64_t counter = idx + seed;
  const std::uint32_t folded =
      static_cast<std::uint32_t>(counter) ^ static_cast<std::uint32_t>(counter >> 32);
  const std::uint32_t state = folded * 747796405u + 2891336453u;
  const std::uint32_t word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
  return static_cast<float>(((word >> 22) ^ word) >> 8) * 0x1p-24f;
}

// A neighbour of x among the numbers of format F, the upper one in magnitude with the chance of its nearness:
// u is drawn. Beyond the largest, the largest. NaN is the caller's to exclude.
template <typename F>
inline float drawn_small(float x, float u) {
  const float magnitude = std::min(std::fabs(x), F::kLargest);
  const bool normal = magnitude >= std::ldexp(1.0f, F::kMinExponent);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) & 0x7F800000u);
  const float step = normal ? power * std::ldexp(1.0f, -F::kMantissaBits) : F::kStep;
  return std::copysign(std::min(std::floor(magnitude / step + u) * step, F::kLargest), x);
}

}  // namespace h3s::checkpoint
