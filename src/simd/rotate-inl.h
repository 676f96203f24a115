// The ConvRot rotation of a row of floats, and its largest magnitude, on vectors.
#if defined(H3S_SIMD_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_SIMD_ROTATE_INL_H_
#undef H3S_SIMD_ROTATE_INL_H_
#else
#define H3S_SIMD_ROTATE_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "simd/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::simd::HWY_NAMESPACE {

template <class V>
HWY_INLINE void rotate_quad_vec(V& x0, V& x1, V& x2, V& x3) {
  const hn::DFromV<V> d;
  const V half = hn::Set(d, 0.5f);
  const V s = hn::Add(x0, x1), t = hn::Sub(x0, x1);
  const V e = hn::Sub(x2, x3), f = hn::Add(x2, x3);
  x0 = hn::Mul(half, hn::Add(s, e));
  x1 = hn::Mul(half, hn::Sub(s, e));
  x2 = hn::Mul(half, hn::Add(t, f));
  x3 = hn::Mul(half, hn::Sub(f, t));
}

// Stride 1: the four values of a butterfly are neighbours.
HWY_INLINE void rotate_neighbours(float* v, std::int64_t k) {
  const F32Tag d;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= k; i += 4 * kLanes) {
    F32 x0, x1, x2, x3;
    hn::LoadInterleaved4(d, v + i, x0, x1, x2, x3);
    rotate_quad_vec(x0, x1, x2, x3);
    hn::StoreInterleaved4(x0, x1, x2, x3, d, v + i);
  }
  const hn::FixedTag<float, 1> one;
  for (; i < k; i += 4) {
    hn::Vec<hn::FixedTag<float, 1>> x0, x1, x2, x3;
    hn::LoadInterleaved4(one, v + i, x0, x1, x2, x3);
    rotate_quad_vec(x0, x1, x2, x3);
    hn::StoreInterleaved4(x0, x1, x2, x3, one, v + i);
  }
}

// A stride that is a multiple of the lanes of D.
template <class D>
HWY_INLINE void rotate_stride(D d, float* v, std::int64_t k, std::int64_t stride) {
  for (std::int64_t first = 0; first < k; first += 4 * stride)
    for (std::int64_t i = first; i < first + stride; i += static_cast<std::int64_t>(hn::MaxLanes(d))) {
      auto x0 = hn::LoadU(d, v + i), x1 = hn::LoadU(d, v + i + stride);
      auto x2 = hn::LoadU(d, v + i + 2 * stride), x3 = hn::LoadU(d, v + i + 3 * stride);
      rotate_quad_vec(x0, x1, x2, x3);
      hn::StoreU(x0, d, v + i);
      hn::StoreU(x1, d, v + i + stride);
      hn::StoreU(x2, d, v + i + 2 * stride);
      hn::StoreU(x3, d, v + i + 3 * stride);
    }
}

// Each group of `group` (a power of 4) values of v[k]; 0: nothing. Sums in the order of the scalar form.
HWY_INLINE void rotate_row_vec(float* v, std::int64_t k, std::int64_t group) {
  if (group >= 4) rotate_neighbours(v, k);
  if (group >= 16) rotate_stride(hn::FixedTag<float, 4>(), v, k, 4);
  for (std::int64_t stride = 16; stride < group; stride *= 4) rotate_stride(F32Tag(), v, k, stride);
}

// On the bits, which order as magnitudes do: a NaN is above every number, and stays.
HWY_INLINE float largest_magnitude_vec(const float* v, std::int64_t k) {
  const U32Tag d;
  U32 largest = hn::Zero(d);
  for (std::int64_t i = 0; i < k; i += kLanes)
    largest = hn::Max(hn::BitCast(d, hn::Abs(load(v + i, k - i))), largest);
  alignas(64) std::uint32_t lanes[kLanes];
  hn::Store(largest, d, lanes);
  return std::bit_cast<float>(*std::max_element(lanes, lanes + kLanes));
}

}  // namespace h3s::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
