// Timesteps to the vectors that AdaLN projects.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/model_spec.h"

namespace h3s::model {

// Curve form: row t of the result interpolates the table [grid, columns] at clamp(t, 0, 1) * (grid - 1), in
// f32 with one fused multiply-add: d = f(b - a); w < 0.5: a + w d, else b - (1 - w) d.
std::vector<float> curve_embedding(std::span<const double> timesteps, const float* table, std::int64_t grid,
                                   std::int64_t columns);

// Full form, input of time_embedder.proj_in: [n cosines | n sines] of t * exp(-ln(10000) i / n), n = width /
// 2, f32.
std::vector<float> sinusoid_embedding(std::span<const double> timesteps, std::int64_t width);

}  // namespace h3s::model
