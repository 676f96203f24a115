// The quantiser of W4A8 weights is its definition, written in plain loops here, bit for bit on every
// instruction set.
#include "checkpoint/quantize_w4a8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/float8.h"
#include "checkpoint/draw.h"
#include "each_target.h"

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

float plain_row(std::span<const float> row, std::span<std::int8_t> codes, std::span<std::uint8_t> relative,
                const Levels& codebook, const W4A8Draw& draw) {
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

void expect_plain(const std::vector<float>& row, const Levels& codebook, const W4A8Draw& draw,
                  const std::string& what) {
  std::vector<std::int8_t> want(row.size());
  std::vector<std::uint8_t> want_scales(row.size() / kGroup);
  const float channel = plain_row(row, want, want_scales, codebook, draw);
  for_each_target([&] {
    std::vector<std::int8_t> got(row.size(), 99);
    std::vector<std::uint8_t> got_scales(row.size() / kGroup, 99);
    EXPECT_EQ(quantize_w4a8_row(row, got, got_scales, codebook, draw), channel) << what;
    EXPECT_EQ(got_scales, want_scales) << what;
    EXPECT_EQ(got, want) << what;
  });
}

// Numbers of a network's rows: bf16, groups of very different size, some of zeros.
std::vector<float> uneven_row(std::size_t groups, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(groups * kGroup);
  for (std::size_t g = 0; g < groups; ++g) {
    const float size = g % 7 == 3 ? 0.0f : std::ldexp(0.02f, -static_cast<int>(g * g % 23));
    for (std::size_t i = 0; i < kGroup; ++i) row[g * kGroup + i] = round_to<BF16>(size * normal(random));
  }
  return row;
}

TEST(QuantizeW4A8, NearestAndDrawnCodesAreThoseOfPlainLoops) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed)
    for (const W4A8Draw& draw :
         {W4A8Draw{}, W4A8Draw{seed * 2654435761u, seed * 4096u}, W4A8Draw{7, ~std::uint64_t{0} - 20}})
      expect_plain(uneven_row(1 + seed * 3, seed), kW4A8Codebook, draw, "seed " + std::to_string(seed));
}

// Levels that become equal, values on levels, between them and outside.
TEST(QuantizeW4A8, TiesAndEdges) {
  Levels coarse;
  for (std::size_t i = 0; i < coarse.size(); ++i)
    coarse[i] = static_cast<float>(static_cast<int>(i) / 2 - 4) / 4;
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(static_cast<float>(i - 32) / 32);
  for (int i = 0; i < 16; ++i) row.push_back(0);
  for (int i = 0; i < 16; ++i) row.push_back(i == 5 ? 100.0f : static_cast<float>(i) / 1024);
  for (const std::uint32_t seed : {0u, 1u, 99u}) {
    expect_plain(row, coarse, {seed, 0}, "coarse levels");
    expect_plain(row, kW4A8Codebook, {seed, 0}, "fixed levels");
    expect_plain(std::vector<float>(32, 0.0f), kW4A8Codebook, {seed, 0}, "zeros");
  }
}

}  // namespace
}  // namespace h3s::checkpoint
