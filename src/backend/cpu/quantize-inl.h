// quantize.h on vectors.
#if defined(H3S_CPU_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_QUANTIZE_INL_H_
#undef H3S_CPU_QUANTIZE_INL_H_
#else
#define H3S_CPU_QUANTIZE_INL_H_
#endif

#include "backend/cpu/quantize.h"
#include "backend/cpu/vec-inl.h"
#include "simd/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

HWY_INLINE void store_codes(const float* v, std::int64_t n, F32 divisor, std::int8_t* codes) {
  const F32Tag d;
  const hn::Rebind<std::int8_t, F32Tag> d8;
  const F32 quotient = round_vec<BF16>(hn::Div(round_vec<BF16>(load(v, n)), divisor));
  const F32 bounded = hn::Min(hn::Max(hn::Round(quotient), hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
  const auto bytes = hn::DemoteTo(d8, hn::ConvertTo(I32Tag(), bounded));
  if (n >= kLanes) return hn::StoreU(bytes, d8, codes);
  alignas(64) std::int8_t part[kLanes];
  hn::Store(bytes, d8, part);
  std::memcpy(codes, part, static_cast<std::size_t>(n));
}

HWY_INLINE void quantize_row_vec(float* v, std::int64_t k, std::int64_t group, std::int8_t* codes,
                                 float* scale) {
  rotate_row_vec(v, k, group);
  const float largest = largest_magnitude_vec(v, k);
  if (quantize_nan_row(largest, k, codes, scale)) return;
  *scale = row_scale(largest);
  const F32 divisor = hn::Set(F32Tag(), row_divisor(*scale));
  for (std::int64_t i = 0; i < k; i += kLanes) store_codes(v + i, k - i, divisor, codes + i);
}

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
