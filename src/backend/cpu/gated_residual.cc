// gated_residual: x = round(fma(o, gate, x)); without modulation x = round(x + o).
//
// x, o [m, c] in the compute type, in place. One float rounding (of the fused multiply-add, or of the sum),
// then the compute type's. Equal to gated_residual_definition bit for bit, hence under any chunking of rows.
// Bytes moved per row: x in and out, o in.
#include <cmath>
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "backend/cpu/modulation.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gated_residual.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/vec-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void gated_residual_definition(const kernels::GatedResidualArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "gated_residual", [&]<typename T>() {
    for (std::int64_t m = 0; m < a.m; ++m) {
      T* x = static_cast<T*>(a.x) + m * a.c;
      const T* o = static_cast<const T*>(a.o) + m * a.c;
      const T* gate = a.modulate ? modulation_row<T>(a.modulation, m) + a.gate_offset : nullptr;
      for (std::int64_t c = 0; c < a.c; ++c)
        x[c] = from_float<T>(gate != nullptr ? std::fma(to_float(o[c]), to_float(gate[c]), to_float(x[c]))
                                             : to_float(x[c]) + to_float(o[c]));
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
void gated_residual_row(const kernels::GatedResidualArgs& a, std::int64_t m) {
  T* x = static_cast<T*>(a.x) + m * a.c;
  const T* o = static_cast<const T*>(a.o) + m * a.c;
  const T* gate = a.modulate ? modulation_row<T>(a.modulation, m) + a.gate_offset : nullptr;
  for (std::int64_t c = 0; c < a.c; c += kLanes) {
    const std::int64_t left = a.c - c;
    const F32 add = load(o + c, left);
    const F32 base = load(x + c, left);
    store(gate != nullptr ? hn::MulAdd(add, load(gate + c, left), base) : hn::Add(base, add), x + c, left);
  }
}

void gated_residual_rows(const kernels::GatedResidualArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "gated_residual", [&]<typename T>() HWY_ATTR {
      for (std::int64_t m = begin; m < end; ++m) gated_residual_row<T>(args, m);
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(gated_residual_rows);

void gated_residual(const kernels::GatedResidualArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(gated_residual_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
