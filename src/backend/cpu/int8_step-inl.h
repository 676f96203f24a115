// One step of an int8 inner product and how codes are packed for it: four k a 32-bit lane where the processor
// has 8-bit dot products, two k as 16-bit integers elsewhere. Sums are exact either way.
//
// Int8Step is the step of the micro-kernel, kInt8StepK elements of k; StoreW packs W, store_x packs x.
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
inline constexpr std::int32_t kXOffset = 128;  // 1 << 7

HWY_INLINE void add_column_sums(I32* sums, const std::int32_t* w) {
  const I32 ones = hn::Set(I32Tag(), 0x01010101);
  for (int v = 0; v < kMicroVecs; ++v) sums[v] = ByteStep::madd(ones, IntStep::load(w + v * kLanes), sums[v]);
}

HWY_INLINE void store_x(U32 codes, std::int32_t* dst) {
  const U32Tag du;
  hn::Store(hn::BitCast(I32Tag(), hn::Xor(codes, hn::Set(du, 0x80808080u))), I32Tag(), dst);
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
inline constexpr std::int32_t kXOffset = 0;

HWY_INLINE void add_column_sums(I32*, const std::int32_t*) {}

HWY_INLINE void store_x(U32 codes, std::int32_t* dst) {
  const I32Tag d;
  hn::StoreInterleaved2(hn::BitCast(d, even_bytes(codes)), hn::BitCast(d, odd_bytes(codes)), d, dst);
}

#endif

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
