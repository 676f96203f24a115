#include "kernels/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/row_ops.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

constexpr std::int64_t kD = kernels::kHeadDim;

// q, k, v as [head][token][128] with a gap between heads; o as [token][head][128].
template <typename T>
struct Attention {
  Attention(std::int64_t heads, std::int64_t q_tokens, std::int64_t kv_tokens, std::uint64_t seed)
      : q(random_values<T>(heads * (q_tokens + 1) * kD, seed, 2.0f)),
        k(random_values<T>(heads * (kv_tokens + 2) * kD, seed + 1, 2.0f)),
        v(random_values<T>(heads * (kv_tokens + 3) * kD, seed + 2)),
        o(q_tokens * heads * kD),
        lse(heads * q_tokens) {
    args.q = q.data(), args.k = k.data(), args.v = v.data(), args.o = o.data(), args.lse = lse.data();
    args.dtype = kDTypeOf<T>;
    args.heads = heads, args.q_tokens = q_tokens, args.kv_tokens = kv_tokens;
    args.q_head_stride = (q_tokens + 1) * kD, args.k_head_stride = (kv_tokens + 2) * kD;
    args.v_head_stride = (kv_tokens + 3) * kD;
    args.q_token_stride = args.k_token_stride = args.v_token_stride = args.o_head_stride = kD;
    args.o_token_stride = heads * kD;
    args.scale = 1.0f / std::sqrt(128.0f);
    info = {"attention", fmt::format("heads {} queries {} keys {}", heads, q_tokens, kv_tokens), seed};
  }

  std::vector<T> q, k, v;
  Guarded<T> o;
  Guarded<float> lse;
  kernels::AttentionArgs args;
  Case info;
};

template <typename T>
void expect_definition(std::int64_t heads, std::int64_t q_tokens, std::int64_t kv_tokens) {
  Attention<T> a(heads, q_tokens, kv_tokens,
                 static_cast<std::uint64_t>(heads + q_tokens * 7 + kv_tokens * 1001));
  Guarded<T> want(a.o.count());
  Guarded<float> want_lse(a.lse.count());
  kernels::AttentionArgs args = a.args;
  args.o = want.data();
  args.lse = want_lse.data();
  definition_backend().attention(args);
  for_each_backend([&](kernels::Backend& backend) {
    a.o.poison();
    a.lse.poison();
    backend.attention(a.args);
    a.info.backend = backend.name();
    expect_same_bits(a.info, want, a.o, kD);
    expect_same_bits(a.info, want_lse, a.lse, q_tokens);
  });
}

TEST(Attention, OneKeyReturnsItsValue) {
  Attention<BF16> a(2, 3, 1, 5);
  best_backend().attention(a.args);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t h = 0; h < 2; ++h)
      expect_same_bits(a.info, a.v.data() + h * a.args.v_head_stride, a.o.data() + (i * 2 + h) * kD, kD, kD);
}

TEST(Attention, EqualKeysAverage) {
  Attention<float> a(1, 2, 100, 6);
  std::fill(a.q.begin(), a.q.end(), 0.0f);
  for (std::size_t i = 0; i < a.v.size(); ++i) a.v[i] = i / kD % 2 == 0 ? 3.0f : 1.0f;
  best_backend().attention(a.args);
  for (std::int64_t i = 0; i < 2 * kD; ++i) EXPECT_EQ(a.o[i], 2.0f);
  EXPECT_NEAR(a.lse[0], std::log(100.0f), 1e-6f);
}

TEST(Attention, Sizes) {
  for (const std::int64_t size : kSizes) {
    expect_definition<BF16>(1, 3, size);
    expect_definition<BF16>(1, size, 66);
  }
  expect_definition<BF16>(3, 50, 129);
}

TEST(Attention, Half) {
  for (const std::int64_t size : {1, 33, 64, 65, 127, 259}) {
    expect_definition<F16>(1, 3, size);
    expect_definition<F16>(2, size, 66);
  }
}

TEST(Attention, Float) {
  expect_definition<float>(2, 65, 200);
  expect_definition<float>(1, 1, 31);
}

TEST(Attention, HeadsAndQueriesInParts) {
  Attention<BF16> a(5, 259, 300, 11);
  best_backend().attention(a.args);
  for (const auto& [h0, h1, i0, i1] : std::vector<std::array<std::int64_t, 4>>{
           {0, 1, 0, 259}, {2, 5, 0, 259}, {0, 5, 258, 259}, {0, 5, 0, 1}, {1, 3, 63, 192}}) {
    Guarded<BF16> part((i1 - i0) * (h1 - h0) * kD);
    kernels::AttentionArgs args = a.args;
    args.q = a.q.data() + h0 * args.q_head_stride + i0 * kD;
    args.k = a.k.data() + h0 * args.k_head_stride;
    args.v = a.v.data() + h0 * args.v_head_stride;
    args.o = part.data();
    args.lse = nullptr;
    args.heads = h1 - h0;
    args.q_tokens = i1 - i0;
    args.o_token_stride = args.heads * kD;
    best_backend().attention(args);
    for (std::int64_t i = i0; i < i1; ++i)
      expect_same_bits(a.info, a.o.data() + (i * 5 + h0) * kD, part.data() + (i - i0) * args.o_token_stride,
                       args.o_token_stride, kD);
  }
}

// Softmax attention in double precision on the same operands.
template <typename T>
std::vector<double> reference(const Attention<T>& a, std::int64_t h, std::int64_t i, double* lse) {
  const auto at = [](const std::vector<T>& x, std::int64_t idx) {
    return static_cast<double>(to_float(x[static_cast<std::size_t>(idx)]));
  };
  const auto& args = a.args;
  std::vector<double> s(static_cast<std::size_t>(args.kv_tokens)), o(kD, 0.0);
  double largest = -1e300, sum = 0;
  for (std::int64_t j = 0; j < args.kv_tokens; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < kD; ++d)
      dot += at(a.q, h * args.q_head_stride + i * kD + d) * at(a.k, h * args.k_head_stride + j * kD + d);
    largest = std::max(largest, s[static_cast<std::size_t>(j)] = dot * static_cast<double>(args.scale));
  }
  for (double& v : s) sum += v = std::exp(v - largest);
  for (std::int64_t j = 0; j < args.kv_tokens; ++j)
    for (std::int64_t d = 0; d < kD; ++d)
      o[static_cast<std::size_t>(d)] +=
          s[static_cast<std::size_t>(j)] / sum * at(a.v, h * args.v_head_stride + j * kD + d);
  *lse = largest + std::log(sum);
  return o;
}

// Let u be the unit roundoff of the compute type and e = 2^-24 that of float. A score t = c (q.k) carries at
// most (128 + 2) e |q||k| c, turned by exp2 into a relative error of p; p and the final o / l are rounded to
// the compute type: u each, of sum p_j |v_j| / l <= max |v|. The float sums over n keys add at most (n + n /
// 64 * 2 + 8) e.
template <typename T>
void expect_near_reference(std::int64_t kv_tokens, double u) {
  constexpr double kE = 0x1p-24;
  Attention<T> a(2, 40, kv_tokens, 21);
  best_backend().attention(a.args);
  double q2 = 0, k2 = 0, v_max = 0;
  for (std::size_t i = 0; i < a.q.size(); i += kD) {
    double sum = 0;
    for (std::size_t d = 0; d < kD; ++d) sum += std::pow(static_cast<double>(to_float(a.q[i + d])), 2);
    q2 = std::max(q2, sum);
  }
  for (std::size_t i = 0; i < a.k.size(); i += kD) {
    double sum = 0;
    for (std::size_t d = 0; d < kD; ++d) sum += std::pow(static_cast<double>(to_float(a.k[i + d])), 2);
    k2 = std::max(k2, sum);
  }
  for (const T& v : a.v) v_max = std::max(v_max, std::fabs(static_cast<double>(to_float(v))));
  const double score_error = 130 * kE * std::sqrt(q2 * k2) * static_cast<double>(a.args.scale);
  const double sum_error = (static_cast<double>(kv_tokens) * (1 + 2.0 / 64) + 8) * kE;
  const double bound = v_max * (2 * u + 2 * (score_error + sum_error));
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 40; ++i) {
      double lse = 0;
      const std::vector<double> want = reference(a, h, i, &lse);
      for (std::int64_t d = 0; d < kD; ++d)
        ASSERT_NEAR(static_cast<double>(to_float(a.o[(i * 2 + h) * kD + d])),
                    want[static_cast<std::size_t>(d)], bound)
            << describe(a.info, a.args.dtype) << " head " << h << " query " << i << " dimension " << d;
      ASSERT_NEAR(static_cast<double>(a.lse[h * 40 + i]), lse,
                  score_error + sum_error + 4 * kE * std::fabs(lse));
    }
}

TEST(Attention, NearDoubleReferenceBf16) {
  expect_near_reference<BF16>(515, 0x1p-9);
}
TEST(Attention, NearDoubleReferenceHalf) {
  expect_near_reference<F16>(515, 0x1p-12);
}
TEST(Attention, NearDoubleReferenceFloat) {
  expect_near_reference<float>(515, 0x1p-24);
}

// Scores so far apart that only the largest counts, met in the last tile.
TEST(Attention, OneScoreDominates) {
  Attention<BF16> a(1, 4, 130, 31);
  std::fill(a.k.begin(), a.k.end(), to_bf16(0.0f));
  std::fill(a.q.begin(), a.q.end(), to_bf16(8.0f));
  std::fill_n(a.k.begin() + 129 * kD, kD, to_bf16(8.0f));
  best_backend().attention(a.args);
  for (std::int64_t i = 0; i < 4; ++i)
    expect_same_bits(a.info, a.v.data() + 129 * kD, a.o.data() + i * kD, kD, kD);
}

}  // namespace
}  // namespace h3s::test
