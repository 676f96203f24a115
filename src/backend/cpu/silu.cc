// silu: y = round(x / (1 + exp(-x))), elementwise; exp of math.h.
//
// Negation, exp, sum and quotient are float, the result is rounded to the type of x and y. Equal to
// silu_definition bit for bit. Bytes moved per element: x in, y out.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/silu.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/math-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void silu_definition(const kernels::SiluArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "silu", [&]<typename T>() {
    for (std::int64_t i = 0; i < a.count; ++i)
      static_cast<T*>(a.y)[i] = from_float<T>(silu(to_float(static_cast<const T*>(a.x)[i])));
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void silu_range(const T* x, T* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(silu_vec(load(x + i, count - i)), y + i, count - i);
}

void silu_elements(const kernels::SiluArgs& args, Workers& workers) {
  workers.parallel_rows(args.count, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "silu", [&]<typename T>() HWY_ATTR {
      silu_range(static_cast<const T*>(args.x) + begin, static_cast<T*>(args.y) + begin, end - begin);
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(silu_elements);

void silu(const kernels::SiluArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(silu_elements)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
