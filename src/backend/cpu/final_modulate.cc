// final_modulate: y = f(n gain) + shift, gain = 1 + scale, n the rounded RMS norm of rms_norm.cc.
//
// x [m, c] in the compute type; weight, scale, shift [c] and y [m, c] float. `round_each`: gain, product and
// sum are each rounded to the compute type; otherwise each is a float rounding. Equal to
// final_modulate_definition bit for bit, hence under any chunking of rows. Bytes moved per row: x twice (the
// second time from cache), y once.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/final_modulate.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/reduce-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void final_modulate_definition(const kernels::FinalModulateArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "final_modulate", [&]<typename T>() {
    const auto round_op = [&](float v) { return a.round_each ? round_to<T>(v) : v; };
    for (std::int64_t m = 0; m < a.m; ++m) {
      const T* x = static_cast<const T*>(a.x) + m * a.c;
      const float r = rms_scale(sum_of_squares(x, a.c), a.c);
      for (std::int64_t c = 0; c < a.c; ++c) {
        const float n = round_to<T>((to_float(x[c]) * r) * a.weight[c]);
        const float gain = round_op(1.0f + a.scale[c]);
        a.y[m * a.c + c] = round_op(round_op(n * gain) + a.shift[c]);
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

// T: compute type; R: what gain, product and sum are rounded to.
template <typename T, typename R>
void final_modulate_row(const kernels::FinalModulateArgs& a, std::int64_t m) {
  const T* x = static_cast<const T*>(a.x) + m * a.c;
  const F32 one = hn::Set(F32Tag(), 1.0f);
  const F32 r = hn::Set(F32Tag(), rms_scale(sum_of_squares_vec(x, a.c), a.c));
  for (std::int64_t c = 0; c < a.c; c += kLanes) {
    const std::int64_t left = a.c - c;
    const F32 n = round_vec<T>(hn::Mul(hn::Mul(load(x + c, left), r), load(a.weight + c, left)));
    const F32 gain = round_vec<R>(hn::Add(one, load(a.scale + c, left)));
    const F32 product = round_vec<R>(hn::Mul(n, gain));
    store(round_vec<R>(hn::Add(product, load(a.shift + c, left))), a.y + m * a.c + c, left);
  }
}

void final_modulate_rows(const kernels::FinalModulateArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "final_modulate", [&]<typename T>() HWY_ATTR {
      const auto row = args.round_each ? final_modulate_row<T, T> : final_modulate_row<T, float>;
      for (std::int64_t m = begin; m < end; ++m) row(args, m);
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(final_modulate_rows);

void final_modulate(const kernels::FinalModulateArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(final_modulate_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
