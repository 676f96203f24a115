// draw.h on vectors.
#if defined(H3S_CHECKPOINT_DRAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CHECKPOINT_DRAW_INL_H_
#undef H3S_CHECKPOINT_DRAW_INL_H_
#else
#define H3S_CHECKPOINT_DRAW_INL_H_
#endif

#include "simd/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::checkpoint::HWY_NAMESPACE {
using namespace h3s::simd::HWY_NAMESPACE;

// draw() of the next kLanes elements; `counter` is the seed plus the index of the first.
HWY_INLINE F32 draw_vec(std::uint64_t counter) {
  const U32Tag d;
  const auto low = static_cast<std::uint32_t>(counter), high = static_cast<std::uint32_t>(counter >> 32);
  const U32 lows = hn::Add(hn::Set(d, low), hn::Iota(d, 0));
  const U32 carried = hn::IfThenElseZero(hn::Lt(lows, hn::Set(d, low)), hn::Set(d, 1));
  const U32 folded = hn::Xor(lows, hn::Add(hn::Set(d, high), carried));
  const U32 state = hn::Add(hn::Mul(folded, hn::Set(d, 747796405u)), hn::Set(d, 2891336453u));
  const U32 by = hn::Add(hn::ShiftRight<28>(state), hn::Set(d, 4));
  const U32 word = hn::Mul(hn::Xor(hn::Shr(state, by), state), hn::Set(d, 277803737u));
  const U32 bits = hn::ShiftRight<8>(hn::Xor(hn::ShiftRight<22>(word), word));
  return hn::Mul(hn::ConvertTo(F32Tag(), hn::BitCast(I32Tag(), bits)), hn::Set(F32Tag(), 0x1p-24f));
}

}  // namespace h3s::checkpoint::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
