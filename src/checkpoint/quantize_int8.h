// int8_tensorwise weights: the quantiser that makes them and the inverse, in the portable form of the format.
//
// Rotation of a group of G = 4^m columns: x H / sqrt(G), H the m-fold Kronecker power of
// [[1,1,1,-1],[1,1,-1,1],[1,-1,1,1],[-1,1,1,1]]; symmetric and orthogonal, so it is its own inverse. Here:
// float stages of stride 1, 4, 16, ...; each replaces (x0,x1,x2,x3) by ((s+e)/2, (s-e)/2, (d+f)/2, (f-d)/2)
// with s = x0+x1, d = x0-x1, e = x2-x3, f = x2+x3. Halving is exact; sums round.
#pragma once

#include <cstdint>
#include <span>

#include "base/float16.h"

namespace h3s::checkpoint {

// Rotates every group of `group` values of the row in place; `group` is a power of 4 that divides row.size(),
// or 0 for nothing.
void rotate_row(std::span<float> row, std::int64_t group);

// One row [K] of a bf16 weight to codes [K]; returns the scale. `scratch` holds K values.
//   v = bf16(rotated w); a = max |v|; s = max(a / 127, 1e-30); code = clamp(rne(bf16(v / bf16(s))), -128,
//   127).
// Rows are independent. Finite inputs only. With a `draw_seed` other than 0 the code is drawn instead, as a
// GPU does after a LoRA: code = clamp(floor(bf16(bf16(v / bf16(s)) + bf16(u))), -128, 127), u =
// draw(draw_seed, first_idx + column).
float quantize_int8_row(std::span<const BF16> row, std::int64_t group, std::span<std::int8_t> codes,
                        std::span<float> scratch, std::uint32_t draw_seed = 0, std::uint64_t first_idx = 0);

// The inverse, unrounded: out[K] = rotated (code * scale), products and sums in float.
void dequantize_int8_row(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                         std::span<float> out);

// The same with one rounding to bf16 at the end, the weight as stock dequantises it.
void dequantize_int8_row(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                         std::span<BF16> out, std::span<float> scratch);

}  // namespace h3s::checkpoint
