// The weight quantiser of asym_w4a8_int8: 4-bit codes into a codebook, groups of 16 columns with an e4m3
// scale relative to a scale of the row.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace h3s::checkpoint {

inline constexpr std::int64_t kW4A8Group = 16;
inline constexpr float kSmallestW4A8Scale = 1e-8f;  // of a group or a row

// The format's fixed levels: nearly those that lose least on a normal distribution whose largest value is 1;
// not symmetric. w4a8_levels.h says when others serve.
inline constexpr std::array<float, 16> kW4A8Codebook{
    -0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f, -0.155210f, -0.050720f,
    0.052541f,  0.156985f,  0.265284f,  0.379533f,  0.502636f,  0.638953f,  0.794876f,  0.980671f};

// Draws the codes of a row of a layer, rather than taking the nearest: see draw.h.
struct W4A8Draw {
  std::uint32_t seed = 0;       // 0: nearest
  std::uint64_t first_idx = 0;  // of the row's first element in its layer
};

// row [K] of rotated bf16 numbers; codes [K], relative [K / 16] e4m3 codes; returns the row's scale. All in
// float: per group, a scale from the largest magnitude, codes of the nearest level, and twice the scale that
// fits those codes best and codes anew; then the row's scale from the largest product, relative scales
// rounded to e4m3, and final codes of the nearest of the int8 levels that decoding will make. Ties go to the
// lower level. Where codes are drawn, the last ones are the upper neighbour if the value is above lower + u .
// (upper - lower). `codebook` ascends.
float quantize_w4a8_row(std::span<const float> row, std::span<std::int8_t> codes,
                        std::span<std::uint8_t> relative,
                        const std::array<float, 16>& codebook = kW4A8Codebook, const W4A8Draw& draw = {});

}  // namespace h3s::checkpoint
