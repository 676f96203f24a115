// math.h on vectors: the same operations in the same order.
#if defined(H3S_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_MATH_INL_H_
#undef H3S_CPU_MATH_INL_H_
#else
#define H3S_CPU_MATH_INL_H_
#endif

#include <limits>

#include "backend/cpu/math.h"
#include "backend/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

HWY_INLINE F32 exp2_parts_vec(F32 n, F32 r) {
  const F32Tag d;
  const I32Tag di;
  F32 q = hn::Set(d, kExp2Poly[5]);
  for (int i = 4; i >= 0; --i) q = hn::MulAdd(q, r, hn::Set(d, kExp2Poly[i]));
  const I32 exponent = hn::ConvertTo(di, n);
  const I32 half = hn::ShiftRight<1>(exponent);
  const I32 bias = hn::Set(di, 127);
  const F32 low = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const F32 high = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return hn::Mul(hn::Mul(hn::MulAdd(q, r, hn::Set(d, 1.0f)), low), high);
}

// Puts the results beyond the range in place; `y` is the exponent that was asked for.
HWY_INLINE F32 exp2_limits(F32 y, F32 result) {
  const F32Tag d;
  result = hn::IfThenZeroElse(hn::Lt(y, hn::Set(d, kExp2Min)), result);
  return hn::IfThenElse(hn::Ge(y, hn::Set(d, kExp2Max)), hn::Set(d, std::numeric_limits<float>::infinity()),
                        result);
}

HWY_INLINE F32 exp2_vec(F32 x) {
  const F32 n = hn::Round(x);
  return exp2_limits(x, exp2_parts_vec(n, hn::Sub(x, n)));
}

HWY_INLINE F32 exp_vec(F32 x) {
  const F32Tag d;
  const F32 log2e = hn::Set(d, kLog2e);
  const F32 y = hn::Mul(x, log2e);
  const F32 n = hn::Round(y);
  const F32 r = hn::MulAdd(x, hn::Set(d, kLog2eLow), hn::MulSub(x, log2e, n));
  return exp2_limits(y, exp2_parts_vec(n, r));
}

HWY_INLINE F32 silu_vec(F32 z) {
  return hn::Div(z, hn::Add(hn::Set(F32Tag(), 1.0f), exp_vec(hn::Neg(z))));
}

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
