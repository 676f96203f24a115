// Eight-bit floats and smaller: every code, every tie, and the checks of the format.
#include "base/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace h3s {
namespace {

template <typename F>
std::vector<float> positive_numbers() {
  std::vector<float> numbers;
  for (int code = 0; code < F::kSign; ++code) {
    const float v = small_value<F>(static_cast<std::uint8_t>(code));
    if (v <= F::kLargest) numbers.push_back(v);
  }
  return numbers;
}

// Codes ascend with their numbers; the nearest of any x is found by looking at all of them.
template <typename F>
void expect_nearest_even() {
  const std::vector<float> numbers = positive_numbers<F>();
  ASSERT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const float low = numbers[i], high = numbers[i + 1], middle = low + (high - low) / 2;
    const float even = i % 2 == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      EXPECT_EQ(round_small<F>(sign * low), sign * low);
      EXPECT_EQ(round_small<F>(sign * middle), sign * even) << middle;
      EXPECT_EQ(round_small<F>(sign * std::nextafter(middle, 0.0f)), sign * low) << middle;
      EXPECT_EQ(round_small<F>(sign * std::nextafter(middle, high)), sign * high) << middle;
      EXPECT_EQ(small_value<F>(small_code<F>(sign * low)), sign * low);
    }
    EXPECT_EQ(small_code<F>(low), i);
    EXPECT_EQ(small_code<F>(-low), i | F::kSign);
  }
  EXPECT_EQ(round_small<F>(2 * F::kLargest), F::kLargest);
  EXPECT_EQ(round_small<F>(-std::numeric_limits<float>::infinity()), -F::kLargest);
  EXPECT_EQ(small_value<F>(small_code<F>(F::kLargest)), F::kLargest);
}

TEST(Float8, RoundsToTheNearestEven) {
  expect_nearest_even<E4M3>();
  expect_nearest_even<E5M2>();
  expect_nearest_even<E2M1>();
}

TEST(Float8, ChecksOfTheFormat) {
  EXPECT_EQ(e4m3_value(0x1D), 0.1015625f);
  EXPECT_EQ(e4m3_value(0x2A), 0.3125f);
  EXPECT_EQ(e4m3_value(0x38), 1.0f);
  EXPECT_EQ(e4m3_value(0x7E), 448.0f);
  EXPECT_EQ(e4m3_value(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_value(0x58), 16.0f);
  EXPECT_EQ(e4m3_value(0xB4), -0.75f);
  for (const auto& [x, code] : {std::pair{0.1f, 0x1D}, {0.3f, 0x2A}, {17.0f, 0x58}, {0.0019f, 0x01}})
    EXPECT_EQ(small_code<E4M3>(round_small<E4M3>(x)), code) << x;
  EXPECT_EQ(e2m1_value(0x7), 6.0f);
  EXPECT_EQ(e2m1_value(0xA), -1.0f);
  EXPECT_EQ(e8m0_value(121), 0x1p-6f);
  EXPECT_EQ(e8m0_value(0), 0x1p-127f);
}

// Of any payload: rounding its bits as if it were a number would carry into the sign.
TEST(Float8, NanIsRoundedToNan) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(round_small<E4M3>(nan)) && std::isnan(round_small<E5M2>(nan)) &&
                std::isnan(round_small<E2M1>(nan)))
        << bits;
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_small<E4M3>(inf), 448.0f);
  EXPECT_EQ(round_small<E2M1>(-inf), -6.0f);
}

TEST(Float8, CodesThatAreNoNumbers) {
  EXPECT_TRUE(std::isnan(e4m3_value(0x7F)) && std::isnan(e4m3_value(0xFF)));
  EXPECT_TRUE(std::isnan(e5m2_value(0x7D)) && std::isnan(e5m2_value(0xFF)));
  EXPECT_EQ(e5m2_value(0x7C), std::numeric_limits<float>::infinity());
  EXPECT_EQ(e5m2_value(0xFC), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(e5m2_value(0x7B), 57344.0f);
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

}  // namespace
}  // namespace h3s
