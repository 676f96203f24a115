// The inner product kernel shared by linear layers, attention and merging.
//
// Columns of the result lie in vector lanes, so that a sum runs inside one lane in the order of k on every
// vector width: acc[r][c] = madd(x[r][k], w[k][c], acc[r][c]) for k = 0, 1, 2, ..., from zero.
#if defined(H3S_SIMD_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_SIMD_MICRO_KERNEL_INL_H_
#undef H3S_SIMD_MICRO_KERNEL_INL_H_
#else
#define H3S_SIMD_MICRO_KERNEL_INL_H_
#endif

#include <cstdint>

#include "simd/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::simd::HWY_NAMESPACE {

// AVX-512 and NEON have 32 registers: 8 x 3 accumulators, 3 of w, 1 of x. AVX2 has 16: 4 x 3, 3 and 1.
inline constexpr int kMicroRows = HWY_TARGET == HWY_AVX2 ? 4 : 8;
inline constexpr int kMicroVecs = 3;
inline constexpr int kMicroCols = kMicroVecs * kLanes;

struct FloatStep {
  using Lane = float;
  using Vec = F32;
  static HWY_INLINE Vec zero() { return hn::Zero(F32Tag()); }
  static HWY_INLINE Vec load(const Lane* p) { return hn::Load(F32Tag(), p); }
  static HWY_INLINE Vec broadcast(const Lane* p) { return hn::Set(F32Tag(), *p); }
  static HWY_INLINE Vec madd(Vec x, Vec w, Vec acc) { return hn::MulAdd(x, w, acc); }
};

// x: kRows rows, row stride x_stride lanes. w: [depth][kMicroCols], aligned. epilogue(row, vec, sum) takes
// the sums.
template <class Step, int kRows, class Epilogue>
HWY_INLINE void micro_kernel(const typename Step::Lane* HWY_RESTRICT x, std::int64_t x_stride,
                             const typename Step::Lane* HWY_RESTRICT w, std::int64_t depth,
                             const Epilogue& epilogue) {
  typename Step::Vec acc[kRows][kMicroVecs];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kMicroVecs; ++v) acc[r][v] = Step::zero();
  for (std::int64_t k = 0; k < depth; ++k, w += kMicroCols) {
    const auto w0 = Step::load(w);
    const auto w1 = Step::load(w + kLanes);
    const auto w2 = Step::load(w + 2 * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto b = Step::broadcast(x + r * x_stride + k);
      acc[r][0] = Step::madd(b, w0, acc[r][0]);
      acc[r][1] = Step::madd(b, w1, acc[r][1]);
      acc[r][2] = Step::madd(b, w2, acc[r][2]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kMicroVecs; ++v) epilogue(r, v, acc[r][v]);
}

// The same for the last `rows` < kRows + 1 rows.
template <class Step, int kRows, class Epilogue>
HWY_INLINE void micro_kernel_tail(int rows, const typename Step::Lane* x, std::int64_t x_stride,
                                  const typename Step::Lane* w, std::int64_t depth,
                                  const Epilogue& epilogue) {
  if (rows == kRows) return micro_kernel<Step, kRows>(x, x_stride, w, depth, epilogue);
  if constexpr (kRows > 1) micro_kernel_tail<Step, kRows - 1>(rows, x, x_stride, w, depth, epilogue);
}

// Any number of rows. make_epilogue(first_row) returns the epilogue of the rows from there on.
template <class Step, class MakeEpilogue>
HWY_INLINE void micro_panel(const typename Step::Lane* x, std::int64_t x_stride, std::int64_t rows,
                            const typename Step::Lane* w, std::int64_t depth,
                            const MakeEpilogue& make_epilogue) {
  std::int64_t r = 0;
  for (; r + kMicroRows <= rows; r += kMicroRows)
    micro_kernel<Step, kMicroRows>(x + r * x_stride, x_stride, w, depth, make_epilogue(r));
  if (r < rows)
    micro_kernel_tail<Step, kMicroRows - 1>(static_cast<int>(rows - r), x + r * x_stride, x_stride, w, depth,
                                            make_epilogue(r));
}

}  // namespace h3s::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
