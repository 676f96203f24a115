#include "model/time_embedding.h"

#include <algorithm>
#include <cmath>

namespace h3s::model {
namespace {

float interpolate(float a, float b, float w) {
  const float d = b - a;
  return w < 0.5f ? std::fma(w, d, a) : std::fma(-(1.0f - w), d, b);
}

}  // namespace

std::vector<float> curve_embedding(std::span<const double> timesteps, const float* table, std::int64_t grid,
                                   std::int64_t columns) {
  std::vector<float> rows;
  for (const double t : timesteps) {
    const float p = std::clamp(static_cast<float>(t), 0.0f, 1.0f) * static_cast<float>(grid - 1);
    const std::int64_t i = std::min(static_cast<std::int64_t>(std::floor(p)), grid - 2);
    const float w = p - static_cast<float>(i);
    const float* a = table + i * columns;
    for (std::int64_t c = 0; c < columns; ++c) rows.push_back(interpolate(a[c], a[columns + c], w));
  }
  return rows;
}

std::vector<float> sinusoid_embedding(std::span<const double> timesteps, std::int64_t width) {
  const std::int64_t n = width / 2;
  std::vector<float> rows(timesteps.size() * static_cast<std::size_t>(width));
  float* row = rows.data();
  for (const double t : timesteps) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float exponent =
          static_cast<float>(-std::log(10000.0)) * static_cast<float>(i) / static_cast<float>(n);
      const float frequency = static_cast<float>(std::exp(static_cast<double>(exponent)));
      const double angle = static_cast<double>(static_cast<float>(t) * frequency);
      row[i] = static_cast<float>(std::cos(angle));
      row[n + i] = static_cast<float>(std::sin(angle));
    }
    row += width;
  }
  return rows;
}

}  // namespace h3s::model
