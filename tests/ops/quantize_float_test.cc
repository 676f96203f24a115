// quantize_float and abs_max.
#include "kernels/quantize_float.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/op_test.h"
#include "ops/ops.h"

namespace h3s::test {
namespace {

using kernels::FloatCode;
using kernels::QuantizeFloatArgs;

constexpr FloatCode kCodes[] = {FloatCode::kE4M3, FloatCode::kE5M2, FloatCode::kMxfp8, FloatCode::kNvfp4};

// The first values of a row on the best backend.
std::vector<float> quantized(std::vector<float> x, QuantizeFloatArgs args, float* row_scale) {
  const auto k = static_cast<std::int64_t>(x.size());
  std::vector<BF16> y(x.size());
  args.x = x.data(), args.x_dtype = DType::kF32, args.x_stride = k;
  args.y = y.data(), args.row_scale = row_scale, args.m = 1, args.k = k;
  best_backend().quantize_float(args);
  std::vector<float> out;
  for (const BF16 v : y) out.push_back(to_float(v));
  return out;
}

TEST(QuantizeFloat, WorkedExampleE4M3) {
  float scale = 0;
  EXPECT_EQ(quantized({0.5f, 1.25f, -3, 100}, {.code = FloatCode::kE4M3, .weight_scale = 0.01f}, &scale),
            (std::vector<float>{0.5f, 1.25f, -3, 96}));
  EXPECT_EQ(scale, 0.01f);
  EXPECT_EQ(quantized({900, -1e9f, 0.02f}, {.code = FloatCode::kE4M3, .scale = 2, .weight_scale = 3}, &scale),
            (std::vector<float>{448, -448, 0.009765625f}));
  EXPECT_EQ(scale, 6.0f);
  EXPECT_EQ(quantized({1e9f, 1.1f}, {.code = FloatCode::kE5M2}, &scale), (std::vector<float>{57344, 1.0f}));
}

TEST(QuantizeFloat, WorkedExampleMxfp8) {
  float scale = 0;
  EXPECT_EQ(quantized({3.7f, -0.01f, 1, 0}, {.code = FloatCode::kMxfp8}, &scale),
            (std::vector<float>{3.75f, -0.009765625f, 1, 0}));
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(quantized({0, 0}, {.code = FloatCode::kMxfp8}, &scale), (std::vector<float>{0, 0}));
}

// A block of -0.13 + 0.02 i under a peak of 0.5: the block's scale is 160, the codes E E D C B A 9 1 ...
TEST(QuantizeFloat, WorkedExampleNvfp4) {
  std::vector<float> x;
  for (int i = 0; i < 16; ++i) x.push_back(-0.13f + 0.02f * static_cast<float>(i));
  constexpr float kNumbers[16] = {-4, -4, -3, -2, -1.5f, -1, -0.5f, 0.5f, 0.5f * 2, 1.5f, 2, 3, 4, 4, 6, 6};
  const float peak = 0.5f;
  float scale = 0;
  const auto y =
      quantized(x, {.code = FloatCode::kNvfp4, .scale = 0, .peak = &peak, .weight_scale = 2}, &scale);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(y[i], kNumbers[i] * 160) << i;
  EXPECT_EQ(scale, 2 * 0.00018601190822664648f);
  const float zero = 0;
  EXPECT_EQ(quantized({0, 0}, {.code = FloatCode::kNvfp4, .scale = 0, .peak = &zero}, &scale),
            (std::vector<float>{0, 0}));
  EXPECT_EQ(scale, 0.0f);
}

// `gap`: elements from the end of a row to the next.
template <typename T>
void expect_quantize_float(FloatCode code, std::int64_t m, std::int64_t k, bool pre_scaled,
                           float magnitude = 1.0f, std::int64_t gap = 3) {
  const auto seed = static_cast<std::uint64_t>(m * 1000 + k + static_cast<int>(code));
  const std::vector<T> x = random_values<T>(m * (k + gap), seed, magnitude);
  const std::vector<float> factors = random_values<float>(k, seed + 1);
  const float peak = 4 * magnitude;
  Guarded<BF16> want(m * k), got(m * k);
  Guarded<float> want_scale(m), got_scale(m);
  QuantizeFloatArgs args{.x = x.data(),
                         .x_dtype = kDTypeOf<T>,
                         .x_stride = k + gap,
                         .pre_scale = pre_scaled ? factors.data() : nullptr,
                         .code = code,
                         .scale = code == FloatCode::kNvfp4 ? 0.0f : 0.37f,
                         .peak = &peak,
                         .weight_scale = 0.011f,
                         .y = want.data(),
                         .row_scale = want_scale.data(),
                         .m = m,
                         .k = k};
  definition_backend().quantize_float(args);
  args.y = got.data();
  args.row_scale = got_scale.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    got_scale.poison();
    backend.quantize_float(args);
    const Case info{"quantize_float", fmt::format("code {} m {} k {}", static_cast<int>(code), m, k), seed,
                    backend.name()};
    expect_same_bits(info, want, got, k);
    expect_same_bits(info, want_scale, got_scale, 1);
  });
}

TEST(QuantizeFloat, Sizes) {
  for (const FloatCode code : kCodes)
    for (const std::int64_t size : kSizes) {
      expect_quantize_float<BF16>(code, 3, size, false);
      expect_quantize_float<float>(code, 2, size, true);
    }
}

// Rows as the network has them: on 16 bytes, of whole blocks.
TEST(QuantizeFloat, AlignedRows) {
  for (const FloatCode code : kCodes)
    for (const std::int64_t k : {32, 224, 1760, 5376, 14336})
      for (const std::int64_t gap : {0, 8}) {
        expect_quantize_float<BF16>(code, 5, k, false, 1.0f, gap);
        expect_quantize_float<BF16>(code, 3, k, true, 1.0f, gap);
        expect_quantize_float<float>(code, 2, k, true, 1.0f, gap);
      }
}

TEST(QuantizeFloat, Magnitudes) {
  for (const FloatCode code : kCodes)
    for (const float magnitude : {1e-30f, 1e-9f, 300.0f, 1e30f}) {
      expect_quantize_float<BF16>(code, 3, 259, true, magnitude);
      expect_quantize_float<BF16>(code, 3, 288, true, magnitude, 0);
    }
}

TEST(QuantizeFloat, RowsInPartsAndInPlace) {
  constexpr std::int64_t kM = 65, kK = 96;
  const float peak = 5;
  for (const FloatCode code : kCodes) {
    std::vector<BF16> x = random_values<BF16>(kM * kK, 5);
    Guarded<BF16> whole(kM * kK);
    Guarded<float> scale(kM), part_scale(kM);
    QuantizeFloatArgs args{.x = x.data(),
                           .x_stride = kK,
                           .code = code,
                           .scale = code == FloatCode::kNvfp4 ? 0.0f : 1.0f,
                           .peak = &peak,
                           .y = whole.data(),
                           .row_scale = scale.data(),
                           .m = kM,
                           .k = kK};
    best_backend().quantize_float(args);
    for_each_part(kM, [&](std::int64_t m, std::int64_t rows) {
      args.x = args.y = x.data() + m * kK;
      args.row_scale = part_scale.data() + m;
      args.m = rows;
      best_backend().quantize_float(args);
    });
    expect_same_bits({"quantize_float", "in parts, in place", 5, ""}, whole.data(), x.data(), kM * kK, kK);
    expect_same_bits({"quantize_float", "in parts", 5, ""}, scale, part_scale, 1);
  }
}

// The bits of a NaN may differ from device to device; which values are NaN may not.
template <typename T>
void unify_nans(Guarded<T>& values) {
  for (std::int64_t i = 0; i < values.count(); ++i)
    if (std::isnan(to_float(values[i]))) values[i] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
}

// Rows of 70 columns; row r has a NaN in column 9 r. Sums over row r are NaN, those over the others are not.
void expect_nan_kept(FloatCode code, float scale, float peak) {
  constexpr std::int64_t kM = 7, kK = 70;
  const bool all = std::isnan(peak);
  std::vector<BF16> x = random_values<BF16>(kM * kK, 6);
  for (std::int64_t row = 0; row < kM; row += 2)
    x[static_cast<std::size_t>(row * kK + row * 9)] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  Guarded<BF16> want(kM * kK), got(kM * kK);
  Guarded<float> want_scale(kM), got_scale(kM);
  QuantizeFloatArgs args{.x = x.data(), .x_stride = kK, .code = code, .scale = scale, .peak = &peak};
  args.y = want.data(), args.row_scale = want_scale.data(), args.m = kM, args.k = kK;
  definition_backend().quantize_float(args);
  for (std::int64_t row = 0; row < kM; ++row) {
    float sum = 0;
    for (std::int64_t i = 0; i < kK; ++i) sum += to_float(want[row * kK + i]);
    EXPECT_EQ(std::isnan(sum * want_scale[row]), all || row % 2 == 0)
        << static_cast<int>(code) << " row " << row;
  }
  unify_nans(want), unify_nans(want_scale);
  args.y = got.data(), args.row_scale = got_scale.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison(), got_scale.poison();
    backend.quantize_float(args);
    unify_nans(got), unify_nans(got_scale);
    const Case info{"quantize_float", fmt::format("NaN, code {}", static_cast<int>(code)), 6, backend.name()};
    expect_same_bits(info, want, got, kK);
    expect_same_bits(info, want_scale, got_scale, 1);
  });
}

TEST(QuantizeFloat, NanStaysInItsRow) {
  for (const FloatCode code : kCodes) expect_nan_kept(code, 0.5f, 4);
  expect_nan_kept(FloatCode::kNvfp4, 0, 4);
  expect_nan_kept(FloatCode::kNvfp4, 0, std::numeric_limits<float>::quiet_NaN());
}

TEST(QuantizeFloat, Errors) {
  const std::vector<float> x(8, 1.0f);
  std::vector<BF16> y(8);
  float scale = 0;
  QuantizeFloatArgs args{.x = x.data(),
                         .x_dtype = DType::kF32,
                         .x_stride = 8,
                         .y = y.data(),
                         .row_scale = &scale,
                         .m = 1,
                         .k = 8};
  const auto refused = [&](const char* text) {
    try {
      ops::quantize_float(best_backend(), args);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  args.scale = 0;
  refused("scale must be positive and finite, got 0");
  args.code = FloatCode::kNvfp4;
  refused("peak must not be null");
  args.scale = 1;
  args.y = const_cast<float*>(x.data());
  refused("only dense bf16 rows can be quantised in place");
  args.y = nullptr;
  refused("y must not be null");
}

template <typename T>
void expect_abs_max(std::int64_t m, std::int64_t k, bool pre_scaled, std::int64_t gap = 5) {
  const std::vector<T> x = random_values<T>(m * (k + gap), 31);
  const std::vector<float> factors = random_values<float>(k, 32);
  float largest = 0;
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t i = 0; i < k; ++i) {
      const float v = to_float(x[static_cast<std::size_t>(r * (k + gap) + i)]);
      largest = std::max(largest,
                         std::fabs(pre_scaled ? round_to<T>(v * factors[static_cast<std::size_t>(i)]) : v));
    }
  kernels::AbsMaxArgs args{.x = x.data(),
                           .x_dtype = kDTypeOf<T>,
                           .x_stride = k + gap,
                           .pre_scale = pre_scaled ? factors.data() : nullptr,
                           .m = m,
                           .k = k};
  const auto whole_and_parts = [&](kernels::Backend& backend) {
    float peak = 1e30f;
    args.x = x.data(), args.m = m, args.first = true, args.peak = &peak;
    backend.abs_max(args);
    EXPECT_EQ(peak, largest) << backend.name() << " m " << m << " k " << k;
    peak = 1e30f;
    for_each_part(m, [&](std::int64_t row, std::int64_t rows) {
      args.x = x.data() + row * (k + gap), args.m = rows, args.first = row == 0;
      backend.abs_max(args);
    });
    EXPECT_EQ(peak, largest) << backend.name() << " in parts, m " << m << " k " << k;
  };
  whole_and_parts(definition_backend());
  for_each_backend(whole_and_parts);
}

TEST(AbsMax, NanIsAboveAll) {
  constexpr std::int64_t kM = 40, kK = 33;
  std::vector<BF16> x = random_values<BF16>(kM * kK, 33);
  x[500] = to_bf16(std::numeric_limits<float>::infinity());
  x[600] = to_bf16(-std::numeric_limits<float>::quiet_NaN());
  const auto peak_of = [&](kernels::Backend& backend) {
    float peak = 0;
    kernels::AbsMaxArgs args{.x_stride = kK, .peak = &peak, .k = kK};
    for_each_part(kM, [&](std::int64_t row, std::int64_t rows) {
      args.x = x.data() + row * kK, args.m = rows, args.first = row == 0;
      backend.abs_max(args);
    });
    return peak;
  };
  EXPECT_TRUE(std::isnan(peak_of(definition_backend())));
  for_each_backend(
      [&](kernels::Backend& backend) { EXPECT_TRUE(std::isnan(peak_of(backend))) << backend.name(); });
}

TEST(AbsMax, SizesAndParts) {
  for (const std::int64_t size : kSizes) {
    expect_abs_max<BF16>(3, size, false);
    expect_abs_max<float>(7, size, true);
  }
  expect_abs_max<BF16>(300, 33, true);
  for (const std::int64_t k : {32, 1760, 5376}) {
    expect_abs_max<BF16>(5, k, true, 0);
    expect_abs_max<float>(3, k, false, 8);
  }
}

}  // namespace
}  // namespace h3s::test
