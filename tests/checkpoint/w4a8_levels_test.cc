// The levels of W4A8 layers: when they are fitted, to what, and what that gains.
#include "checkpoint/w4a8_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/float8.h"
#include "checkpoint/quantize_int8.h"
#include "checkpoint/quantize_w4a8.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kRotateGroup = 256;

struct Matrix {
  std::int64_t n, k;
  std::vector<BF16> values;

  ReadRow reader() const {
    return [this](std::int64_t row, std::span<BF16> out) {
      std::copy_n(values.begin() + row * k, k, out.begin());
    };
  }
  std::vector<float> sample() const { return w4a8_sample(n, k, kRotateGroup, reader()); }
};

// Of which, rotated, value(normal) comes out; the rotation is its own inverse.
template <typename Value>
Matrix rotated_matrix(std::int64_t n, std::int64_t k, Value value) {
  Matrix matrix{n, k, {}};
  std::mt19937_64 engine(8);
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<std::size_t>(k));
  for (std::int64_t r = 0; r < n; ++r) {
    for (float& v : row) v = value(normal(engine));
    rotate_row(row, kRotateGroup);
    for (const float v : row) matrix.values.push_back(to_bf16(v));
  }
  return matrix;
}

float identity(float v) {
  return v;
}
float heavy(float v) {  // a few large ones among many small ones
  return v * v * v;
}

// Relative RMS error of the rotated matrix in W4A8.
double error(const Matrix& matrix, const std::array<float, 16>& levels) {
  const auto k = static_cast<std::size_t>(matrix.k);
  std::vector<float> row(k);
  std::vector<std::int8_t> codes(k);
  std::vector<std::uint8_t> relative(k / kW4A8Group);
  double lost = 0, whole = 0;
  for (std::int64_t r = 0; r < matrix.n; ++r) {
    for (std::size_t i = 0; i < k; ++i) row[i] = to_float(matrix.values[static_cast<std::size_t>(r) * k + i]);
    rotate_row(row, kRotateGroup);
    for (float& v : row) v = round_to<BF16>(v);
    const float channel = quantize_w4a8_row(row, codes, relative, levels);
    for (std::size_t i = 0; i < k; ++i) {
      const float level = levels[static_cast<std::size_t>(codes[i])];
      const float decoded =
          std::clamp(std::nearbyint(level * e4m3_value(relative[i / kW4A8Group])), -127.0f, 127.0f);
      lost += std::pow(row[i] - double{decoded} * channel, 2);
      whole += std::pow(row[i], 2);
    }
  }
  return std::sqrt(lost / whole);
}

TEST(W4A8Levels, NormalWeightsKeepTheFormatsOwn) {
  const Matrix matrix = rotated_matrix(256, 1024, identity);
  EXPECT_EQ(w4a8_levels(matrix.sample()), kW4A8Codebook);
  // And lose nothing by it: a fit has nearly the same error.
  const double fixed = error(matrix, kW4A8Codebook), fitted = error(matrix, fit_levels(matrix.sample()));
  EXPECT_NEAR(fitted / fixed, 1, 0.02) << fixed;
}

TEST(W4A8Levels, HeavyTailsGetTheirOwn) {
  const Matrix matrix = rotated_matrix(256, 1024, heavy);
  const auto levels = w4a8_levels(matrix.sample());
  EXPECT_NE(levels, kW4A8Codebook);
  EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
  const double fixed = error(matrix, kW4A8Codebook), fitted = error(matrix, levels);
  EXPECT_LT(fitted, 0.9 * fixed) << fixed;
}

// Sixteen heaps of values, of different sizes: the levels are where they are.
TEST(W4A8Levels, HeapsAreFound) {
  std::array<float, 16> places;
  std::vector<float> sample;
  for (int i = 0; i < 16; ++i) {
    places[static_cast<std::size_t>(i)] = static_cast<float>(i - 7) / 8;
    sample.insert(sample.end(), 10, places[static_cast<std::size_t>(i)]);
  }
  std::shuffle(sample.begin(), sample.end(), std::mt19937(3));
  EXPECT_EQ(fit_levels(sample), places);
}

TEST(W4A8Levels, DegenerateSamples) {
  std::array<float, 16> zeros{};
  EXPECT_EQ(fit_levels(std::vector<float>(64, 0.0f)), zeros);
  EXPECT_EQ(w4a8_levels(std::vector<float>(64, 0.0f)), kW4A8Codebook);
  std::vector<float> one_of_many(10000, 0.0f);
  one_of_many[77] = 1;
  const auto levels = w4a8_levels(one_of_many);
  EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
  EXPECT_EQ(levels.front(), 0.0f);
  EXPECT_EQ(levels.back(), 1.0f);
}

TEST(W4A8Levels, SamplesAreBoundedAndReachEveryPart) {
  Matrix small{3, 512, std::vector<BF16>(3 * 512, to_bf16(0.0f))};
  small.values[2 * 512 + 511] = to_bf16(1);
  const std::vector<float> all = small.sample();
  EXPECT_EQ(all.size(), 3u * 512u);
  EXPECT_EQ(std::count(all.begin(), all.end(), 0.0f), 3 * 512 - kRotateGroup);

  constexpr std::int64_t kN = 1500, kK = 512;
  std::set<std::int64_t> rows;
  const auto sample = w4a8_sample(kN, kK, kRotateGroup, [&](std::int64_t row, std::span<BF16> out) {
    EXPECT_TRUE(rows.insert(row).second) << "read twice";
    std::fill(out.begin(), out.end(), to_bf16(1));
  });
  EXPECT_EQ(std::ssize(sample), kLevelSample / kRotateGroup * kRotateGroup);
  EXPECT_EQ(*rows.begin(), 0);
  EXPECT_GE(*rows.rbegin(), kN - 2);
  EXPECT_GE(std::ssize(rows), kLevelSample / kRotateGroup / 2);
}

}  // namespace
}  // namespace h3s::checkpoint
