#include "checkpoint/quantize_int8.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "checkpoint/draw.h"

namespace h3s::checkpoint {
namespace {

constexpr float kMinScale = 1e-30f;

// One stage over a group. Stride is a template value so that the compiler can make whole vectors of the inner
// loop.
template <std::size_t kStride>
void stage(float* x, std::size_t count) {
  for (std::size_t block = 0; block < count; block += 4 * kStride) {
    for (std::size_t i = block; i < block + kStride; ++i) {
      const float s = x[i] + x[i + kStride], d = x[i] - x[i + kStride];
      const float e = x[i + 2 * kStride] - x[i + 3 * kStride], f = x[i + 2 * kStride] + x[i + 3 * kStride];
      x[i] = 0.5f * (s + e);
      x[i + kStride] = 0.5f * (s - e);
      x[i + 2 * kStride] = 0.5f * (d + f);
      x[i + 3 * kStride] = 0.5f * (f - d);
    }
  }
}

// On the bits: magnitudes order like integers, and an integer maximum vectorises where a float one may not.
float max_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float v : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu);
  return std::bit_cast<float>(largest);
}

// Nearest integer, ties to even: floats from 2^23 on have no fraction, so the sum rounds to it. |x| < 2^22.
float round_even(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

}  // namespace

void rotate_row(std::span<float> row, std::int64_t group) {
  const std::size_t count = row.size();
  H3S_ASSERT(group == 0 || count % static_cast<std::size_t>(group) == 0);
  if (group >= 4) stage<1>(row.data(), count);
  if (group >= 16) stage<4>(row.data(), count);
  if (group >= 64) stage<16>(row.data(), count);
  if (group >= 256) stage<64>(row.data(), count);
  if (group >= 1024) stage<256>(row.data(), count);
  H3S_ASSERT(group <= 1024);
}

float quantize_int8_row(std::span<const BF16> row, std::int64_t group, std::span<std::int8_t> codes,
                        std::span<float> scratch, std::uint32_t draw_seed, std::uint64_t first_idx) {
  H3S_ASSERT(codes.size() == row.size() && scratch.size() >= row.size());
  const std::span<float> rotated = scratch.first(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) rotated[i] = to_float(row[i]);
  rotate_row(rotated, group);
  for (float& v : rotated) v = round_to<BF16>(v);
  const float scale = std::max(max_magnitude(rotated) / 127.0f, kMinScale);
  const float divisor = round_to<BF16>(scale);  // above 0: kMinScale is a normal bf16 number's size
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float quotient = round_to<BF16>(rotated[i] / divisor);
    const float code =
        draw_seed == 0
            ? round_even(quotient)
            : std::floor(round_to<BF16>(quotient + round_to<BF16>(draw(draw_seed, first_idx + i))));
    codes[i] = static_cast<std::int8_t>(std::clamp(code, -128.0f, 127.0f));
  }
  return scale;
}

void dequantize_int8_row(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                         std::span<float> out) {
  H3S_ASSERT(out.size() == codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) out[i] = static_cast<float>(codes[i]) * scale;
  rotate_row(out, group);
}

void dequantize_int8_row(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                         std::span<BF16> out, std::span<float> scratch) {
  H3S_ASSERT(out.size() == codes.size() && scratch.size() >= codes.size());
  dequantize_int8_row(codes, scale, group, scratch.first(codes.size()));
  for (std::size_t i = 0; i < codes.size(); ++i) out[i] = to_bf16(scratch[i]);
}

}  // namespace h3s::checkpoint
