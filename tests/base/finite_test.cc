#include "base/finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "base/dispatch.h"
#include "base/error.h"

namespace h3s {
namespace {

// n values of T from an odd address on, `bad` at one of them.
template <typename T>
std::int64_t found(std::int64_t n, std::int64_t at, float bad) {
  std::vector<T> values(static_cast<std::size_t>(n), from_float<T>(-60000.0f));  // below fp16's largest
  if (at >= 0) values[static_cast<std::size_t>(at)] = from_float<T>(bad);
  std::vector<std::byte> bytes(values.size() * sizeof(T) + 1);
  if (n > 0) std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  return find_non_finite(bytes.data() + 1, kDTypeOf<T>, n);
}

template <typename T>
void expect_found() {
  EXPECT_EQ(found<T>(0, -1, 0), -1);
  EXPECT_EQ(found<T>(5000, -1, 0), -1);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {inf, -inf, nan, -nan})
    for (const std::int64_t at : {0, 1, 1023, 1024, 2047, 2999})
      EXPECT_EQ(found<T>(3000, at, bad), at) << bad;
}

TEST(Finite, TheFirstOfEveryType) {
  expect_found<float>();
  expect_found<BF16>();
  expect_found<F16>();
}

TEST(Finite, CodesAreNoValues) {
  const std::byte code{0x7F};
  EXPECT_THROW(find_non_finite(&code, DType::kF8E4M3, 1), Error);
}

}  // namespace
}  // namespace h3s
