#include "peak.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peak.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::bench::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kChains = 12;  // hides four cycles of latency on up to three units; fits 16 registers

// Keeps the compiler from folding or dropping the sums.
template <class V>
void consume(const V* sums) {
  V total = sums[0];
  for (int i = 1; i < kChains; ++i) total = hn::Add(total, sums[i]);
  volatile auto sink = hn::GetLane(total);
  (void)sink;
}

double float_peak(std::int64_t iterations) {
  const hn::ScalableTag<float> d;
  volatile float one = 1.0f;
  const auto x = hn::Set(d, one), w = hn::Set(d, one);
  hn::Vec<decltype(d)> sums[kChains];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::int64_t i = 0; i < iterations; ++i)
    for (auto& sum : sums) sum = hn::MulAdd(x, w, sum);
  consume(sums);
  return 2.0 * kChains * static_cast<double>(iterations) * static_cast<double>(hn::Lanes(d));
}

#if HWY_TARGET == HWY_AVX3_DL
using I32 = hn::Vec<hn::ScalableTag<std::int32_t>>;

// By value: a sum whose address is taken would live in memory.
HWY_INLINE I32 dot(I32 x, I32 w, I32 sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(w.raw));
  return sum;
}
#endif

double int8_peak(std::int64_t iterations) {
#if HWY_TARGET == HWY_AVX3_DL
  const hn::ScalableTag<std::int32_t> d;
  volatile std::int32_t ones = 0x01010101;
  const auto x = hn::Set(d, ones), w = hn::Set(d, ones);
  hn::Vec<decltype(d)> sums[kChains];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::int64_t i = 0; i < iterations; ++i)
    for (auto& sum : sums) sum = dot(x, w, sum);
  consume(sums);
  return 8.0 * kChains * static_cast<double>(iterations) * static_cast<double>(hn::Lanes(d));
#else
  (void)iterations;
  return 0;
#endif
}

}  // namespace
}  // namespace h3s::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::bench {

HWY_EXPORT(float_peak);
HWY_EXPORT(int8_peak);

double run_float_peak(std::int64_t iterations) {
  return HWY_DYNAMIC_DISPATCH(float_peak)(iterations);
}
double run_int8_peak(std::int64_t iterations) {
  return HWY_DYNAMIC_DISPATCH(int8_peak)(iterations);
}

}  // namespace h3s::bench
#endif  // HWY_ONCE
