#include "checkpoint/quantize_w4a8.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/float8.h"
#include "checkpoint/draw.h"

namespace h3s::checkpoint {
namespace {

constexpr float kSmallest = 1e-8f;
constexpr std::size_t kGroup = kW4A8Group;
constexpr int kRefinements = 2;

using Levels = std::array<float, 16>;

// The distance is carried along: GCC 12 at -O3 makes wrong vector code of a minimum that reads
// levels[best] again.
std::size_t nearest(const Levels& levels, float x) {
  std::size_t best = 0;
  float least = std::abs(x - levels[0]);
  for (std::size_t i = 1; i < levels.size(); ++i) {
    const float distance = std::abs(x - levels[i]);
    if (distance < least) {
      least = distance;
      best = i;
    }
  }
  return best;
}

// The order of eight-wide vector code: halves of the group are added, then the eight sums in order.
float group_dot(const float* a, const float* b) {
  float sum = 0;
  for (std::size_t j = 0; j < kGroup / 2; ++j) sum += a[j] * b[j] + a[j + kGroup / 2] * b[j + kGroup / 2];
  return sum;
}

struct Group {
  float scale;
  std::array<float, kGroup> levels;  // of the codes chosen
};

Group fit(const Levels& codebook, const float* w) {
  Group group{kSmallest, {}};
  for (std::size_t i = 0; i < kGroup; ++i) group.scale = std::max(group.scale, std::abs(w[i]));
  const auto assign = [&] {
    for (std::size_t i = 0; i < kGroup; ++i)
      group.levels[i] = codebook[nearest(codebook, w[i] / group.scale)];
  };
  assign();
  for (int r = 0; r < kRefinements; ++r) {
    const float square = std::max(group_dot(group.levels.data(), group.levels.data()), kSmallest);
    group.scale = std::max(group_dot(w, group.levels.data()) / square, kSmallest);
    assign();
  }
  return group;
}

// The neighbour of x that u chooses; of equal levels the first.
std::size_t drawn(const Levels& levels, float x, float u) {
  const auto first = [&](float level) {
    return static_cast<std::size_t>(std::lower_bound(levels.begin(), levels.end(), level) - levels.begin());
  };
  const auto above = std::upper_bound(levels.begin(), levels.end(), x);
  if (above == levels.begin()) return 0;
  const float lower = *(above - 1);
  if (above == levels.end() || !(x > lower + u * (*above - lower))) return first(lower);
  return first(*above);
}

}  // namespace

float quantize_w4a8_row(std::span<const float> row, std::span<std::int8_t> codes,
                        std::span<std::uint8_t> relative, const std::array<float, 16>& codebook,
                        const W4A8Draw& draw) {
  H3S_ASSERT(codes.size() == row.size() && relative.size() * kGroup == row.size());
  std::vector<float> scales(relative.size());
  float largest = 0;
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const Group group = fit(codebook, row.data() + g * kGroup);
    scales[g] = group.scale;
    for (const float level : group.levels) largest = std::max(largest, std::abs(level * group.scale));
  }
  const float channel = std::max(largest / 127.0f, kSmallest);
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const float rounded = round_small<E4M3>(scales[g] / channel);
    relative[g] = small_code<E4M3>(rounded);
    Levels levels;
    for (std::size_t i = 0; i < levels.size(); ++i)
      levels[i] = std::clamp(std::nearbyint(codebook[i] * rounded), -127.0f, 127.0f);
    for (std::size_t i = g * kGroup; i < (g + 1) * kGroup; ++i)
      codes[i] = static_cast<std::int8_t>(
          draw.seed == 0 ? nearest(levels, row[i] / channel)
                         : drawn(levels, row[i] / channel, checkpoint::draw(draw.seed, draw.first_idx + i)));
  }
  return channel;
}

}  // namespace h3s::checkpoint
