// One step of an int8 inner product and how codes are packed for it: four k a 32-bit lane where the processor
// has 8-bit dot products, two k as 16-bit integers elsewhere. Sums are exact either way.
//
// Int8Step is the step of the micro-kernel, kInt8StepK elements of k; StoreW packs W, store_x packs x. Along
// k: dot_codes(offset_codes(x), w, acc) multiplies words of four codes, add_codes sums those of W, and
// without_offset takes off what offset_codes put on.
#if defined(H3S_CPU_INT8_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_INT8_STEP_INL_H_
#undef H3S_CPU_INT8_STEP_INL_H_
#else
#define H3S_CPU_INT8_STEP_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

using I16Tag = hn::Repartition<std::int16_t, I32Tag>;

struct IntStep {
  using Lane = std::int32_t;
  using Vec = I32;
  static HWY_INLINE Vec zero() { return hn::Zero(I32Tag()); }
  static HWY_INLINE Vec load(const Lane* p) { return hn::Load(I32Tag(), p); }
  static HWY_INLINE Vec broadcast(const Lane* p) { return hn::Set(I32Tag(), *p); }
};

#if HWY_TARGET == HWY_AVX3_DL

// Four k a step: x is stored as unsigned x + 128, and 128 times the column sum of W is taken off at the end.
// Sums may wrap on the way; modulo 2^32 the result is right.
struct ByteStep : IntStep {
  // Written in assembly because Highway's target string for this level does not name avx512vnni.
  static HWY_INLINE Vec madd(Vec x, Vec w, Vec acc) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(x.raw), "v"(w.raw));
    return acc;
  }
};

using Int8Step = ByteStep;
using StoreW = StoreRaw;
inline constexpr std::int64_t kInt8StepK = 4;
inline constexpr bool kXHasOffset = true;

HWY_INLINE U32 offset_codes(U32 x) {
  return hn::Xor(x, hn::Set(U32Tag(), 0x80808080u));
}
HWY_INLINE I32 dot_codes(U32 x, U32 w, I32 acc) {
  return ByteStep::madd(hn::BitCast(I32Tag(), x), hn::BitCast(I32Tag(), w), acc);
}
HWY_INLINE I32 add_codes(U32 w, I32 sum) {
  return dot_codes(hn::Set(U32Tag(), 0x01010101u), w, sum);
}
HWY_INLINE I32 without_offset(I32 acc, I32 w_sum) {
  return hn::Sub(acc, hn::ShiftLeft<7>(w_sum));
}

HWY_INLINE void store_x(U32 codes, std::int32_t* dst) {
  hn::Store(hn::BitCast(I32Tag(), offset_codes(codes)), I32Tag(), dst);
}

#else

// Two k a step, as 16-bit integers: a 32-bit word of codes b0 b1 b2 b3 gives the steps (b0, b2) and (b1, b3).
struct PairStep : IntStep {
  static HWY_INLINE Vec madd(Vec x, Vec w, Vec acc) {
    const I16Tag d16;
    I32 unused = hn::Zero(I32Tag());
    acc = hn::ReorderWidenMulAccumulate(I32Tag(), hn::BitCast(d16, x), hn::BitCast(d16, w), acc, unused);
    return hn::RearrangeToOddPlusEven(acc, unused);
  }
};

HWY_INLINE U32 even_bytes(U32 v) {
  return hn::BitCast(U32Tag(), hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(I16Tag(), v))));
}
HWY_INLINE U32 odd_bytes(U32 v) {
  return hn::BitCast(U32Tag(), hn::ShiftRight<8>(hn::BitCast(I16Tag(), v)));
}

struct StorePairs {
  static constexpr int kSteps = 2;
  static HWY_INLINE void store(U32 v, std::uint32_t* dst, std::int64_t stride) {
    hn::StoreU(even_bytes(v), U32Tag(), dst);
    hn::StoreU(odd_bytes(v), U32Tag(), dst + stride);
  }
};

using Int8Step = PairStep;
using StoreW = StorePairs;
inline constexpr std::int64_t kInt8StepK = 2;
inline constexpr bool kXHasOffset = false;

HWY_INLINE U32 offset_codes(U32 x) {
  return x;
}
HWY_INLINE I32 dot_codes(U32 x, U32 w, I32 acc) {
  const I32Tag d;
  acc = PairStep::madd(hn::BitCast(d, even_bytes(x)), hn::BitCast(d, even_bytes(w)), acc);
  return PairStep::madd(hn::BitCast(d, odd_bytes(x)), hn::BitCast(d, odd_bytes(w)), acc);
}
HWY_INLINE I32 add_codes(U32, I32 sum) {
  return sum;
}
HWY_INLINE I32 without_offset(I32 acc, I32) {
  return acc;
}

HWY_INLINE void store_x(U32 codes, std::int32_t* dst) {
  const I32Tag d;
  hn::StoreInterleaved2(hn::BitCast(d, even_bytes(codes)), hn::BitCast(d, odd_bytes(codes)), d, dst);
}

#endif

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
