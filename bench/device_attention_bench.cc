// Attention on a GPU, 56 heads, every token a query and a key.
#include <fmt/format.h>

#include <cmath>

#include "device_memory.h"
#include "kernels/row_ops.h"

namespace h3s::bench {
namespace {

constexpr std::int64_t kHeads = 56, kD = kernels::kHeadDim;

struct AttentionJob {
  AttentionJob(Context& context, std::int64_t tokens_)
      : tokens(tokens_), memory(context), q(make(1)), k(make(2)), v(make(3)) {
    o = static_cast<BF16*>(memory.make(bytes(), Fill::kPoison));
  }
  std::int64_t bytes() const { return kHeads * tokens * kD * 2; }
  BF16* make(std::uint64_t seed) { return static_cast<BF16*>(memory.make(bytes(), Fill::kBf16, seed)); }

  kernels::AttentionArgs args() const {
    kernels::AttentionArgs a;
    a.q = q, a.k = k, a.v = v, a.o = o;
    a.heads = kHeads, a.q_tokens = a.kv_tokens = tokens;
    a.q_head_stride = a.k_head_stride = a.v_head_stride = tokens * kD;
    a.q_token_stride = a.k_token_stride = a.v_token_stride = a.o_head_stride = kD;
    a.o_token_stride = kHeads * kD;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kD)));
    return a;
  }

  std::int64_t tokens;
  DeviceMemory memory;
  BF16 *q, *k, *v, *o;
};

// The last query of a head against the definition on the host. P and O are rounded to bf16 in both, P
// relative to another maximum: 2^-9 a term, 2.3e-3 of the result's RMS seen in float64 with that rounding
// alone.
void check_head(Context& context, AttentionJob& job, std::int64_t head) {
  const auto rows = static_cast<std::size_t>(job.tokens * kD);
  std::vector<BF16> q(kD), k(rows), v(rows), want(kD), got(kD);
  const auto read = [&](std::vector<BF16>& host, const BF16* device) {
    job.memory.read(host.data(), device, static_cast<std::int64_t>(host.size() * sizeof(BF16)));
  };
  read(q, job.q + (head * job.tokens + job.tokens - 1) * kD);
  read(k, job.k + head * job.tokens * kD);
  read(v, job.v + head * job.tokens * kD);
  read(got, job.o + ((job.tokens - 1) * kHeads + head) * kD);
  kernels::AttentionArgs args = job.args();
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.o = want.data();
  args.heads = args.q_tokens = 1;
  context.definition().attention(args);
  double error = 0, norm = 0;
  for (std::size_t d = 0; d < want.size(); ++d) {
    const double w = static_cast<double>(to_float(want[d])), g = static_cast<double>(to_float(got[d]));
    error += (g - w) * (g - w);
    norm += w * w;
  }
  check(error <= 1e-4 * norm,  // 1 % RMS of 128 values; false for a NaN
        fmt::format("attention, {} tokens, head {}: relative RMS difference {}", job.tokens, head,
                    std::sqrt(error / norm)));
}

}  // namespace

void bench_device_attention(Context& context) {
  AttentionJob job(context, context.options().tokens);
  context.backend().attention(job.args());
  for (const std::int64_t head : {std::int64_t{0}, kHeads / 2, kHeads - 1}) check_head(context, job, head);
  const double work = 4.0 * static_cast<double>(job.tokens) * static_cast<double>(job.tokens) * kHeads * kD;
  context.measure(
      {"attention", "bf16, width 128", fmt::format("heads {} tokens {}", kHeads, job.tokens), work, "GFLOP/s",
       "", 0, 0},
      [&] { context.backend().attention(job.args()); }, nullptr);
}

}  // namespace h3s::bench
