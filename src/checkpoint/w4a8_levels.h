// The 16 levels of an asym_w4a8_int8 layer: the format's own, or where its weights need others, levels fitted
// to a sample of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "checkpoint/encode_layer.h"

namespace h3s::checkpoint {

// Values in a sample, at the most.
inline constexpr std::int64_t kLevelSample = 300000;

// Rotated weights of [n, k], each divided by the largest magnitude of its group of 16: all of them, or of a
// larger matrix whole rotation groups at even distances, kLevelSample values at the most. `rotate_group` is a
// multiple of 16 that divides k.
std::vector<float> w4a8_sample(std::int64_t n, std::int64_t k, std::int64_t rotate_group,
                               const ReadRow& read);

// Lloyd's iteration, 25 times from quantiles at even distances: the values nearest to a level, ties to the
// lower, give their mean as its next place; one that is nearest to none stays. Ascending; two may be equal.
// The sample is not empty.
std::array<float, 16> fit_levels(std::vector<float> sample);

// kW4A8Codebook, which suits groups of normal values; fit_levels() for a sample whose excess kurtosis is
// above -0.1. Groups of 16 normal values have about -0.5.
std::array<float, 16> w4a8_levels(std::vector<float> sample);

}  // namespace h3s::checkpoint
