// The linear layers of a block, K as in the model; N cut to at most 5376 (whole tiles, so the rate is that of
// the full width) to keep a run in seconds.
#pragma once

#include <array>
#include <cstdint>

namespace h3s::bench {

struct LayerShape {
  const char* name;
  std::int64_t n, k;
};

inline constexpr std::array<LayerShape, 4> kBlockLayers{{
    {"qkv_proj", 5376, 5376},  // N 21504 in the model
    {"out_proj", 5376, 7168},
    {"fc1", 5376, 5376},  // N 28672 in the model
    {"fc2", 5376, 14336},
}};

// What the linear layers promise beside the comparator; few rows have no promise, they wait for memory.
inline double target_ratio(std::int64_t m) {
  return m >= 256 ? 0.5 : 0.0;
}

}  // namespace h3s::bench
