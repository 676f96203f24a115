// quantize_rows and swiglu_quantize_rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "kernels/linear.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

void expect_same(const Case& info, const Guarded<std::int8_t>& want, const Guarded<float>& want_scale,
                 const Guarded<std::int8_t>& got, const Guarded<float>& got_scale, std::int64_t k) {
  EXPECT_TRUE(got.guards_intact() && got_scale.guards_intact()) << describe(info, DType::kI8);
  expect_same_bits(info, want.data(), got.data(), want.count(), k);
  expect_same_bits(info, want_scale.data(), got_scale.data(), want_scale.count(), 1);
}

// Rows lie `gap` elements apart.
template <typename T>
void expect_quantize_of(const std::vector<T>& x, std::int64_t m, std::int64_t k, std::int64_t group,
                        kernels::RowCode code, std::int64_t gap, std::uint64_t seed) {
  Guarded<std::int8_t> want(m * k), got(m * k);
  Guarded<float> want_scale(m), got_scale(m);
  kernels::QuantizeRowsArgs args{x.data(),          kDTypeOf<T>, k + gap, group, want.data(),
                                 want_scale.data(), m,           k,       code};
  definition_backend().quantize_rows(args);
  args.codes = got.data();
  args.scale = got_scale.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    got_scale.poison();
    backend.quantize_rows(args);
    const Case info{"quantize_rows", fmt::format("m {} k {} group {}", m, k, group), seed, backend.name()};
    expect_same(info, want, want_scale, got, got_scale, k);
  });
}

// A gap of 3 leaves most rows off every alignment.
template <typename T>
void expect_quantize(std::int64_t m, std::int64_t k, std::int64_t group, float magnitude = 1.0f,
                     kernels::RowCode code = kernels::RowCode::kInt8, std::int64_t gap = 3) {
  const auto seed = static_cast<std::uint64_t>(m * 1000 + k + group);
  expect_quantize_of(random_values<T>(m * (k + gap), seed, magnitude), m, k, group, code, gap, seed);
}

template <typename T>
void expect_swiglu_quantize(std::int64_t m, std::int64_t k, std::int64_t group, const std::vector<T>& gate_up,
                            std::uint64_t seed) {
  Guarded<std::int8_t> want(m * k), got(m * k);
  Guarded<float> want_scale(m), got_scale(m);
  kernels::SwigluQuantizeRowsArgs args{gate_up.data(),    kDTypeOf<T>, group, want.data(),
                                       want_scale.data(), m,           k};
  definition_backend().swiglu_quantize_rows(args);
  args.codes = got.data();
  args.scale = got_scale.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    got_scale.poison();
    backend.swiglu_quantize_rows(args);
    const Case info{"swiglu_quantize_rows", fmt::format("m {} k {} group {}", m, k, group), seed,
                    backend.name()};
    expect_same(info, want, want_scale, got, got_scale, k);
  });
}

template <typename T>
void expect_swiglu_quantize(std::int64_t m, std::int64_t k, std::int64_t group) {
  const auto seed = static_cast<std::uint64_t>(m * 1000 + k + group);
  expect_swiglu_quantize<T>(m, k, group, random_values<T>(m * 2 * k, seed, 4.0f), seed);
}

// The worked example of the int8 format, group 4: 70.62 becomes 70 because the quotient passes through bf16.
TEST(QuantizeRows, HandValues) {
  const float x[4] = {1.5f, -0.75f, 2, 0.25f};
  std::int8_t codes[4];
  float scale;
  best_backend().quantize_rows({x, DType::kF32, 4, 4, codes, &scale, 1, 4});
  EXPECT_EQ(codes[0], 70);
  EXPECT_EQ(codes[1], -28);
  EXPECT_EQ(codes[2], 127);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(scale, 2.25f * (1.0f / 127.0f));  // one bit from 2.25f / 127, the example's portable form
}

TEST(QuantizeRows, ZeroRow) {
  const std::vector<BF16> x(70, to_bf16(0.0f));
  std::vector<std::int8_t> codes(70, 1);
  float scale;
  best_backend().quantize_rows({x.data(), DType::kBF16, 70, 0, codes.data(), &scale, 1, 70});
  EXPECT_EQ(scale, 1e-30f);
  EXPECT_EQ(codes, std::vector<std::int8_t>(70, 0));
}

// The rotation is its own inverse, and of a unit vector gives a row of the normalised matrix: 1/16 with
// signs.
TEST(QuantizeRows, RotationOfAUnitVector) {
  std::vector<float> x(256, 0.0f);
  x[37] = 16;
  std::vector<std::int8_t> codes(256);
  float scale;
  best_backend().quantize_rows({x.data(), DType::kF32, 256, 256, codes.data(), &scale, 1, 256});
  // Position 37 = 0211 in base 4: the sign is the product of the entries of H4 over the digits; the row of H4
  // for output digit i and input digit j is +1 except -1 where i + j = 3.
  for (int i = 0; i < 256; ++i) {
    int sign = 1;
    for (int shift = 0; shift < 8; shift += 2)
      if (((i >> shift) & 3) + ((37 >> shift) & 3) == 3) sign = -sign;
    ASSERT_EQ(codes[static_cast<std::size_t>(i)], 127 * sign) << i;
  }
}

TEST(QuantizeRows, Sizes) {
  for (const std::int64_t size : kSizes) {
    expect_quantize<BF16>(3, size, 0);
    expect_quantize<float>(size, 33, 0);
  }
}

TEST(QuantizeRows, Groups) {
  for (const std::int64_t group : {4, 16, 64, 256})
    for (const std::int64_t groups : {1, 3, 5}) {
      expect_quantize<BF16>(3, groups * group, group);
      expect_quantize<float>(2, groups * group, group);
    }
}

// Rows one after the other, as the network has them: up to 14,336 values, more rows than a GPU takes at once.
TEST(QuantizeRows, RotatedRows) {
  constexpr auto kInt8 = kernels::RowCode::kInt8;
  for (const std::int64_t k : {256, 2048, 2304, 5376, 7168, 14336})
    expect_quantize<BF16>(5, k, 256, 1.0f, kInt8, 0);
  expect_quantize<BF16>(7000, 256, 256, 1.0f, kInt8, 0);
  for (const float magnitude : {1e37f, 1e32f, 1e-30f, 1e-38f})
    expect_quantize<BF16>(5, 2304, 256, magnitude, kInt8, 0);
}

// The same to 4 bits.
TEST(QuantizeRows, Int4RotatedRows) {
  constexpr auto kInt4 = kernels::RowCode::kInt4;
  for (const std::int64_t k : {256, 2048, 2304, 5376, 7168, 14336})
    expect_quantize<BF16>(5, k, 256, 1.0f, kInt4, 0);
  expect_quantize<BF16>(7000, 256, 256, 1.0f, kInt4, 0);
  for (const float magnitude : {1e37f, 1e32f, 1e-9f, 1e-30f, 1e-38f})
    expect_quantize<BF16>(5, 2304, 256, magnitude, kInt4, 0);
}

// Row r has values from 1 down to 2^-(8 r), about one in eight of each size, and zeros: where sums lose bits,
// and where halving one is inexact.
std::vector<BF16> values_of_all_sizes(std::int64_t rows, std::int64_t k) {
  std::vector<BF16> x = random_values<BF16>(rows * k, 23);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<int>(i / static_cast<std::size_t>(k)),
               size = static_cast<int>(i * 2654435761 >> 8 & 15);
    x[i] = size >= 12 ? to_bf16(0.0f) : to_bf16(std::ldexp(to_float(x[i]), -row * std::min(size, 8)));
  }
  return x;
}

TEST(QuantizeRows, ValuesOfAllSizes) {
  constexpr std::int64_t kM = 19, kK = 2304;
  const std::vector<BF16> x = values_of_all_sizes(kM, kK);
  for (const kernels::RowCode code : {kernels::RowCode::kInt8, kernels::RowCode::kInt4})
    for (const std::int64_t group : {0, 64, 256}) expect_quantize_of(x, kM, kK, group, code, 0, 23);
}

// The worked example of the 4-bit format.
TEST(QuantizeRows, Int4HandValues) {
  const float x[4] = {1.5f, -0.75f, 2, 0.25f};
  std::int8_t codes[4];
  float scale;
  best_backend().quantize_rows({x, DType::kF32, 4, 4, codes, &scale, 1, 4, kernels::RowCode::kInt4});
  EXPECT_EQ(codes[0], 4);
  EXPECT_EQ(codes[1], -2);
  EXPECT_EQ(codes[2], 7);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(scale, 0.3214285671710968f);
  // In bf16 the sum 257 of the first stage is 256 before it is halved.
  const BF16 y[4] = {to_bf16(256), to_bf16(1), to_bf16(0), to_bf16(0)};
  best_backend().quantize_rows({y, DType::kBF16, 4, 4, codes, &scale, 1, 4, kernels::RowCode::kInt4});
  EXPECT_EQ(scale, 128.0f / 7);
}

TEST(QuantizeRows, Int4) {
  constexpr auto kInt4 = kernels::RowCode::kInt4;
  for (const std::int64_t size : kSizes) expect_quantize<BF16>(3, size, 0, 1.0f, kInt4);
  for (const std::int64_t group : {4, 16, 64, 256}) {
    expect_quantize<BF16>(3, 5 * group, group, 1.0f, kInt4);
    expect_quantize<float>(2, 3 * group, group, 1.0f, kInt4);
  }
  expect_quantize<BF16>(4, 64, 16, 1e-30f, kInt4);
  expect_quantize<BF16>(4, 5376, 256, 300.0f, kInt4);
}

TEST(QuantizeRows, ExtremeMagnitudes) {
  expect_quantize<float>(4, 100, 0, 1e38f);
  expect_quantize<float>(4, 100, 0, 1e-38f);
  expect_quantize<BF16>(4, 64, 16, 1e-30f);
}

// Rows of normal values; every second one has a NaN somewhere, of either sign.
template <typename T>
std::vector<T> rows_with_nans(std::int64_t m, std::int64_t row_length) {
  std::vector<T> x = random_values<T>(m * row_length, 17);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t row = 0; row < m; row += 2)
    x[static_cast<std::size_t>(row * row_length + row * 37 % row_length)] =
        from_float<T>(row % 4 == 0 ? nan : -nan);
  return x;
}

// Such rows are all NaN to whatever multiplies them, and no others are.
void expect_nan_rows(const Guarded<std::int8_t>& codes, const Guarded<float>& scale, std::int64_t k) {
  for (std::int64_t row = 0; row < scale.count(); ++row) {
    EXPECT_EQ(std::isnan(scale.data()[row]), row % 2 == 0) << "row " << row;
    const std::int8_t* first = codes.data() + row * k;
    EXPECT_EQ(std::all_of(first, first + k, [](std::int8_t c) { return c == 0; }), row % 2 == 0)
        << "row " << row;
  }
}

template <typename T>
void expect_nan_kept(std::int64_t k, std::int64_t group, kernels::RowCode code) {
  constexpr std::int64_t kM = 9;
  const std::vector<T> x = rows_with_nans<T>(kM, k);
  Guarded<std::int8_t> want(kM * k), got(kM * k);
  Guarded<float> want_scale(kM), got_scale(kM);
  kernels::QuantizeRowsArgs args{x.data(),          kDTypeOf<T>, k, group, want.data(),
                                 want_scale.data(), kM,          k, code};
  definition_backend().quantize_rows(args);
  expect_nan_rows(want, want_scale, k);
  args.codes = got.data();
  args.scale = got_scale.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    got_scale.poison();
    backend.quantize_rows(args);
    expect_same({"quantize_rows", fmt::format("NaN, k {} group {}", k, group), 17, backend.name()}, want,
                want_scale, got, got_scale, k);
  });
}

TEST(QuantizeRows, NanStaysInItsRow) {
  for (const kernels::RowCode code : {kernels::RowCode::kInt8, kernels::RowCode::kInt4})
    for (const std::int64_t group : {0, 4, 16, 64, 256}) {
      expect_nan_kept<BF16>(2304, group, code);
      expect_nan_kept<float>(768, group, code);
    }
  expect_nan_kept<BF16>(33, 0, kernels::RowCode::kInt8);
}

TEST(SwigluQuantizeRows, NanStaysInItsRow) {
  constexpr std::int64_t kM = 9, kK = 512;
  const std::vector<BF16> gate_up = rows_with_nans<BF16>(kM, 2 * kK);
  for (const std::int64_t group : {0, 64, 256}) {
    expect_swiglu_quantize<BF16>(kM, kK, group, gate_up, 17);
    Guarded<std::int8_t> codes(kM * kK);
    Guarded<float> scale(kM);
    best_backend().swiglu_quantize_rows(
        {gate_up.data(), DType::kBF16, group, codes.data(), scale.data(), kM, kK});
    expect_nan_rows(codes, scale, kK);
  }
}

TEST(QuantizeRows, RowsInParts) {
  constexpr std::int64_t kM = 129, kK = 256;
  const std::vector<BF16> x = random_values<BF16>(kM * kK, 12);
  Guarded<std::int8_t> whole(kM * kK), parts(kM * kK);
  Guarded<float> scale(kM), part_scale(kM);
  best_backend().quantize_rows({x.data(), DType::kBF16, kK, 256, whole.data(), scale.data(), kM, kK});
  for_each_part(kM, [&](std::int64_t m, std::int64_t rows) {
    best_backend().quantize_rows(
        {x.data() + m * kK, DType::kBF16, kK, 256, parts.data() + m * kK, part_scale.data() + m, rows, kK});
  });
  expect_same({"quantize_rows", "in parts", 12, ""}, whole, scale, parts, part_scale, kK);
}

TEST(SwigluQuantizeRows, Sizes) {
  for (const std::int64_t size : kSizes) expect_swiglu_quantize<BF16>(3, size, 0);
  for (const std::int64_t group : {4, 16, 64, 256}) expect_swiglu_quantize<BF16>(5, 3 * group, group);
  expect_swiglu_quantize<float>(5, 512, 256);
}

TEST(SwigluQuantizeRows, RotatedRows) {
  for (const std::int64_t k : {256, 2304, 5376, 14336}) expect_swiglu_quantize<BF16>(5, k, 256);
  expect_swiglu_quantize<BF16>(1000, 512, 256);
}

// Row by row one gate, one up or both far from the others, at every place of a group in turn.
TEST(SwigluQuantizeRows, UnusualValues) {
  constexpr std::int64_t kM = 512, kK = 512;
  constexpr float kUnusual[] = {0.0f,    -0.0f,  70.0f,  -70.0f, 90.0f,   -90.0f, 200.0f, -200.0f, 1e30f,
                                -1e-10f, 1e-10f, 1e-20f, 1e-30f, -1e-38f, 1e-38f, 1e-40f, -1e-40f};
  constexpr std::int64_t kCount = std::size(kUnusual);
  std::vector<BF16> gate_up = random_values<BF16>(kM * 2 * kK, 7, 4.0f);
  for (std::int64_t row = 0; row < kM; ++row) {
    BF16* gate = gate_up.data() + row * 2 * kK;
    if (row % 3 != 0) gate[row] = to_bf16(kUnusual[row % kCount]);
    if (row % 3 != 1) gate[kK + row * 5 % kK] = to_bf16(kUnusual[row / 3 % kCount]);
  }
  std::fill_n(gate_up.begin(), 2 * kK, to_bf16(0.0f));
  expect_swiglu_quantize<BF16>(kM, kK, 256, gate_up, 7);
}

TEST(SwigluQuantizeRows, RowsInParts) {
  constexpr std::int64_t kM = 129, kK = 64;
  const std::vector<BF16> x = random_values<BF16>(kM * 2 * kK, 2);
  Guarded<std::int8_t> whole(kM * kK), parts(kM * kK);
  Guarded<float> scale(kM), part_scale(kM);
  best_backend().swiglu_quantize_rows({x.data(), DType::kBF16, 64, whole.data(), scale.data(), kM, kK});
  for_each_part(kM, [&](std::int64_t m, std::int64_t rows) {
    best_backend().swiglu_quantize_rows(
        {x.data() + m * 2 * kK, DType::kBF16, 64, parts.data() + m * kK, part_scale.data() + m, rows, kK});
  });
  expect_same({"swiglu_quantize_rows", "in parts", 2, ""}, whole, scale, parts, part_scale, kK);
}

}  // namespace
}  // namespace h3s::test
