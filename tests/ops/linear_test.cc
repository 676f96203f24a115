#include "kernels/linear.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/op_test.h"

namespace h3s::test {
namespace {

// Inputs of one linear layer; w starts one byte past its alignment, as it may in a mapped file.
template <typename TX, typename TW, typename TY>
struct Linear {
  Linear(std::int64_t m, std::int64_t n, std::int64_t k, bool with_bias, std::uint64_t seed)
      : x(random_values<TX>(m * (k + 3), seed)),
        bias(random_values<float>(n, seed + 1)),
        x_scale(random_values<float>(m, seed + 3)),
        y(m * (n + 5)) {
    const std::vector<TW> w = random_values<TW>(n * k, seed + 2);
    w_bytes.resize(w.size() * sizeof(TW) + 1);
    std::memcpy(w_bytes.data() + 1, w.data(), w.size() * sizeof(TW));
    args = {x.data(),
            kDTypeOf<TX>,
            k + 3,
            w_bytes.data() + 1,
            kDTypeOf<TW>,
            with_bias ? bias.data() : nullptr,
            y.data(),
            kDTypeOf<TY>,
            n + 5,
            m,
            n,
            k};
    if (with_bias) args.x_scale = x_scale.data();
    info = {"linear",
            fmt::format("x {} w {} m {} n {} k {} bias {}", dtype_name(kDTypeOf<TX>),
                        dtype_name(kDTypeOf<TW>), m, n, k, with_bias),
            seed};
  }

  std::vector<TX> x;
  std::vector<float> bias, x_scale;  // a layer has both or none
  Guarded<TY> y;
  std::vector<std::uint8_t> w_bytes;
  kernels::LinearArgs args;
  Case info;
};

template <typename TX, typename TW, typename TY>
void expect_definition(std::int64_t m, std::int64_t n, std::int64_t k, bool with_bias) {
  Linear<TX, TW, TY> layer(m, n, k, with_bias, static_cast<std::uint64_t>(m * 131 + n * 17 + k));
  Guarded<TY> want(layer.y.count());
  kernels::LinearArgs args = layer.args;
  args.y = want.data();
  definition_backend().linear(args);
  for_each_backend([&](kernels::Backend& backend) {
    layer.y.poison();
    backend.linear(layer.args);
    layer.info.backend = backend.name();
    expect_same_bits(layer.info, want, layer.y, n + 5);
  });
}

TEST(Linear, HandValues) {
  const float x[2][3] = {{1, 2, 3}, {-1, 0.5f, 4}}, w[2][3] = {{1, 0, -1}, {2, 2, 2}}, bias[2] = {0.25f, -1};
  float y[2][2];
  best_backend().linear({x, DType::kF32, 3, w, DType::kF32, bias, y, DType::kF32, 2, 2, 2, 3});
  EXPECT_EQ(y[0][0], -1.75f);
  EXPECT_EQ(y[0][1], 11.0f);
  EXPECT_EQ(y[1][0], -4.75f);
  EXPECT_EQ(y[1][1], 6.0f);
  const float x_scale[2] = {0.5f, -2};
  best_backend().linear({x, DType::kF32, 3, w, DType::kF32, bias, y, DType::kF32, 2, 2, 2, 3, {}, x_scale});
  EXPECT_EQ(y[0][0], -0.75f);
  EXPECT_EQ(y[0][1], 5.0f);
  EXPECT_EQ(y[1][0], 10.25f);
  EXPECT_EQ(y[1][1], -15.0f);
}

// 2^24 + 1 is lost inside one block and kept when the one comes in the next block's sum.
TEST(Linear, BlocksAreSummedApart) {
  std::vector<float> x(512, 0.0f), w(512, 1.0f);
  float y = 0;
  x[0] = 0x1p24f;
  x[256] = x[257] = 1;
  const kernels::LinearArgs args{x.data(), DType::kF32, 512, w.data(), DType::kF32, nullptr,
                                 &y,       DType::kF32, 1,   1,        1,           512};
  best_backend().linear(args);
  EXPECT_EQ(y, 0x1p24f + 2);
  std::swap(x[1], x[256]);
  std::swap(x[2], x[257]);
  best_backend().linear(args);
  EXPECT_EQ(y, 0x1p24f);
}

TEST(Linear, SizesBf16) {
  for (const std::int64_t size : kSizes) {
    expect_definition<BF16, BF16, BF16>(size, 3, 70, false);
    expect_definition<BF16, BF16, BF16>(3, size, 70, true);
    expect_definition<BF16, BF16, BF16>(3, 50, size, false);
  }
}

TEST(Linear, SizesF16) {
  for (const std::int64_t size : kSizes) {
    expect_definition<F16, F16, F16>(size, 3, 70, false);
    expect_definition<F16, F16, F16>(3, size, 70, true);
    expect_definition<F16, F16, F16>(3, 50, size, false);
  }
}

TEST(Linear, TilesAndBlocks) {
  expect_definition<BF16, BF16, BF16>(600, 400, 65, false);
  expect_definition<BF16, BF16, float>(130, 100, 520, true);
}

// y += x . W^T: onto what y holds, rounded once more.
template <typename T>
void expect_definition_of_sum(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto seed = static_cast<std::uint64_t>(m * 7 + n * 3 + k);
  Linear<T, T, T> layer(m, n, k, /*with_bias=*/true, seed);
  layer.args.add = true;
  const std::vector<T> held = random_values<T>(layer.y.count(), seed + 9);
  const auto hold = [&](Guarded<T>& y) {
    y.poison();
    for (std::int64_t row = 0; row < m; ++row)
      std::copy_n(held.data() + row * (n + 5), n, y.data() + row * (n + 5));
  };
  Guarded<T> want(layer.y.count());
  hold(want);
  kernels::LinearArgs args = layer.args;
  args.y = want.data();
  definition_backend().linear(args);
  for_each_backend([&](kernels::Backend& backend) {
    hold(layer.y);
    backend.linear(layer.args);
    layer.info.backend = backend.name();
    expect_same_bits(layer.info, want, layer.y, n + 5);
  });
}

TEST(Linear, AddsToTheOutput) {
  const float x[2] = {1, 2}, w[2] = {3, -1};
  float y = 10;
  best_backend().linear({.x = x,
                         .x_dtype = DType::kF32,
                         .x_stride = 2,
                         .w = w,
                         .w_dtype = DType::kF32,
                         .y = &y,
                         .y_dtype = DType::kF32,
                         .y_stride = 1,
                         .m = 1,
                         .n = 1,
                         .k = 2,
                         .add = true});
  EXPECT_EQ(y, 11);
  for (const std::int64_t size : kSizes) {
    expect_definition_of_sum<BF16>(3, size, 16);
    expect_definition_of_sum<float>(size, 3, 48);
  }
  expect_definition_of_sum<F16>(70, 130, 16);
}

TEST(Linear, DTypes) {
  expect_definition<float, float, float>(65, 97, 259, true);
  expect_definition<float, BF16, BF16>(33, 49, 300, true);
  expect_definition<float, F16, float>(17, 49, 513, false);
  expect_definition<BF16, F16, BF16>(17, 49, 129, true);
  expect_definition<BF16, float, float>(9, 25, 257, false);
  expect_definition<F16, F16, F16>(65, 97, 264, true);
  expect_definition<F16, F16, float>(33, 49, 300, false);
  expect_definition<F16, float, BF16>(17, 31, 70, true);
  expect_definition<float, BF16, F16>(9, 40, 129, false);
}

// Every binary16 value as a weight, subnormals and infinities included (NaN has no fixed bits).
TEST(Linear, AllHalfWeights) {
  std::vector<F16> w;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    if ((bits & 0x7FFF) <= 0x7C00) w.push_back(F16{static_cast<std::uint16_t>(bits)});
  const auto n = static_cast<std::int64_t>(w.size());
  const float one = 1;
  Guarded<float> y(n);
  for_each_backend([&](kernels::Backend& backend) {
    backend.linear({&one, DType::kF32, 1, w.data(), DType::kF16, nullptr, y.data(), DType::kF32, n, 1, n, 1});
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(y[i], to_float(w[static_cast<std::size_t>(i)]) + 0.0f) << i;
  });
}

// Every binary16 value, the midpoint to its neighbour and a float step to either side, rounded to binary16.
TEST(Linear, RoundsToHalf) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float value = to_float(F16{static_cast<std::uint16_t>(bits)});
    const float next = bits < 0x7BFF ? to_float(F16{static_cast<std::uint16_t>(bits + 1)}) : 65536.0f;
    const float middle = (value + next) / 2;
    for (const float v : {value, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, next)})
      x.push_back(bits % 2 == 0 ? v : -v);
  }
  const auto m = static_cast<std::int64_t>(x.size());
  const float one = 1;
  Guarded<F16> y(m), want(m);
  for (std::int64_t i = 0; i < m; ++i) want[i] = to_f16(x[static_cast<std::size_t>(i)] + 0.0f);
  for_each_backend([&](kernels::Backend& backend) {
    y.poison();
    backend.linear({x.data(), DType::kF32, 1, &one, DType::kF32, nullptr, y.data(), DType::kF16, 1, m, 1, 1});
    expect_same_bits({"linear", "every binary16 and midpoint", 0, backend.name()}, want, y, 1);
  });
}

TEST(Linear, SlicesOfRowsAndColumns) {
  constexpr std::int64_t kM = 259, kN = 131, kK = 300;
  Linear<BF16, BF16, BF16> layer(kM, kN, kK, true, 7);
  best_backend().linear(layer.args);
  const std::int64_t stride = layer.args.y_stride;
  for (const auto& [m0, m1, n0, n1] : std::vector<std::array<std::int64_t, 4>>{
           {0, 1, 0, kN}, {258, 259, 0, kN}, {64, 193, 0, kN}, {0, kM, 130, 131}, {5, 70, 33, 98}}) {
    Guarded<BF16> part((m1 - m0) * (n1 - n0));
    kernels::LinearArgs args = layer.args;
    args.x = layer.x.data() + m0 * args.x_stride;
    args.w = static_cast<const std::uint8_t*>(args.w) + n0 * kK * 2;
    args.bias += n0;
    args.x_scale += m0;
    args.y = part.data();
    args.y_stride = args.n = n1 - n0;
    args.m = m1 - m0;
    best_backend().linear(args);
    for (std::int64_t r = m0; r < m1; ++r)
      expect_same_bits(layer.info, layer.y.data() + r * stride + n0, part.data() + (r - m0) * args.n, args.n,
                       args.n);
  }
}

// Parts of w, at tile width and not, are the columns they come from.
TEST(Linear, PartsAreTheirColumns) {
  constexpr std::int64_t kM = 70, kStride = 300, kFirst = 20, kK = 64;
  for (const std::int64_t columns : {96, 128, 256})
    for (const std::int64_t count : {1, 2, 3}) {
      Linear<BF16, BF16, BF16> layer(kM, 3 * kStride, kK, true, 9);
      best_backend().linear(layer.args);
      kernels::LinearArgs args = layer.args;
      args.w = static_cast<const std::uint8_t*>(args.w) + kFirst * kK * 2;
      args.bias += kFirst;
      args.n = count * columns;
      args.y_stride = args.n + 5;
      args.parts = {count, kStride};
      Guarded<BF16> parts(kM * args.y_stride);
      args.y = parts.data();
      parts.poison();
      best_backend().linear(args);
      for (std::int64_t r = 0; r < kM; ++r)
        for (std::int64_t p = 0; p < count; ++p)
          expect_same_bits(layer.info, layer.y.data() + r * layer.args.y_stride + kFirst + p * kStride,
                           parts.data() + r * args.y_stride + p * columns, columns, columns);
    }
}

}  // namespace
}  // namespace h3s::test
