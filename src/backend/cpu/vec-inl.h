// The vectors of simd/ under the backend's own names.
#if defined(H3S_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_VEC_INL_H_
#undef H3S_CPU_VEC_INL_H_
#else
#define H3S_CPU_VEC_INL_H_
#endif

#include "simd/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
using namespace h3s::simd::HWY_NAMESPACE;
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
