// Largest magnitudes, on the bits: they order like integers, with NaN above all, and an integer maximum
// vectorises where a float one may not.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace h3s {

// Of two magnitudes.
inline float larger_magnitude(float a, float b) {
  return std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b)));
}

// Of v[n]; 0 of none, NaN when one is among them.
inline float largest_magnitude(const float* v, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFFu;
    largest = largest < u ? u : largest;
  }
  return std::bit_cast<float>(largest);
}

}  // namespace h3s
