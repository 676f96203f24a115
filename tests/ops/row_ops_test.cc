// rms_norm, gated_residual, modulation_table, final_modulate.
#include "kernels/row_ops.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

using kernels::ModSegment;

// A table of three rows over tokens 10.., the segments cut at a third and at two thirds of m rows.
template <typename T>
struct ModTable {
  ModTable(std::int64_t m, std::int64_t row_stride, std::uint64_t seed)
      : table(random_values<T>(3 * row_stride, seed)),
        segments{{0, 10 + m / 3, 2}, {10 + m / 3, 10 + m - m / 3, 0}, {10 + m - m / 3, 10 + m, 1}},
        modulation{segments.data(), 3, 10, table.data(), row_stride} {}

  std::vector<T> table;
  std::vector<ModSegment> segments;
  kernels::Modulation modulation;
};

template <typename T>
void expect_rms_norm(std::int64_t m, std::int64_t c, bool modulate) {
  const auto seed = static_cast<std::uint64_t>(m * 100 + c);
  const std::vector<T> x = random_values<T>(m * (c + 3), seed, 3.0f);
  const std::vector<float> weight = random_values<float>(c, seed + 1);
  const ModTable<T> mod(m, 2 * c + 1, seed + 2);
  Guarded<T> want(m * c), got(m * c);
  kernels::RmsNormArgs args{x.data(), c + 3,    weight.data(),  want.data(), kDTypeOf<T>, m,
                            c,        modulate, mod.modulation, 1,           c + 1};
  definition_backend().rms_norm(args);
  args.y = got.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.rms_norm(args);
    const Case info{"rms_norm", fmt::format("m {} c {} modulate {}", m, c, modulate), seed, backend.name()};
    expect_same_bits(info, want, got, c);
  });
}

TEST(RmsNorm, HandValues) {
  const float x[4] = {3, -3, 3, -3}, weight[4] = {1, 2, 1, 0.5f};
  float y[4];
  kernels::RmsNormArgs args;
  args.x = x, args.weight = weight, args.y = y, args.dtype = DType::kF32;
  args.x_stride = args.c = 4, args.m = 1;
  best_backend().rms_norm(args);
  const float r = 1.0f / std::sqrt(36.0f / 4 + 1e-5f);
  EXPECT_EQ(y[0], 3 * r);
  EXPECT_EQ(y[1], -3 * r * 2);
  EXPECT_EQ(y[3], -3 * r * 0.5f);
}

// The modulation example of the model's description: 1.5 with scale 0.0101 and shift -0.337 gives 1.1796875.
TEST(RmsNorm, ModulationHandValue) {
  const float adaln[6] = {-0.337f, 0.0101f, 0, -0.337f, 0.0101f, 0.213f};
  BF16 table[6];
  kernels::ModulationTableArgs table_args{adaln, DType::kF32, table, DType::kBF16, 1, 1};
  best_backend().modulation_table(table_args);
  EXPECT_EQ(to_float(table[0]), -0.337890625f);
  EXPECT_EQ(to_float(table[1]), 1.0078125f);
  EXPECT_EQ(to_float(table[5]), 0.212890625f);

  const BF16 x = to_bf16(1.0f);
  const float weight = 1.50001f;  // x r is a little under 1: n = 1.5
  BF16 y;
  const ModSegment segment{0, 1, 0};
  kernels::RmsNormArgs args{&x, 1, &weight, &y, DType::kBF16, 1, 1, true, {&segment, 1, 0, table, 6}, 1, 0};
  best_backend().rms_norm(args);
  EXPECT_EQ(to_float(y), 1.1796875f);
}

TEST(RmsNorm, Sizes) {
  for (const std::int64_t size : kSizes)
    for (const bool modulate : {false, true}) {
      expect_rms_norm<BF16>(3, size, modulate);
      expect_rms_norm<BF16>(size, 33, modulate);
      expect_rms_norm<float>(2, size, modulate);
    }
}

TEST(RmsNorm, RowsInParts) {
  constexpr std::int64_t kM = 259, kC = 100;
  const std::vector<BF16> x = random_values<BF16>(kM * kC, 4);
  const std::vector<float> weight = random_values<float>(kC, 5);
  const ModTable<BF16> mod(kM, 2 * kC, 6);
  Guarded<BF16> whole(kM * kC), parts(kM * kC);
  kernels::RmsNormArgs args{
      x.data(), kC, weight.data(), whole.data(), DType::kBF16, kM, kC, true, mod.modulation, 0, kC};
  best_backend().rms_norm(args);
  for_each_part(kM, [&](std::int64_t begin, std::int64_t rows) {
    kernels::RmsNormArgs part = args;
    part.x = x.data() + begin * kC;
    part.y = parts.data() + begin * kC;
    part.m = rows;
    part.modulation.token0 += begin;
    best_backend().rms_norm(part);
  });
  expect_same_bits({"rms_norm", "in parts", 4, ""}, whole, parts, kC);
}

TEST(RmsNorm, InPlace) {
  std::vector<BF16> x = random_values<BF16>(5 * 70, 8);
  const std::vector<float> weight = random_values<float>(70, 9);
  Guarded<BF16> want(5 * 70);
  kernels::RmsNormArgs args{x.data(), 70, weight.data(), want.data(), DType::kBF16, 5, 70, false, {}, 0, 0};
  best_backend().rms_norm(args);
  args.y = x.data();
  best_backend().rms_norm(args);
  expect_same_bits({"rms_norm", "in place", 8, ""}, want.data(), x.data(), 5 * 70, 70);
}

TEST(RmsNorm, RowOutsideEverySegmentIsAnError) {
  const std::vector<BF16> x = random_values<BF16>(4 * 8, 1);
  const std::vector<float> weight(8, 1.0f);
  std::vector<BF16> y(4 * 8);
  const ModSegment segment{0, 3, 0};
  kernels::RmsNormArgs args{
      x.data(), 8, weight.data(), y.data(), DType::kBF16, 4, 8, true, {&segment, 1, 0, x.data(), 16}, 0, 8};
  try {
    best_backend().rms_norm(args);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kInternal);
    EXPECT_NE(std::string(e.what()).find("token 3"), std::string::npos) << e.what();
  }
}

template <typename T>
void expect_gated_residual(std::int64_t m, std::int64_t c, bool modulate) {
  const auto seed = static_cast<std::uint64_t>(m * 100 + c);
  const std::vector<T> x = random_values<T>(m * c, seed, 3.0f), o = random_values<T>(m * c, seed + 1);
  const ModTable<T> mod(m, c + 5, seed + 2);
  Guarded<T> want(m * c), got(m * c);
  std::copy(x.begin(), x.end(), want.data());
  kernels::GatedResidualArgs args{want.data(), o.data(), kDTypeOf<T>, m, c, modulate, mod.modulation, 5};
  definition_backend().gated_residual(args);
  args.x = got.data();
  for_each_backend([&](kernels::Backend& backend) {
    std::copy(x.begin(), x.end(), got.data());
    backend.gated_residual(args);
    const Case info{"gated_residual", fmt::format("m {} c {} modulate {}", m, c, modulate), seed,
                    backend.name()};
    expect_same_bits(info, want, got, c);
  });
}

TEST(GatedResidual, HandValue) {
  BF16 x = to_bf16(10.0625f);
  const BF16 o = to_bf16(0.4375f), gate = to_bf16(0.213f);
  const ModSegment segment{7, 8, 0};
  best_backend().gated_residual({&x, &o, DType::kBF16, 1, 1, true, {&segment, 1, 7, &gate, 1}, 0});
  EXPECT_EQ(to_float(x), 10.125f);
}

TEST(GatedResidual, Sizes) {
  for (const std::int64_t size : kSizes)
    for (const bool modulate : {false, true}) {
      expect_gated_residual<BF16>(3, size, modulate);
      expect_gated_residual<BF16>(size, 33, modulate);
      expect_gated_residual<float>(2, size, modulate);
    }
}

TEST(GatedResidual, RowsInParts) {
  constexpr std::int64_t kM = 129, kC = 70;
  const std::vector<BF16> x = random_values<BF16>(kM * kC, 14), o = random_values<BF16>(kM * kC, 15);
  const ModTable<BF16> mod(kM, kC, 16);
  Guarded<BF16> whole(kM * kC), parts(kM * kC);
  std::copy(x.begin(), x.end(), whole.data());
  std::copy(x.begin(), x.end(), parts.data());
  best_backend().gated_residual({whole.data(), o.data(), DType::kBF16, kM, kC, true, mod.modulation, 0});
  for_each_part(kM, [&](std::int64_t begin, std::int64_t rows) {
    kernels::Modulation modulation = mod.modulation;
    modulation.token0 += begin;
    best_backend().gated_residual(
        {parts.data() + begin * kC, o.data() + begin * kC, DType::kBF16, rows, kC, true, modulation, 0});
  });
  expect_same_bits({"gated_residual", "in parts", 14, ""}, whole, parts, kC);
}

template <typename TX, typename T>
void expect_modulation_table(std::int64_t rows, std::int64_t c) {
  const auto seed = static_cast<std::uint64_t>(rows * 100 + c);
  const std::vector<TX> adaln = random_values<TX>(rows * 6 * c, seed);
  Guarded<T> want(rows * 6 * c), got(rows * 6 * c);
  kernels::ModulationTableArgs args{adaln.data(), kDTypeOf<TX>, want.data(), kDTypeOf<T>, rows, c};
  definition_backend().modulation_table(args);
  args.table = got.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.modulation_table(args);
    expect_same_bits({"modulation_table", fmt::format("rows {} c {}", rows, c), seed, backend.name()}, want,
                     got, 6 * c);
  });
}

TEST(ModulationTable, Sizes) {
  for (const std::int64_t size : kSizes) {
    expect_modulation_table<float, BF16>(3, size);
    expect_modulation_table<BF16, BF16>(2, size);
    expect_modulation_table<float, float>(1, size);
  }
}

template <typename T>
void expect_final_modulate(std::int64_t m, std::int64_t c, bool round_each) {
  const auto seed = static_cast<std::uint64_t>(m * 100 + c);
  const std::vector<T> x = random_values<T>(m * c, seed);
  const std::vector<float> weight = random_values<float>(c, seed + 1),
                           scale = random_values<float>(c, seed + 2),
                           shift = random_values<float>(c, seed + 3);
  Guarded<float> want(m * c), got(m * c);
  kernels::FinalModulateArgs args{
      x.data(), weight.data(), scale.data(), shift.data(), round_each, want.data(), kDTypeOf<T>, m, c};
  definition_backend().final_modulate(args);
  args.y = got.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.final_modulate(args);
    const Case info{"final_modulate", fmt::format("m {} c {} round_each {}", m, c, round_each), seed,
                    backend.name()};
    expect_same_bits(info, want, got, c);
  });
}

TEST(FinalModulate, Sizes) {
  for (const std::int64_t size : kSizes)
    for (const bool round_each : {false, true}) {
      expect_final_modulate<BF16>(3, size, round_each);
      expect_final_modulate<BF16>(size, 33, round_each);
      expect_final_modulate<float>(2, size, round_each);
    }
}

TEST(FinalModulate, RowsInParts) {
  constexpr std::int64_t kM = 129, kC = 70;
  const std::vector<BF16> x = random_values<BF16>(kM * kC, 17);
  const std::vector<float> row = random_values<float>(kC, 18);
  Guarded<float> whole(kM * kC), parts(kM * kC);
  const auto args = [&](std::int64_t begin, std::int64_t rows, float* y) {
    return kernels::FinalModulateArgs{x.data() + begin * kC, row.data(), row.data(), row.data(), false, y,
                                      DType::kBF16,          rows,       kC};
  };
  best_backend().final_modulate(args(0, kM, whole.data()));
  for_each_part(kM, [&](std::int64_t begin, std::int64_t rows) {
    best_backend().final_modulate(args(begin, rows, parts.data() + begin * kC));
  });
  expect_same_bits({"final_modulate", "in parts", 17, ""}, whole, parts, kC);
}

}  // namespace
}  // namespace h3s::test
