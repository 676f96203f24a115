// The weight quantiser: the worked example of the format, every code and scale of the golden files, and the
// inverse.
#include "checkpoint/quantize_int8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/generator.h"
#include "io/safetensors.h"
#include "spec/golden_dir.h"

namespace h3s::checkpoint {
namespace {

std::vector<BF16> to_row(std::initializer_list<float> values) {
  std::vector<BF16> row;
  for (const float v : values) row.push_back(to_bf16(v));
  return row;
}

struct Quantized {
  std::vector<std::int8_t> codes;
  float scale;
};

Quantized quantize(const std::vector<BF16>& row, std::int64_t group) {
  Quantized out{std::vector<std::int8_t>(row.size()), 0};
  std::vector<float> scratch(row.size());
  out.scale = quantize_int8_row(row, group, out.codes, scratch);
  return out;
}

using Codes = std::vector<std::int8_t>;

TEST(QuantizeInt8, WorkedExample) {
  const Quantized row0 = quantize(to_row({0.5f, -0.25f, 0.125f, 1.0f}), 4);
  EXPECT_EQ(row0.codes, (Codes{-42, 76, 127, 25}));
  EXPECT_EQ(row0.scale, 0.007381889969110489f);
  const Quantized row1 = quantize(to_row({-0.75f, 0.5f, 0.25f, -0.125f}), 4);
  EXPECT_EQ(row1.codes, (Codes{12, -58, -104, 127}));
  EXPECT_EQ(row1.scale, 0.0054133860394358635f);
}

TEST(QuantizeInt8, QuotientIsRoundedToBf16BeforeTheInteger) {
  // 1.25 / bf16(2.25 / 127) = 70.62 -> 70.5 in bf16 -> 70, not 71.
  EXPECT_EQ(quantize(to_row({1.25f, -0.5f, 2.25f, 0.0f}), 0).codes, (Codes{70, -28, 127, 0}));
}

TEST(QuantizeInt8, ZeroRow) {
  const Quantized zero = quantize(to_row({0, 0, 0, 0}), 4);
  EXPECT_EQ(zero.codes, (Codes{0, 0, 0, 0}));
  EXPECT_EQ(zero.scale, 1e-30f);
}

TEST(QuantizeInt8, RotationIsTheKroneckerPower) {
  constexpr float kH4[4][4] = {{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}};
  for (const std::int64_t group : {4, 16, 64, 256, 1024}) {
    for (const std::int64_t column : {std::int64_t{0}, std::int64_t{1}, group / 2, group - 1}) {
      std::vector<float> unit(static_cast<std::size_t>(group), 0.0f);
      unit[static_cast<std::size_t>(column)] = 1.0f;
      rotate_row(unit, group);
      for (std::int64_t i = 0; i < group; ++i) {
        float expected = 1;
        for (std::int64_t a = i, b = column, g = group; g > 1; a /= 4, b /= 4, g /= 4)
          expected *= 0.5f * kH4[a % 4][b % 4];
        ASSERT_EQ(unit[static_cast<std::size_t>(i)], expected) << "group " << group << " element " << i;
      }
    }
  }
}

TEST(QuantizeInt8, DequantizedIsWithinHalfAStep) {
  std::vector<float> values(512);
  TensorGenerator::weight("mlp.fc2.weight", {1, 512}, 1).values(0, 512, values.data());
  std::vector<BF16> row;
  for (const float v : values) row.push_back(to_bf16(v));
  for (const std::int64_t group : {0, 4, 256}) {
    const Quantized q = quantize(row, group);
    std::vector<float> back(row.size());
    dequantize_int8_row(q.codes, q.scale, group, back);
    // Errors of one group: each code is off by at most half a step, a quarter more for the bf16 quotient and
    // 1/256 of the value for the bf16 divisor (127 steps at most); the rotation keeps their root mean square.
    const double bound = q.scale * (0.75 + 127.0 / 256);
    double square = 0;
    for (std::size_t i = 0; i < row.size(); ++i) square += std::pow(back[i] - to_float(row[i]), 2);
    EXPECT_LE(std::sqrt(square / static_cast<double>(row.size())), bound) << "group " << group;
    std::vector<BF16> rounded(row.size());
    std::vector<float> scratch(row.size());
    dequantize_int8_row(q.codes, q.scale, group, rounded, scratch);
    for (std::size_t i = 0; i < row.size(); ++i) ASSERT_EQ(rounded[i].bits, to_bf16(back[i]).bits);
  }
}

struct Mismatches {
  std::int64_t compared = 0, codes = 0, scales = 0;
  std::string first;
};

// Quantises the generator's weight for "w.KEY" and counts what differs from the golden codes and scales.
void compare_layer(const io::SafetensorsReader& golden, const io::TensorInfo& info, Mismatches& out) {
  const std::string key = info.name.substr(2);
  const std::int64_t n = info.shape[0], k = info.shape[1];
  const auto generator = TensorGenerator::weight(key, info.shape, 20261130);
  const auto* codes = reinterpret_cast<const std::int8_t*>(golden.data(info));
  const std::byte* scales = golden.data(golden.at(info.name + "_scale"));
  std::vector<BF16> row(static_cast<std::size_t>(k));
  for (std::int64_t r = 0; r < n; ++r) {
    generator.stored(DType::kBF16, r * k, (r + 1) * k, reinterpret_cast<std::byte*>(row.data()));
    const Quantized q = quantize(row, 256);
    float scale = 0;
    std::memcpy(&scale, scales + r * 4, 4);
    if (q.scale != scale) ++out.scales;
    for (std::int64_t c = 0; c < k; ++c) {
      const int expected = codes[r * k + c], got = q.codes[static_cast<std::size_t>(c)];
      if (expected == got) continue;
      if (out.codes++ == 0)
        out.first = fmt::format("{} [{},{}]: expected {}, got {}", key, r, c, expected, got);
    }
    out.compared += k;
  }
}

class GoldenInt8 : public testing::TestWithParam<const char*> {};

TEST_P(GoldenInt8, EveryCodeAndScaleIsEqual) {
  const auto path = test::golden_dir() / fmt::format("{}.int8_tensorwise.t2va.bf16.safetensors", GetParam());
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: set H3S_GOLDEN_DIR";
  const auto golden = io::SafetensorsReader::open(path);
  Mismatches mismatches;
  for (const io::TensorInfo& info : golden.tensors())
    if (info.name.rfind("w.", 0) == 0 && info.dtype == DType::kI8) compare_layer(golden, info, mismatches);
  EXPECT_GT(mismatches.compared, 1000000);
  EXPECT_EQ(mismatches.scales, 0);
  EXPECT_EQ(mismatches.codes, 0) << "first: " << mismatches.first;
}

INSTANTIATE_TEST_SUITE_P(Forms, GoldenInt8, testing::Values("curve", "full"));

}  // namespace
}  // namespace h3s::checkpoint
