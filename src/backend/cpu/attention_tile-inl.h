// Attention of one tile of queries of one head, on vectors: queries in lanes, keys and dimensions in the rows
// of the micro-kernel. The contract stands in attention.cc.
#if defined(H3S_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_ATTENTION_TILE_INL_H_
#undef H3S_CPU_ATTENTION_TILE_INL_H_
#else
#define H3S_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/attention_math.h"
#include "backend/cpu/math-inl.h"
#include "backend/cpu/micro_kernel-inl.h"
#include "backend/cpu/workers.h"
#include "kernels/attention.h"
#include "kernels/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

using kernels::kHeadDim;

// Converting a tile of K and V costs about as much as 8 queries' arithmetic on it: 192 queries make it small,
// and Q and O of as many fit L2.
inline constexpr std::int64_t kMaxQueryTile = 192;
inline constexpr std::int64_t kKStride = kHeadDim + kRowPad;
inline constexpr std::int64_t kVStride = kAttentionKeyTile + kRowPad;
inline constexpr std::int64_t kPanelSize = kHeadDim * kMicroCols;
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
  using Store = std::conditional_t<std::is_same_v<T, BF16>, StoreBf16,
                                   std::conditional_t<std::is_same_v<T, F16>, StoreF16, StoreRaw>>;
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

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
