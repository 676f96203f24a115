// Attention against the rate of OpenBLAS sgemm (a square product of about the same time).
#include <fmt/format.h>

#include <cstring>

#include "comparators.h"
#include "context.h"
#include "kernels/row_ops.h"

namespace h3s::bench {
namespace {

constexpr std::int64_t kD = kernels::kHeadDim;

struct AttentionJob {
  AttentionJob(std::int64_t heads, std::int64_t tokens)
      : q(to_bf16(random_floats(heads * tokens * kD, 1))),
        k(to_bf16(random_floats(heads * tokens * kD, 2))),
        v(to_bf16(random_floats(heads * tokens * kD, 3))),
        o(q.size()) {
    args.q = q.data(), args.k = k.data(), args.v = v.data(), args.o = o.data();
    args.heads = heads, args.q_tokens = args.kv_tokens = tokens;
    args.q_head_stride = args.k_head_stride = args.v_head_stride = tokens * kD;
    args.q_token_stride = args.k_token_stride = args.v_token_stride = args.o_head_stride = kD;
    args.o_token_stride = heads * kD;
    args.scale = 0.08838834764831845f;
  }

  double work() const {
    return 4.0 * static_cast<double>(args.heads * args.q_tokens) * static_cast<double>(args.kv_tokens * kD);
  }

  std::vector<BF16> q, k, v, o;
  kernels::AttentionArgs args;
};

// The last query of the last head against the definition, bit for bit.
bool equals_definition(Context& context, const AttentionJob& job) {
  kernels::AttentionArgs args = job.args;
  const std::int64_t head = args.heads - 1, query = args.q_tokens - 1;
  std::vector<BF16> want(kD);
  args.q = job.q.data() + head * args.q_head_stride + query * kD;
  args.k = job.k.data() + head * args.k_head_stride;
  args.v = job.v.data() + head * args.v_head_stride;
  args.o = want.data();
  args.heads = args.q_tokens = 1;
  context.definition().attention(args);
  return std::memcmp(want.data(), job.o.data() + query * args.o_token_stride + head * kD,
                     kD * sizeof(BF16)) == 0;
}

void bench_job(Context& context, std::int64_t heads, std::int64_t tokens) {
  constexpr std::int64_t kSide = 2048;
  AttentionJob job(heads, tokens);
  context.backend().attention(job.args);
  check(equals_definition(context, job), "attention equals its definition");
  const std::vector<float> x = random_floats(kSide * kSide, 4), w = random_floats(kSide * kSide, 5);
  std::vector<float> y(x.size());
  const auto sgemm = [&] { openblas::sgemm(x.data(), w.data(), y.data(), kSide, kSide, kSide); };
  constexpr auto kSideReal = static_cast<double>(kSide);
  context.measure(
      {"attention", "bf16, width 128", fmt::format("heads {} tokens {}", heads, tokens), job.work(),
       "GFLOP/s", "OpenBLAS sgemm 2048^3", 2 * kSideReal * kSideReal * kSideReal, 0.4},
      [&] { context.backend().attention(job.args); },
      openblas::available() ? std::function<void()>(sgemm) : nullptr);
}

}  // namespace

void bench_attention(Context& context) {
  bench_job(context, 4, 4096);
  bench_job(context, 1, 8192);
  bench_job(context, 56, 259);
}

}  // namespace h3s::bench
