#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace h3s {
namespace {

// The nearest representable neighbour by search, ties to even: independent of the bit tricks.
template <typename T>
std::uint16_t nearest(float x) {
  if (std::signbit(x)) return static_cast<std::uint16_t>(nearest<T>(-x) | 0x8000u);
  std::uint16_t low = 0, high = 0x7F80;
  if constexpr (std::is_same_v<T, F16>) high = 0x7C00;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (to_float(T{middle}) <= x ? low : high) = middle;
  }
  // The overflow threshold lies where the next finite number would be.
  const double below = to_float(T{low});
  double above = to_float(T{high});
  if (std::isinf(above)) above = below + (below - to_float(T{static_cast<std::uint16_t>(low - 1)}));
  const double middle = (below + above) / 2;
  if (x == middle) return low % 2 == 0 ? low : high;
  return x < middle ? low : high;
}

template <typename T>
void check_around_every_value() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(T{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float<T>(value))));
      continue;
    }
    ASSERT_EQ(from_float<T>(value).bits, bits);
    if (std::isinf(value)) continue;
    const float next = to_float(T{static_cast<std::uint16_t>(bits + 1)});
    if (!std::isfinite(next)) continue;
    const float middle = static_cast<float>((static_cast<double>(value) + next) / 2);
    for (const float x : {middle, std::nextafter(middle, value), std::nextafter(middle, next)})
      ASSERT_EQ(from_float<T>(x).bits, nearest<T>(x)) << x;
  }
}

TEST(Float16, BF16RoundsToNearestEven) {
  check_around_every_value<BF16>();
}
TEST(Float16, F16RoundsToNearestEven) {
  check_around_every_value<F16>();
}

TEST(Float16, Extremes) {
  EXPECT_TRUE(std::isinf(round_to<BF16>(std::numeric_limits<float>::max())));
  EXPECT_TRUE(std::isinf(round_to<F16>(65520.0f)));
  EXPECT_EQ(round_to<F16>(65519.0f), 65504.0f);
  EXPECT_EQ(round_to<F16>(0x1p-24f), 0x1p-24f);
  EXPECT_EQ(round_to<F16>(0x1p-26f), 0.0f);
  EXPECT_EQ(round_to<BF16>(1.01007f), 1.0078125f);
}

}  // namespace
}  // namespace h3s
