// rope_table and qkv_norm_rope.
#include <fmt/format.h>

#include <cmath>

#include "kernels/row_ops.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

using kernels::kHeadDim;
using kernels::kRopePairs;

// inv_freq of base 10000 over 16 frequencies.
std::vector<float> inverse_frequencies() {
  std::vector<float> f(16);
  for (std::size_t i = 0; i < 16; ++i)
    f[i] = static_cast<float>(1.0 / std::pow(10000.0, static_cast<double>(i) / 16.0));
  f[1] = 0.5623413324356079f, f[2] = 0.3162277638912201f, f[3] = 0.17782793939113617f;
  f[15] = 0.00017782794020604342f;
  return f;
}

TEST(RopeTable, HandValues) {
  const double position[3] = {501.6666666666667, 3.9051368637047297, -5.166010488516722};
  const std::vector<float> inv_freq = inverse_frequencies();
  BF16 table[96];
  float exact[96];
  best_backend().rope_table({position, inv_freq.data(), table, DType::kBF16, 1});
  best_backend().rope_table({position, inv_freq.data(), exact, DType::kF32, 1});
  struct Entry {
    int pair;
    float cosine, sine, cosine_bf16, sine_bf16;
  };
  for (const Entry& e : {Entry{0, 0.5502204895f, -0.8350194097f, 0.55078125f, -0.8359375f},
                         Entry{1, 0.8048173189f, -0.5935225487f, 0.8046875f, -0.59375f},
                         Entry{15, 0.9960234165f, 0.0890920609f, 0.99609375f, 0.0888671875f},
                         Entry{16, -0.7223898172f, -0.6914860606f, -0.72265625f, -0.69140625f},
                         Entry{17, -0.5852785707f, 0.8108323216f, -0.5859375f, 0.8125f},
                         Entry{32, 0.4382235408f, 0.8988659978f, 0.4375f, 0.8984375f},
                         Entry{33, -0.9721566439f, -0.2343320251f, -0.97265625f, -0.234375f}}) {
    EXPECT_EQ(exact[e.pair], e.cosine) << e.pair;
    EXPECT_EQ(exact[48 + e.pair], e.sine) << e.pair;
    EXPECT_EQ(to_float(table[e.pair]), e.cosine_bf16) << e.pair;
    EXPECT_EQ(to_float(table[48 + e.pair]), e.sine_bf16) << e.pair;
  }
}

TEST(RopeTable, ThreadsAgree) {
  constexpr std::int64_t kM = 259;
  std::vector<double> positions(kM * 3);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<double>(i) * 0.37 - 100;
  const std::vector<float> inv_freq = inverse_frequencies();
  Guarded<BF16> want(kM * 96), got(kM * 96);
  definition_backend().rope_table({positions.data(), inv_freq.data(), want.data(), DType::kBF16, kM});
  for_each_backend([&](kernels::Backend& backend) {
    got.poison();
    backend.rope_table({positions.data(), inv_freq.data(), got.data(), DType::kBF16, kM});
    expect_same_bits({"rope_table", "m 259", 0, backend.name()}, want, got, 96);
  });
}

// q, k, v in one buffer [m][3 * heads * 128]; destinations [head][m + 2][128].
template <typename T>
struct Qkv {
  Qkv(std::int64_t m, std::int64_t heads, std::uint64_t seed)
      : src(random_values<T>(m * 3 * heads * kHeadDim, seed, 2.0f)),
        q_weight(random_values<float>(kHeadDim, seed + 1)),
        k_weight(random_values<float>(kHeadDim, seed + 2)),
        rope(random_values<T>(m * 2 * kRopePairs, seed + 3)),
        size(heads * (m + 2) * kHeadDim),
        info{"qkv_norm_rope", fmt::format("m {} heads {}", m, heads), seed, ""} {
    args.src_stride = 3 * heads * kHeadDim;
    args.q.src = src.data(), args.k.src = src.data() + heads * kHeadDim,
    args.v.src = src.data() + 2 * heads * kHeadDim;
    args.q.dst_head_stride = args.k.dst_head_stride = args.v.dst_head_stride = (m + 2) * kHeadDim;
    args.q_weight = q_weight.data(), args.k_weight = k_weight.data(), args.rope = rope.data();
    args.dtype = kDTypeOf<T>, args.m = m, args.heads = heads;
  }

  kernels::QkvArgs with_outputs(T* q, T* k, T* v) const {
    kernels::QkvArgs result = args;
    result.q.dst = q, result.k.dst = k, result.v.dst = v;
    return result;
  }

  std::vector<T> src;
  std::vector<float> q_weight, k_weight;
  std::vector<T> rope;
  std::int64_t size;
  kernels::QkvArgs args;
  Case info;
};

template <typename T>
void expect_qkv(std::int64_t m, std::int64_t heads, bool with_rope, bool with_q) {
  Qkv<T> in(m, heads, static_cast<std::uint64_t>(m * 10 + heads));
  if (!with_rope) in.args.rope = nullptr;
  if (!with_q) in.args.q.src = nullptr;
  Guarded<T> want_q(in.size), want_k(in.size), want_v(in.size), q(in.size), k(in.size), v(in.size);
  definition_backend().qkv_norm_rope(in.with_outputs(want_q.data(), want_k.data(), want_v.data()));
  for_each_backend([&](kernels::Backend& backend) {
    q.poison(), k.poison(), v.poison();
    backend.qkv_norm_rope(in.with_outputs(q.data(), k.data(), v.data()));
    in.info.backend = backend.name();
    expect_same_bits(in.info, want_q, q, kHeadDim);
    expect_same_bits(in.info, want_k, k, kHeadDim);
    expect_same_bits(in.info, want_v, v, kHeadDim);
  });
}

TEST(QkvNormRope, HandValues) {
  // All ones with weight one: r is a little under 1 and v rounds to 1 in bf16.
  const std::vector<BF16> x(kHeadDim, to_bf16(1.0f));
  const std::vector<float> weight(kHeadDim, 1.0f);
  std::vector<BF16> rope(2 * kRopePairs, to_bf16(0.5f)), y(kHeadDim);
  std::fill(rope.begin() + kRopePairs, rope.end(), to_bf16(0.75f));
  kernels::QkvArgs args;
  args.k = {x.data(), y.data(), kHeadDim};
  args.src_stride = kHeadDim, args.k_weight = weight.data(), args.rope = rope.data(), args.m = args.heads = 1;
  best_backend().qkv_norm_rope(args);
  EXPECT_EQ(to_float(y[0]), -0.25f);
  EXPECT_EQ(to_float(y[48]), 1.25f);
  EXPECT_EQ(to_float(y[96]), 1.0f);
}

TEST(QkvNormRope, Sizes) {
  for (const std::int64_t m : {1, 31, 33, 65, 259}) {
    expect_qkv<BF16>(m, 3, true, true);
    expect_qkv<BF16>(m, 1, false, true);
    expect_qkv<float>(m, 2, true, false);
  }
}

TEST(QkvNormRope, RowsAndHeadsInParts) {
  constexpr std::int64_t kM = 129, kHeads = 4;
  const Qkv<BF16> in(kM, kHeads, 77);
  Guarded<BF16> q(in.size), k(in.size), v(in.size), part_q(in.size), part_k(in.size), part_v(in.size);
  best_backend().qkv_norm_rope(in.with_outputs(q.data(), k.data(), v.data()));
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t m = 0; m < kM; m += 50) {
      const std::int64_t to = h * in.args.q.dst_head_stride + m * kHeadDim;
      kernels::QkvArgs part = in.with_outputs(part_q.data() + to, part_k.data() + to, part_v.data() + to);
      for (kernels::QkvArgs::Part* p : {&part.q, &part.k, &part.v})
        p->src = static_cast<const BF16*>(p->src) + m * part.src_stride + h * kHeadDim;
      part.rope = in.rope.data() + m * 2 * kRopePairs;
      part.m = std::min<std::int64_t>(50, kM - m);
      part.heads = 1;
      best_backend().qkv_norm_rope(part);
    }
  expect_same_bits(in.info, q, part_q, kHeadDim);
  expect_same_bits(in.info, k, part_k, kHeadDim);
  expect_same_bits(in.info, v, part_v, kHeadDim);
}

}  // namespace
}  // namespace h3s::test
