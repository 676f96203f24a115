// swiglu: y = round(round(silu(gate)) up), silu as in silu.cc.
//
// gate_up [m, 2f] (gate, then up), y [m, f], in the compute type. Equal to swiglu_definition bit for bit,
// hence under any chunking of rows. Bytes moved per row: gate_up in, y out.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/swiglu.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/math-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void swiglu_definition(const kernels::SwigluArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "swiglu", [&]<typename T>() {
    for (std::int64_t m = 0; m < a.m; ++m) {
      const T* gate = static_cast<const T*>(a.gate_up) + m * 2 * a.f;
      const T* up = gate + a.f;
      T* y = static_cast<T*>(a.y) + m * a.f;
      for (std::int64_t i = 0; i < a.f; ++i)
        y[i] = from_float<T>(round_to<T>(silu(to_float(gate[i]))) * to_float(up[i]));
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
void swiglu_row(const kernels::SwigluArgs& a, std::int64_t m) {
  const T* gate = static_cast<const T*>(a.gate_up) + m * 2 * a.f;
  T* y = static_cast<T*>(a.y) + m * a.f;
  for (std::int64_t i = 0; i < a.f; i += kLanes) {
    const std::int64_t left = a.f - i;
    const F32 act = round_vec<T>(silu_vec(load(gate + i, left)));
    store(hn::Mul(act, load(gate + a.f + i, left)), y + i, left);
  }
}

void swiglu_rows(const kernels::SwigluArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "swiglu", [&]<typename T>() HWY_ATTR {
      for (std::int64_t m = begin; m < end; ++m) swiglu_row<T>(args, m);
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(swiglu_rows);

void swiglu(const kernels::SwigluArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(swiglu_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
