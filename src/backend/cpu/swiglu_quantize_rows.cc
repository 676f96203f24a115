// swiglu_quantize_rows: the quantiser of quantize_rows.cc fed with f(silu(gate) up), not rounded further.
//
// gate_up [m, 2k] (gate, then up) in the compute type, codes [m, k], scale [m]. Equal to
// swiglu_quantize_rows_definition bit for bit, hence under any chunking of rows. Bytes moved per row: gate_up
// in, k codes and a scale out; the float row stays in cache.
#include <cstdint>
#include <vector>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/swiglu_quantize_rows.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/math-inl.h"
#include "backend/cpu/quantize-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void swiglu_quantize_rows_definition(const kernels::SwigluQuantizeRowsArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "swiglu_quantize_rows", [&]<typename T>() {
    std::vector<float> row(static_cast<std::size_t>(a.k));
    for (std::int64_t m = 0; m < a.m; ++m) {
      const T* gate = static_cast<const T*>(a.gate_up) + m * 2 * a.k;
      for (std::int64_t i = 0; i < a.k; ++i)
        row[static_cast<std::size_t>(i)] = silu(to_float(gate[i])) * to_float(gate[a.k + i]);
      quantize_row(row.data(), a.k, a.rotate_group, a.codes + m * a.k, a.scale + m);
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
void swiglu_quantize_range(const kernels::SwigluQuantizeRowsArgs& a, std::int64_t begin, std::int64_t end,
                           float* row) {
  for (std::int64_t m = begin; m < end; ++m) {
    const T* gate = static_cast<const T*>(a.gate_up) + m * 2 * a.k;
    for (std::int64_t i = 0; i < a.k; i += kLanes) {
      const std::int64_t left = a.k - i;
      store(hn::Mul(silu_vec(load(gate + i, left)), load(gate + a.k + i, left)), row + i, left);
    }
    quantize_row_vec(row, a.k, a.rotate_group, a.codes + m * a.k, a.scale + m);
  }
}

void swiglu_quantize_all_rows(const kernels::SwigluQuantizeRowsArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "swiglu_quantize_rows", [&]<typename T>() HWY_ATTR {
      swiglu_quantize_range<T>(args, begin, end, scratch.take<float>(args.k));
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(swiglu_quantize_all_rows);

void swiglu_quantize_rows(const kernels::SwigluQuantizeRowsArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(swiglu_quantize_all_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
