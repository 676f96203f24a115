#include <fmt/format.h>

#include "kernels/linear.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

template <typename TY>
struct LinearInt8 {
  LinearInt8(std::int64_t m, std::int64_t n, std::int64_t k, bool with_bias, std::uint64_t seed)
      : x(random_codes(m * k, seed)),
        w(random_codes(n * k, seed + 1)),
        x_scale(random_values<float>(m, seed + 2, 0.01f)),
        w_scale(random_values<float>(n, seed + 3, 0.01f)),
        bias(random_values<float>(n, seed + 4)),
        y(m * (n + 3)),
        args{x.data(),
             x_scale.data(),
             w.data(),
             w_scale.data(),
             with_bias ? bias.data() : nullptr,
             y.data(),
             kDTypeOf<TY>,
             n + 3,
             m,
             n,
             k},
        info{"linear_int8", fmt::format("m {} n {} k {} bias {}", m, n, k, with_bias), seed} {}

  std::vector<std::int8_t> x, w;
  std::vector<float> x_scale, w_scale, bias;
  Guarded<TY> y;
  kernels::LinearInt8Args args;
  Case info;
};

template <typename TY>
void expect_definition(LinearInt8<TY>& layer) {
  Guarded<TY> want(layer.y.count());
  kernels::LinearInt8Args args = layer.args;
  args.y = want.data();
  definition_backend().linear_int8(args);
  for_each_backend([&](kernels::Backend& backend) {
    layer.y.poison();
    backend.linear_int8(layer.args);
    layer.info.backend = backend.name();
    expect_same_bits(layer.info, want, layer.y, args.y_stride);
  });
}

template <typename TY>
void expect_definition(std::int64_t m, std::int64_t n, std::int64_t k, bool with_bias) {
  LinearInt8<TY> layer(m, n, k, with_bias, static_cast<std::uint64_t>(m * 131 + n * 17 + k));
  expect_definition(layer);
}

// The worked example of the int8 format: codes, scales, accumulators and results.
TEST(LinearInt8, HandValues) {
  const std::int8_t x[4] = {70, -28, 127, 0}, w[8] = {-42, 76, 127, 25, 12, -58, -104, 127};
  const float x_scale = 0.017716536298394203f, w_scale[2] = {0.007381889969110489f, 0.0054133860394358635f};
  float y[2];
  BF16 rounded[2];
  best_backend().linear_int8({x, &x_scale, w, w_scale, nullptr, y, DType::kF32, 2, 1, 2, 4});
  best_backend().linear_int8({x, &x_scale, w, w_scale, nullptr, rounded, DType::kBF16, 2, 1, 2, 4});
  EXPECT_EQ(y[0], 11061.0f * x_scale * w_scale[0]);
  EXPECT_EQ(y[1], -10744.0f * x_scale * w_scale[1]);
  EXPECT_EQ(to_float(rounded[0]), 1.4453125f);
  EXPECT_EQ(to_float(rounded[1]), -1.03125f);
}

TEST(LinearInt8, Sizes) {
  for (const std::int64_t size : kSizes) {
    expect_definition<BF16>(size, 3, 70, false);
    expect_definition<BF16>(3, size, 70, true);
    expect_definition<float>(3, 50, size, false);
  }
}

TEST(LinearInt8, TilesAndBlocks) {
  expect_definition<BF16>(600, 400, 65, false);
  expect_definition<float>(33, 100, 2500, true);
}

// The largest sums: every product 128 * 128, K at the bound of the op.
TEST(LinearInt8, ExtremeCodes) {
  LinearInt8<float> layer(2, 5, 131072 - 1, false, 3);
  std::fill(layer.x.begin(), layer.x.end(), std::int8_t{-128});
  std::fill(layer.w.begin(), layer.w.end(), std::int8_t{-128});
  std::fill(layer.w.begin(), layer.w.begin() + layer.args.k, std::int8_t{127});
  expect_definition(layer);
}

TEST(LinearInt8, SlicesOfRowsAndColumns) {
  constexpr std::int64_t kM = 259, kN = 131, kK = 130;
  LinearInt8<BF16> layer(kM, kN, kK, true, 7);
  best_backend().linear_int8(layer.args);
  for (const auto& [m0, m1, n0, n1] : std::vector<std::array<std::int64_t, 4>>{
           {0, 1, 0, kN}, {64, 193, 0, kN}, {0, kM, 130, 131}, {5, 70, 33, 98}}) {
    Guarded<BF16> part((m1 - m0) * (n1 - n0));
    kernels::LinearInt8Args args = layer.args;
    args.x += m0 * kK;
    args.x_scale += m0;
    args.w += n0 * kK;
    args.w_scale += n0;
    args.bias += n0;
    args.y = part.data();
    args.y_stride = args.n = n1 - n0;
    args.m = m1 - m0;
    best_backend().linear_int8(args);
    for (std::int64_t r = m0; r < m1; ++r)
      expect_same_bits(layer.info, layer.y.data() + r * layer.args.y_stride + n0,
                       part.data() + (r - m0) * args.n, args.n, args.n);
  }
}

// Parts of w, at tile width and not, are the columns they come from.
TEST(LinearInt8, PartsAreTheirColumns) {
  constexpr std::int64_t kM = 70, kStride = 300, kFirst = 20, kK = 64;
  for (const std::int64_t columns : {96, 128, 256})
    for (const std::int64_t count : {1, 2, 3}) {
      LinearInt8<BF16> layer(kM, 3 * kStride, kK, true, 9);
      best_backend().linear_int8(layer.args);
      kernels::LinearInt8Args args = layer.args;
      args.w += kFirst * kK;
      args.w_scale += kFirst;
      args.bias += kFirst;
      args.n = count * columns;
      args.y_stride = args.n + 5;
      args.parts = {count, kStride};
      Guarded<BF16> parts(kM * args.y_stride);
      args.y = parts.data();
      for_each_backend([&](kernels::Backend& backend) {
        parts.poison();
        backend.linear_int8(args);
        for (std::int64_t r = 0; r < kM; ++r)
          for (std::int64_t p = 0; p < count; ++p)
            expect_same_bits(layer.info, layer.y.data() + r * layer.args.y_stride + kFirst + p * kStride,
                             parts.data() + r * args.y_stride + p * columns, columns, columns);
      });
    }
}

}  // namespace
}  // namespace h3s::test
