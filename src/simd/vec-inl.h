// Vectors of float over rows of float, bf16 or f16: loads, stores and roundings equal to base/float16.h.
#if defined(H3S_SIMD_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_SIMD_VEC_INL_H_
#undef H3S_SIMD_VEC_INL_H_
#else
#define H3S_SIMD_VEC_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/float16.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using U32Tag = hn::RebindToUnsigned<F32Tag>;
using I32Tag = hn::RebindToSigned<F32Tag>;
using F32 = hn::Vec<F32Tag>;
using U32 = hn::Vec<U32Tag>;
using I32 = hn::Vec<I32Tag>;
inline constexpr int kLanes = HWY_MAX_BYTES / 4;

// ---- rounding to the values of T; bf16_bits has the storage bits in the upper half of each lane ----

HWY_INLINE U32 bf16_bits(F32 v) {
  const U32Tag du;
  const U32 u = hn::BitCast(du, v);
  const U32 odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  const U32 rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const U32 quiet_nan = hn::Or(u, hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet_nan, rounded);
}

// The bits of the float equal to the binary16 in the lower half of each lane; as to_float(F16).
HWY_INLINE U32 widen_f16(U32 half) {
  const U32Tag d;
  const F32Tag df;
  const U32 sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000)));
  const U32 magnitude = hn::And(half, hn::Set(d, 0x7FFF));
  const U32 shifted = hn::ShiftLeft<13>(magnitude);
  const U32 scaled = hn::BitCast(d, hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 0x1p112f)));
  const U32 special = hn::Or(shifted, hn::Set(d, 0x7F800000));
  return hn::Or(sign, hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7BFF)), special, scaled));
}

// The binary16 nearest to each lane, in its lower half; as to_f16.
HWY_INLINE U32 f16_bits(F32 v) {
  const U32Tag d;
  const F32Tag df;
  const U32 u = hn::BitCast(d, v);
  const U32 sign = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 0x8000));
  const U32 magnitude = hn::And(u, hn::Set(d, 0x7FFFFFFF));
  const U32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const U32 rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0xFFF)));
  const U32 normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d, 0x38000000)));
  const U32 aligned = hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f)));
  const U32 subnormal = hn::Sub(aligned, hn::Set(d, 0x3F000000));
  U32 bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000)), subnormal, normal);
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x477FEFFF)), hn::Set(d, 0x7C00), bits);
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7F800000)), hn::Set(d, 0x7E00), bits);
  return hn::Or(sign, bits);
}

template <typename T>
HWY_INLINE F32 round_vec(F32 v) {
  if constexpr (std::is_same_v<T, float>) return v;
  if constexpr (std::is_same_v<T, F16>) return hn::BitCast(F32Tag(), widen_f16(f16_bits(v)));
  return hn::BitCast(F32Tag(), hn::And(bf16_bits(v), hn::Set(U32Tag(), 0xFFFF0000u)));
}

// ---- loads and stores of kLanes elements at any element-aligned address ----

HWY_INLINE F32 load_vec(const float* p) {
  return hn::LoadU(F32Tag(), p);
}

HWY_INLINE F32 load_vec(const BF16* p) {
  const hn::Rebind<std::uint16_t, F32Tag> du16;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), bits)));
}

HWY_INLINE F32 load_vec(const F16* p) {
  const hn::Rebind<std::uint16_t, F32Tag> du16;
  const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(F32Tag(), widen_f16(hn::PromoteTo(U32Tag(), bits)));
}

HWY_INLINE void store_vec(F32 v, float* p) {
  hn::StoreU(v, F32Tag(), p);
}

HWY_INLINE void store_vec(F32 v, BF16* p) {
  const hn::Rebind<std::uint16_t, F32Tag> du16;
  const U32 high = hn::ShiftRight<16>(bf16_bits(v));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(I32Tag(), high)), du16, reinterpret_cast<std::uint16_t*>(p));
}

HWY_INLINE void store_vec(F32 v, F16* p) {
  const hn::Rebind<std::uint16_t, F32Tag> du16;
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(I32Tag(), f16_bits(v))), du16,
             reinterpret_cast<std::uint16_t*>(p));
}

// ---- the first n < kLanes elements only; missing lanes are zero ----

template <typename T>
HWY_INLINE F32 load_first(const T* p, std::int64_t n) {
  alignas(64) T part[kLanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
  return load_vec(part);
}

template <typename T>
HWY_INLINE void store_first(F32 v, T* p, std::int64_t n) {
  alignas(64) T part[kLanes];
  store_vec(v, part);
  std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}

// ---- the next vector of a row with n elements left ----

template <typename T>
HWY_INLINE F32 load(const T* p, std::int64_t n) {
  return HWY_LIKELY(n >= kLanes) ? load_vec(p) : load_first(p, n);
}

template <typename T>
HWY_INLINE void store(F32 v, T* p, std::int64_t n) {
  if (HWY_LIKELY(n >= kLanes)) return store_vec(v, p);
  store_first(v, p, n);
}

}  // namespace h3s::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
