// reduce.h on vectors: kReduceLanes / kLanes vectors of partial sums.
#if defined(H3S_CPU_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_REDUCE_INL_H_
#undef H3S_CPU_REDUCE_INL_H_
#else
#define H3S_CPU_REDUCE_INL_H_
#endif

#include "backend/cpu/reduce.h"
#include "backend/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

inline constexpr int kReduceVecs = static_cast<int>(kernels::kReduceLanes) / kLanes;

template <typename T>
HWY_INLINE float sum_of_squares_vec(const T* x, std::int64_t c) {
  const F32Tag d;
  F32 sums[kReduceVecs];
  for (F32& sum : sums) sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kernels::kReduceLanes <= c; i += kernels::kReduceLanes)
    for (int v = 0; v < kReduceVecs; ++v) {
      const F32 value = load_vec(x + i + v * kLanes);
      sums[v] = hn::MulAdd(value, value, sums[v]);
    }
  for (int v = 0; i < c; ++v, i += kLanes) {  // missing lanes are zero: they add nothing
    const F32 value = load(x + i, c - i);
    sums[v] = hn::MulAdd(value, value, sums[v]);
  }
  alignas(64) float lanes[kernels::kReduceLanes];
  for (int v = 0; v < kReduceVecs; ++v) hn::Store(sums[v], d, lanes + v * kLanes);
  return fold_lanes(lanes);
}

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
