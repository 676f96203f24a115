// quantize_rows: int8 or int4 codes of each row with one float scale, optionally rotated first. Contract in
// linear.h.
//
// x [m, k] in bf16 or float, codes [m, k], scale [m]. Rotation and maximum in float, the quotient by way of
// bf16. Equal to quantize_rows_definition bit for bit, hence under any chunking of rows. Bytes moved per row:
// x in, k codes and a scale out; the float row stays in cache.
#include <cstdint>
#include <vector>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "backend/cpu/quantize_rows_int4.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quantize_rows.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/quantize-inl.h"

#if HWY_ONCE
namespace h3s::cpu {

void quantize_rows_definition(const kernels::QuantizeRowsArgs& a) {
  dispatch_dtype<BF16, float>(a.x_dtype, "quantize_rows", [&]<typename T>() {
    std::vector<float> row(static_cast<std::size_t>(a.k));
    for (std::int64_t m = 0; m < a.m; ++m) {
      const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
      for (std::int64_t i = 0; i < a.k; ++i) row[static_cast<std::size_t>(i)] = to_float(x[i]);
      if (a.code == kernels::RowCode::kInt4)
        quantize_row_int4<T>(row.data(), a.k, a.rotate_group, a.codes + m * a.k, a.scale + m);
      else
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
void quantize_range(const kernels::QuantizeRowsArgs& a, std::int64_t begin, std::int64_t end, float* row) {
  for (std::int64_t m = begin; m < end; ++m) {
    const T* x = static_cast<const T*>(a.x) + m * a.x_stride;
    for (std::int64_t i = 0; i < a.k; i += kLanes) store(load(x + i, a.k - i), row + i, a.k - i);
    if (a.code == kernels::RowCode::kInt4)
      quantize_row_int4<T>(row, a.k, a.rotate_group, a.codes + m * a.k, a.scale + m);
    else
      quantize_row_vec(row, a.k, a.rotate_group, a.codes + m * a.k, a.scale + m);
  }
}

void quantize_all_rows(const kernels::QuantizeRowsArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.x_dtype, "quantize_rows", [&]<typename T>() HWY_ATTR {
      quantize_range<T>(args, begin, end, scratch.take<float>(args.k));
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(quantize_all_rows);

void quantize_rows(const kernels::QuantizeRowsArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(quantize_all_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
