// silu, swiglu, and the exp and exp2 beneath them.
#include <fmt/format.h>

#include <cmath>

#include "backend/cpu/math.h"
#include "kernels/row_ops.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

double ulps(float got, double want) {
  const double spacing = std::ldexp(1.0, std::max(-126, std::ilogb(want)) - 23);
  return std::fabs(static_cast<double>(got) - want) / spacing;
}

// Every 97th float in [low, high).
template <typename Fn>
void for_dense_floats(float low, float high, Fn fn) {
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 97)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto x = std::bit_cast<float>(bits | sign);
      if (x >= low && x < high) fn(x);
    }
}

TEST(Exp, Accuracy) {
  double worst = 0;
  for_dense_floats(-87.3f, 88.7f, [&](float x) {
    worst = std::max(worst, ulps(cpu::exp(x), std::exp(static_cast<double>(x))));
  });
  EXPECT_LE(worst, 1.1);
}

TEST(Exp2, Accuracy) {
  double worst = 0;
  for_dense_floats(-126.0f, 127.99f, [&](float x) {
    worst = std::max(worst, ulps(cpu::exp2(x), std::exp2(static_cast<double>(x))));
  });
  EXPECT_LE(worst, 1.0);
}

TEST(Exp, Limits) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp2(-126.0f), 0x1p-126f);
  EXPECT_EQ(cpu::exp2(-126.1f), 0.0f);
  EXPECT_EQ(cpu::exp2(127.0f), 0x1p127f);
  EXPECT_EQ(cpu::exp2(128.0f), inf);
  EXPECT_EQ(cpu::exp2(-inf), 0.0f);
  EXPECT_EQ(cpu::exp(-inf), 0.0f);
  EXPECT_EQ(cpu::exp(std::numeric_limits<float>::max()), inf);
  EXPECT_EQ(cpu::exp(-std::numeric_limits<float>::max()), 0.0f);
  EXPECT_TRUE(std::isnan(cpu::exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(cpu::silu(-1000.0f), 0.0f);
  EXPECT_TRUE(std::signbit(cpu::silu(-1000.0f)));
  EXPECT_EQ(cpu::silu(1000.0f), 1000.0f);
}

template <typename T>
void expect_silu(const Case& c, const std::vector<T>& x) {
  const auto count = static_cast<std::int64_t>(x.size());
  Guarded<T> want(count), got(count);
  definition_backend().silu({x.data(), want.data(), kDTypeOf<T>, count});
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.silu({x.data(), got.data(), kDTypeOf<T>, count});
    expect_same_bits({c.op, c.shape, c.seed, backend.name()}, want, got, count);
  });
}

// silu is exp in disguise: this holds the vector exp to the scalar one on every exponent.
TEST(Silu, DenseSweep) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 9973)
    for (const std::uint32_t sign : {0u, 0x80000000u}) x.push_back(std::bit_cast<float>(bits | sign));
  for (float near = 87.0f; near < 89.0f; near += 0x1p-10f) x.insert(x.end(), {near, -near});
  expect_silu<float>({"silu", "dense sweep"}, x);
}

TEST(Silu, EveryBf16) {
  std::vector<BF16> x;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    if ((bits & 0x7FFF) <= 0x7F80 && bits != 0xFF80) x.push_back(BF16{static_cast<std::uint16_t>(bits)});
  expect_silu<BF16>({"silu", "every bf16"}, x);
}

TEST(Silu, Sizes) {
  for (const std::int64_t size : kSizes)
    expect_silu<BF16>({"silu", fmt::format("{}", size), 3}, random_values<BF16>(size, 3));
}

template <typename T>
void expect_swiglu(std::int64_t m, std::int64_t f) {
  const auto seed = static_cast<std::uint64_t>(m * 1000 + f);
  const std::vector<T> gate_up = random_values<T>(m * 2 * f, seed, 4.0f);
  Guarded<T> want(m * f), got(m * f);
  kernels::SwigluArgs args{gate_up.data(), want.data(), kDTypeOf<T>, m, f};
  definition_backend().swiglu(args);
  args.y = got.data();
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.swiglu(args);
    expect_same_bits({"swiglu", fmt::format("m {} f {}", m, f), seed, backend.name()}, want, got, f);
  });
}

TEST(Swiglu, HandValues) {
  const BF16 gate_up[4] = {to_bf16(0.0f), to_bf16(-200.0f), to_bf16(3.0f), to_bf16(5.0f)};
  BF16 y[2];
  best_backend().swiglu({gate_up, y, DType::kBF16, 1, 2});
  EXPECT_EQ(to_float(y[0]), 0.0f);
  EXPECT_EQ(to_float(y[1]), 0.0f);
  EXPECT_EQ(y[1].bits, 0x8000);
}

TEST(Swiglu, Sizes) {
  for (const std::int64_t size : kSizes) {
    expect_swiglu<BF16>(3, size);
    expect_swiglu<BF16>(size, 33);
    expect_swiglu<float>(2, size);
  }
}

TEST(Swiglu, RowsInParts) {
  constexpr std::int64_t kM = 129, kF = 70;
  const std::vector<BF16> gate_up = random_values<BF16>(kM * 2 * kF, 19, 4.0f);
  Guarded<BF16> whole(kM * kF), parts(kM * kF);
  best_backend().swiglu({gate_up.data(), whole.data(), DType::kBF16, kM, kF});
  for_each_part(kM, [&](std::int64_t m, std::int64_t rows) {
    best_backend().swiglu({gate_up.data() + m * 2 * kF, parts.data() + m * kF, DType::kBF16, rows, kF});
  });
  expect_same_bits({"swiglu", "in parts", 19, ""}, whole, parts, kF);
}

}  // namespace
}  // namespace h3s::test
