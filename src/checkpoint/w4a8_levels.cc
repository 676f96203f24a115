#include "checkpoint/w4a8_levels.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "checkpoint/quantize_int8.h"
#include "checkpoint/quantize_w4a8.h"

namespace h3s::checkpoint {
namespace {

constexpr int kIterations = 25;
constexpr double kMostKurtosis = -0.1;
constexpr float kSmallestScale = 1e-8f;
constexpr double kSmallestDeviation = 1e-9;  // a sample of equal values has no kurtosis

// Whole groups, rotated as the quantiser does: each value rounded to bf16 once.
void add_normalised(std::span<const BF16> values, std::int64_t rotate_group, std::vector<float>& sample) {
  std::vector<float> rotated(values.size());
  std::transform(values.begin(), values.end(), rotated.begin(), [](BF16 v) { return to_float(v); });
  rotate_row(rotated, rotate_group);
  for (float& v : rotated) v = round_to<BF16>(v);
  for (auto group = rotated.begin(); group != rotated.end(); group += kW4A8Group) {
    float largest = kSmallestScale;
    std::for_each(group, group + kW4A8Group, [&](float v) { largest = std::max(largest, std::abs(v)); });
    std::transform(group, group + kW4A8Group, std::back_inserter(sample),
                   [largest](float v) { return v / largest; });
  }
}

double excess_kurtosis(std::span<const float> sample) {
  const auto count = static_cast<double>(sample.size());
  double mean = 0, squares = 0, fourths = 0;
  for (const float v : sample) mean += v / count;
  for (const float v : sample) squares += (v - mean) * (v - mean);
  const double deviation = std::sqrt(squares / std::max(1.0, count - 1)) + kSmallestDeviation;
  for (const float v : sample) fourths += std::pow((v - mean) / deviation, 4) / count;
  return fourths - 3;
}

// Quantile `share` of a sorted sample, between neighbours in proportion.
float quantile(std::span<const float> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const float low = sorted[below], high = sorted[std::min(below + 1, sorted.size() - 1)];
  return static_cast<float>(low + (at - static_cast<double>(below)) * (double{high} - low));
}

}  // namespace

std::vector<float> w4a8_sample(std::int64_t n, std::int64_t k, std::int64_t rotate_group,
                               const ReadRow& read) {
  H3S_ASSERT(rotate_group > 0 && rotate_group % kW4A8Group == 0 && k % rotate_group == 0);
  const std::int64_t groups_a_row = k / rotate_group, groups = n * groups_a_row;
  const std::int64_t taken = std::min(groups, kLevelSample / rotate_group);
  std::vector<float> sample;
  sample.reserve(static_cast<std::size_t>(taken * rotate_group));
  std::vector<BF16> row(static_cast<std::size_t>(k));
  std::int64_t row_idx = -1;
  for (std::int64_t i = 0; i < taken; ++i) {
    const std::int64_t group = i * groups / taken;
    if (row_idx != group / groups_a_row) read(row_idx = group / groups_a_row, row);
    add_normalised(
        std::span<const BF16>(row).subspan(static_cast<std::size_t>(group % groups_a_row * rotate_group),
                                           static_cast<std::size_t>(rotate_group)),
        rotate_group, sample);
  }
  return sample;
}

std::array<float, 16> fit_levels(std::vector<float> sample) {
  H3S_ASSERT(!sample.empty());
  std::sort(sample.begin(), sample.end());
  std::vector<double> sums(sample.size() + 1, 0.0);  // of the values before
  for (std::size_t i = 0; i < sample.size(); ++i) sums[i + 1] = sums[i] + sample[i];
  std::array<float, 16> levels;
  for (std::size_t i = 0; i < levels.size(); ++i)
    levels[i] = quantile(sample, static_cast<double>(i) / (levels.size() - 1));
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    std::array<float, 16> next = levels;
    std::size_t first = 0;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      auto end = sample.end();
      if (i + 1 < levels.size())
        end = std::upper_bound(sample.begin(), sample.end(), (double{levels[i]} + levels[i + 1]) / 2);
      const auto last = static_cast<std::size_t>(end - sample.begin());
      if (last > first)
        next[i] = static_cast<float>((sums[last] - sums[first]) / static_cast<double>(last - first));
      first = last;
    }
    levels = next;
  }
  return levels;
}

std::array<float, 16> w4a8_levels(std::vector<float> sample) {
  return excess_kurtosis(sample) > kMostKurtosis ? fit_levels(std::move(sample)) : kW4A8Codebook;
}

}  // namespace h3s::checkpoint
