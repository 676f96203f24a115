// A square of 32-bit values turned inside registers.
#if defined(H3S_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_TRANSPOSE_INL_H_
#undef H3S_CPU_TRANSPOSE_INL_H_
#else
#define H3S_CPU_TRANSPOSE_INL_H_
#endif

#include "backend/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

// Four rows: turns each 4x4 square that the rows' 128-bit blocks make.
HWY_INLINE void transpose_blocks(U32& r0, U32& r1, U32& r2, U32& r3) {
  const U32Tag d;
  const hn::RepartitionToWide<U32Tag> d64;
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto b = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto c = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto e = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  r0 = hn::BitCast(d, hn::InterleaveLower(d64, a, b));
  r1 = hn::BitCast(d, hn::InterleaveUpper(d64, a, b));
  r2 = hn::BitCast(d, hn::InterleaveLower(d64, c, e));
  r3 = hn::BitCast(d, hn::InterleaveUpper(d64, c, e));
}

// Exchanges the upper half of `a` with the lower half of `b`.
HWY_INLINE void exchange_halves(U32& a, U32& b) {
  const U32Tag d;
  const U32 upper = hn::ConcatUpperUpper(d, b, a);
  a = hn::ConcatLowerLower(d, b, a);
  b = upper;
}

// Exchanges the odd 128-bit blocks of `a` with the even ones of `b`.
HWY_INLINE void exchange_odd_blocks(U32& a, U32& b) {
  const U32 odd = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
  a = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
  b = odd;
}

// rows[i][j] becomes rows[j][i], kLanes squared.
HWY_INLINE void transpose(U32* HWY_RESTRICT rows) {
  for (int i = 0; i < kLanes; i += 4) transpose_blocks(rows[i], rows[i + 1], rows[i + 2], rows[i + 3]);
  if constexpr (kLanes == 8)
    for (int i = 0; i < 4; ++i) exchange_halves(rows[i], rows[i + 4]);
  if constexpr (kLanes == 16) {
    for (int i = 0; i < 8; ++i) exchange_halves(rows[i], rows[i + 8]);
    for (int i = 0; i < 16; ++i)
      if ((i & 4) == 0) exchange_odd_blocks(rows[i], rows[i + 4]);
  }
}

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
