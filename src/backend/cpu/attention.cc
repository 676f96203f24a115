// attention: softmax(scale Q K^T) V per head, non-causal, head width 128, with the log-sum-exp on request.
//
// Contract, per query: keys in tiles of kAttentionKeyTile, ascending from key 0; c = f(scale log2(e)); at the
// start m = -inf, l = 0, o[d] = 0; exp2 of math.h; fma chains run from zero in the stated order:
//   t_j = f(c f(q . k_j))             q . k_j one fma chain over d = 0 .. 127
//   m'  = max(m, t_j of the tile)     a = exp2(m - m'), p_j = exp2(t_j - m')
//   l   = fma(l, a, sum of p_j)       sum from zero, in order of j
//   o_d = fma(o_d, a, partial_d)      partial_d one fma chain of round(p_j) v_j[d] over the tile's j
// and at the end O = round(o / l), LSE = f(f(m + f(log2 l)) ln 2), log2 in double by the C library.
//
// Queries lie in vector lanes, so no sum crosses lanes and a query's result depends on that query alone.
// Equal to attention_definition bit for bit, hence under any split of queries or heads. K and V are read once
// per tile of kMaxQueryTile queries of a head, Q once, O written once.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/attention_math.h"
#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "backend/cpu/math.h"
#include "base/dispatch.h"
#include "kernels/row_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/attention_tile-inl.h"

#if HWY_ONCE
namespace h3s::cpu {
namespace {

using kernels::kHeadDim;

template <typename T>
class QueryDefinition {
 public:
  QueryDefinition(const kernels::AttentionArgs& a, std::int64_t head, std::int64_t query)
      : q_(static_cast<const T*>(a.q) + head * a.q_head_stride + query * a.q_token_stride),
        k_(static_cast<const T*>(a.k) + head * a.k_head_stride),
        v_(static_cast<const T*>(a.v) + head * a.v_head_stride),
        k_stride_(a.k_token_stride),
        v_stride_(a.v_token_stride),
        c_(a.scale * kLog2e) {}

  // Keys [begin, end), at most one tile.
  void add_tile(std::int64_t begin, std::int64_t end) {
    float p[kAttentionKeyTile];
    const std::int64_t num = end - begin;
    float m = m_, sum = 0;
    for (std::int64_t j = 0; j < num; ++j) {
      p[j] = c_ * score(begin + j);
      m = std::max(m, p[j]);
    }
    for (std::int64_t j = 0; j < num; ++j) {
      p[j] = exp2(p[j] - m);
      sum += p[j];
    }
    const float a = exp2(m_ - m);
    l_ = std::fma(l_, a, sum);
    m_ = m;
    for (std::int64_t d = 0; d < kHeadDim; ++d) o_[d] = std::fma(o_[d], a, weighted(p, begin, num, d));
  }

  void store(T* o, float* lse) const {
    for (std::int64_t d = 0; d < kHeadDim; ++d) o[d] = from_float<T>(o_[d] / l_);
    if (lse != nullptr) *lse = log_sum_exp(m_, l_);
  }

 private:
  float score(std::int64_t j) const {
    float sum = 0;
    for (std::int64_t d = 0; d < kHeadDim; ++d)
      sum = std::fma(to_float(k_[j * k_stride_ + d]), to_float(q_[d]), sum);
    return sum;
  }

  // The sum of round(p_j) v_j[d] over the tile.
  float weighted(const float* p, std::int64_t begin, std::int64_t num, std::int64_t d) const {
    float sum = 0;
    for (std::int64_t j = 0; j < num; ++j)
      sum = std::fma(round_to<T>(p[j]), to_float(v_[(begin + j) * v_stride_ + d]), sum);
    return sum;
  }

  const T *q_, *k_, *v_;
  std::int64_t k_stride_, v_stride_;
  float c_;
  float m_ = kMinusInf, l_ = 0, o_[kHeadDim] = {};
};

}  // namespace

void attention_definition(const kernels::AttentionArgs& a) {
  dispatch_dtype<BF16, F16, float>(a.dtype, "attention", [&]<typename T>() {
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t i = 0; i < a.q_tokens; ++i) {
        QueryDefinition<T> query(a, h, i);
        for (std::int64_t j = 0; j < a.kv_tokens; j += kAttentionKeyTile)
          query.add_tile(j, std::min(a.kv_tokens, j + kAttentionKeyTile));
        query.store(static_cast<T*>(a.o) + h * a.o_head_stride + i * a.o_token_stride,
                    a.lse == nullptr ? nullptr : a.lse + h * a.q_tokens + i);
      }
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

// The largest tile that leaves two tiles a thread, where possible.
std::int64_t query_tile(const kernels::AttentionArgs& a, int num_threads) {
  std::int64_t tile = kMaxQueryTile;
  while (tile > kMicroCols && a.heads * ((a.q_tokens + tile - 1) / tile) < 2 * num_threads)
    tile -= kMicroCols;
  return tile;
}

void attention_tiles(const kernels::AttentionArgs& args, Workers& workers) {
  const std::int64_t tile = query_tile(args, workers.count());
  const std::int64_t tiles_per_head = (args.q_tokens + tile - 1) / tile;
  workers.parallel_for(args.heads * tiles_per_head, [&](std::int64_t idx, Scratch scratch) HWY_ATTR {
    const std::int64_t begin = idx % tiles_per_head * tile;
    dispatch_dtype<BF16, F16, float>(args.dtype, "attention", [&]<typename T>() HWY_ATTR {
      QueryTile<T>(args, idx / tiles_per_head, begin, std::min(args.q_tokens, begin + tile), scratch).run();
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(attention_tiles);

void attention(const kernels::AttentionArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(attention_tiles)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
