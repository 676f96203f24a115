// attention: softmax(scale Q K^T) V per head, non-causal, head width 128, with the log-sum-exp on request.
//
// Contract, per query; c = f(scale log2(e)); keys in tiles of kAttentionKeyTile from key 0, ascending; m =
// -inf, l = 0, o[d] = 0; exp2 of math.h; fma chains run from zero in the stated order:
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
#include <limits>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"
#include "kernels/row_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention.cc"
#include "backend/cpu/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/math-inl.h"
#include "backend/cpu/micro_kernel-inl.h"

#ifndef H3S_CPU_ATTENTION_CONSTANTS
#define H3S_CPU_ATTENTION_CONSTANTS
namespace h3s::cpu {
namespace {

constexpr std::int64_t kHeadDim = kernels::kHeadDim;
constexpr std::int64_t kAttentionKeyTile = 64;  // part of the contract
constexpr float kLn2 = 0x1.62e43p-1f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

inline float log_sum_exp(float m, float l) {
  return (m + static_cast<float>(std::log2(static_cast<double>(l)))) * kLn2;
}

}  // namespace
}  // namespace h3s::cpu
#endif

#if HWY_ONCE
namespace h3s::cpu {
namespace {

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
    float m = m_;
    for (std::int64_t j = begin; j < end; ++j) m = std::max(m, p[j - begin] = c_ * score(j));
    float sum = 0;
    for (std::int64_t j = begin; j < end; ++j) sum += p[j - begin] = exp2(p[j - begin] - m);
    const float a = exp2(m_ - m);
    l_ = std::fma(l_, a, sum);
    m_ = m;
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      float partial = 0;
      for (std::int64_t j = begin; j < end; ++j)
        partial = std::fma(round_to<T>(p[j - begin]), to_float(v_[j * v_stride_ + d]), partial);
      o_[d] = std::fma(o_[d], a, partial);
    }
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

  const T *q_, *k_, *v_;
  std::int64_t k_stride_, v_stride_;
  float c_;
  float m_ = kMinusInf, l_ = 0, o_[kHeadDim] = {};
};

}  // namespace

void attention_definition(const kernels::AttentionArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "attention", [&]<typename T>() {
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

// ---------------------------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

// Converting a tile of K and V costs about as much as 8 queries' arithmetic on it: 192 queries make it small,
// and Q and O of as many fit L2.
constexpr std::int64_t kMaxQueryTile = 192;
constexpr std::int64_t kKStride = kHeadDim + kRowPad;
constexpr std::int64_t kVStride = kAttentionKeyTile + kRowPad;
constexpr std::int64_t kPanelSize = kHeadDim * kMicroCols;
static_assert(kMaxQueryTile % kMicroCols == 0 && kAttentionKeyTile % kLanes == 0);
static_assert(4 * (2 * kHeadDim * kMaxQueryTile + kAttentionKeyTile * (kKStride + kMicroCols) +
                   kHeadDim * kVStride + 2 * kMaxQueryTile + kMicroCols) <=
              kScratchBytes);

struct StoreTo {
  float* dst;  // [rows][kMicroCols]
  HWY_INLINE void operator()(int row, int vec, F32 sum) const {
    hn::Store(sum, F32Tag(), dst + row * kMicroCols + vec * kLanes);
  }
};

// o = fma(o, a, sum), a per column.
struct Rescale {
  float* o;  // [rows][kMicroCols]
  const float* a;
  HWY_INLINE void operator()(int row, int vec, F32 sum) const {
    const F32Tag d;
    float* p = o + row * kMicroCols + vec * kLanes;
    hn::Store(hn::MulAdd(hn::Load(d, p), hn::Load(d, a + vec * kLanes), sum), d, p);
  }
};

// Up to kMaxQueryTile queries of one head, in panels of kMicroCols.
template <typename T>
class QueryTile {
 public:
  QueryTile(const kernels::AttentionArgs& args, std::int64_t head, std::int64_t begin, std::int64_t end,
            Scratch scratch)
      : a_(args),
        head_(head),
        begin_(begin),
        end_(end),
        num_panels_((end - begin + kMicroCols - 1) / kMicroCols),
        q_(scratch.take<float>(kMaxQueryTile * kHeadDim)),
        o_(scratch.take<float>(kMaxQueryTile * kHeadDim)),
        k_(scratch.take<float>(kAttentionKeyTile * kKStride)),
        v_(scratch.take<float>(kHeadDim * kVStride)),
        p_(scratch.take<float>(kAttentionKeyTile * kMicroCols)),
        m_(scratch.take<float>(kMaxQueryTile)),
        l_(scratch.take<float>(kMaxQueryTile)),
        rescale_(scratch.take<float>(kMicroCols)) {}

  void run() {
    start();
    for (std::int64_t j = 0; j < a_.kv_tokens; j += kAttentionKeyTile) {
      const std::int64_t num_keys = std::min(kAttentionKeyTile, a_.kv_tokens - j);
      load_keys(j, num_keys);
      for (std::int64_t panel = 0; panel < num_panels_; ++panel) add_tile(panel, num_keys);
    }
    for (std::int64_t i = begin_; i < end_; ++i) store_query(i);
  }

 private:
  using Store = std::conditional_t<std::is_same_v<T, BF16>, StoreBf16, StoreRaw>;
  static constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));

  static const std::byte* bytes(const T* p) { return reinterpret_cast<const std::byte*>(p); }
  static std::uint32_t* words(float* p) { return reinterpret_cast<std::uint32_t*>(p); }

  void start() {
    const T* q = static_cast<const T*>(a_.q) + head_ * a_.q_head_stride;
    for (std::int64_t panel = 0; panel < num_panels_; ++panel) {
      const std::int64_t first = begin_ + panel * kMicroCols;
      pack_panel<Store>(bytes(q + first * a_.q_token_stride), a_.q_token_stride * kSize,
                        std::min<std::int64_t>(kMicroCols, end_ - first), kHeadDim * kSize,
                        words(q_ + panel * kPanelSize));
    }
    std::fill_n(o_, num_panels_ * kPanelSize, 0.0f);
    std::fill_n(m_, num_panels_ * kMicroCols, kMinusInf);
    std::fill_n(l_, num_panels_ * kMicroCols, 0.0f);
  }

  // K as [key][128], V as [128][key], both float.
  void load_keys(std::int64_t first, std::int64_t num) {
    const T* k = static_cast<const T*>(a_.k) + head_ * a_.k_head_stride + first * a_.k_token_stride;
    const T* v = static_cast<const T*>(a_.v) + head_ * a_.v_head_stride + first * a_.v_token_stride;
    for (std::int64_t j = 0; j < num; ++j) widen_row(k + j * a_.k_token_stride, kHeadDim, k_ + j * kKStride);
    for (std::int64_t j = 0; j < num; j += kLanes)
      transpose_rows<Store>(bytes(v + j * a_.v_token_stride), a_.v_token_stride * kSize,
                            std::min<std::int64_t>(kLanes, num - j), kHeadDim * kSize, words(v_ + j),
                            kVStride);
  }

  void add_tile(std::int64_t panel, std::int64_t num_keys) {
    micro_panel<FloatStep>(k_, kKStride, num_keys, q_ + panel * kPanelSize, kHeadDim,
                           [&](std::int64_t j) HWY_ATTR { return StoreTo{p_ + j * kMicroCols}; });
    for (std::int64_t lane = 0; lane < kMicroCols; lane += kLanes)
      softmax(lane, panel * kMicroCols + lane, num_keys);
    float* o = o_ + panel * kPanelSize;
    micro_panel<FloatStep>(v_, kVStride, kHeadDim, p_, num_keys, [&](std::int64_t d) HWY_ATTR {
      return Rescale{o + d * kMicroCols, rescale_};
    });
  }

  // One vector of queries: scores in p_ become rounded probabilities; m, l and the rescale factor move on.
  void softmax(std::int64_t lane, std::int64_t query, std::int64_t num_keys) {
    const F32Tag d;
    const F32 c = hn::Set(d, a_.scale * kLog2e);
    const F32 old_m = hn::Load(d, m_ + query);
    F32 m = old_m;
    float* p = p_ + lane;
    for (std::int64_t j = 0; j < num_keys; ++j, p += kMicroCols) {
      const F32 t = hn::Mul(c, hn::Load(d, p));
      m = hn::Max(m, t);
      hn::Store(t, d, p);
    }
    F32 sum = hn::Zero(d);
    p = p_ + lane;
    for (std::int64_t j = 0; j < num_keys; ++j, p += kMicroCols) {
      const F32 weight = exp2_vec(hn::Sub(hn::Load(d, p), m));
      sum = hn::Add(sum, weight);
      hn::Store(round_vec<T>(weight), d, p);
    }
    const F32 a = exp2_vec(hn::Sub(old_m, m));
    hn::Store(m, d, m_ + query);
    hn::Store(hn::MulAdd(hn::Load(d, l_ + query), a, sum), d, l_ + query);
    hn::Store(a, d, rescale_ + lane);
  }

  void store_query(std::int64_t i) const {
    const std::int64_t query = i - begin_;
    const float* o = o_ + query / kMicroCols * kPanelSize + query % kMicroCols;
    T* dst = static_cast<T*>(a_.o) + head_ * a_.o_head_stride + i * a_.o_token_stride;
    for (std::int64_t d = 0; d < kHeadDim; ++d) dst[d] = from_float<T>(o[d * kMicroCols] / l_[query]);
    if (a_.lse != nullptr) a_.lse[head_ * a_.q_tokens + i] = log_sum_exp(m_[query], l_[query]);
  }

  const kernels::AttentionArgs& a_;
  const std::int64_t head_, begin_, end_, num_panels_;
  float* const q_;        // [panel][128][kMicroCols]
  float* const o_;        // [panel][128][kMicroCols]
  float* const k_;        // [key][kKStride]
  float* const v_;        // [128][kVStride]
  float* const p_;        // [key][kMicroCols]: scores, then probabilities
  float* const m_;        // [query]
  float* const l_;        // [query]
  float* const rescale_;  // [kMicroCols]
};

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
    dispatch_dtype<BF16, float>(args.dtype, "attention", [&]<typename T>() HWY_ATTR {
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
