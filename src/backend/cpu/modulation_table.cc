// modulation_table: the parts of an AdaLN projection rounded to the compute type, scales as round(1 +
// round(s)).
//
// adaln [rows, 6c] float or bf16; table [rows, 6c] in the compute type, parts in the order of row_ops.h (the
// scales are parts 1 and 4). Equal to modulation_table_definition bit for bit. Bytes moved: both once.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/modulation_table.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/vec-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void modulation_table_definition(const kernels::ModulationTableArgs& a) {
  dispatch_dtype<BF16, float>(a.adaln_dtype, "modulation_table", [&]<typename TX>() {
    dispatch_dtype<BF16, float>(a.dtype, "modulation_table", [&]<typename T>() {
      for (std::int64_t i = 0; i < a.rows * 6 * a.c; ++i) {
        const float v = round_to<T>(to_float(static_cast<const TX*>(a.adaln)[i]));
        const bool is_scale = i / a.c % 3 == 1;
        static_cast<T*>(a.table)[i] = from_float<T>(is_scale ? 1.0f + v : v);
      }
    });
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

// One part of one row.
template <typename TX, typename T>
void modulation_part(const TX* x, T* y, std::int64_t c, bool is_scale) {
  const F32 one = hn::Set(F32Tag(), 1.0f);
  for (std::int64_t i = 0; i < c; i += kLanes) {
    const F32 v = round_vec<T>(load(x + i, c - i));
    store(is_scale ? hn::Add(one, v) : v, y + i, c - i);
  }
}

void modulation_parts(const kernels::ModulationTableArgs& a, Workers& workers) {
  workers.parallel_for(a.rows * 6, [&](std::int64_t part, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(a.adaln_dtype, "modulation_table", [&]<typename TX>() HWY_ATTR {
      dispatch_dtype<BF16, float>(a.dtype, "modulation_table", [&]<typename T>() HWY_ATTR {
        modulation_part(static_cast<const TX*>(a.adaln) + part * a.c, static_cast<T*>(a.table) + part * a.c,
                        a.c, part % 3 == 1);
      });
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(modulation_parts);

void modulation_table(const kernels::ModulationTableArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(modulation_parts)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
