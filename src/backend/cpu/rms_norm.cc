// rms_norm: n = round((x r) w), r = 1 / sqrt(sum(x^2) / c + eps);
// modulated: y = round(round(n gain) + shift).
//
// x, y [m, c] in the compute type, w [c] float. Sum in kReduceLanes interleaved partial sums (reduce.h); x r
// and (x r) w are rounded to float, then to the compute type. Equal to rms_norm_definition bit for bit, hence
// under any chunking of rows. Bytes moved per row: x twice (the second time from cache), y once.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "backend/cpu/modulation.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rms_norm.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/reduce-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void rms_norm_definition(const kernels::RmsNormArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "rms_norm", [&]<typename T>() {
    for (std::int64_t m = 0; m < a.m; ++m) {
      const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
      T* y = static_cast<T*>(a.y) + m * a.c;
      const T* mod = a.modulate ? modulation_row<T>(a.modulation, m) : nullptr;
      const float r = rms_scale(sum_of_squares(x, a.c), a.c);
      for (std::int64_t c = 0; c < a.c; ++c) {
        float v = round_to<T>((to_float(x[c]) * r) * a.weight[c]);
        if (mod != nullptr)
          v = round_to<T>(v * to_float(mod[a.gain_offset + c])) + to_float(mod[a.shift_offset + c]);
        y[c] = from_float<T>(v);
      }
    }
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void rms_norm_row(const kernels::RmsNormArgs& a, std::int64_t m) {
  const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
  T* y = static_cast<T*>(a.y) + m * a.c;
  const T* mod = a.modulate ? modulation_row<T>(a.modulation, m) : nullptr;
  const F32 r = hn::Set(F32Tag(), rms_scale(sum_of_squares_vec(x, a.c), a.c));
  for (std::int64_t c = 0; c < a.c; c += kLanes) {
    const std::int64_t left = a.c - c;
    F32 v = hn::Mul(hn::Mul(load(x + c, left), r), load(a.weight + c, left));
    if (mod != nullptr) {
      v = round_vec<T>(hn::Mul(round_vec<T>(v), load(mod + a.gain_offset + c, left)));
      v = hn::Add(v, load(mod + a.shift_offset + c, left));
    }
    store(v, y + c, left);
  }
}

void rms_norm_rows(const kernels::RmsNormArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "rms_norm", [&]<typename T>() HWY_ATTR {
      for (std::int64_t m = begin; m < end; ++m) rms_norm_row<T>(args, m);
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(rms_norm_rows);

void rms_norm(const kernels::RmsNormArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(rms_norm_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
