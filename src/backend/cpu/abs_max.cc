// abs_max: the largest magnitude of a tensor, chunk by chunk. Contract in kernels/quantize_float.h.
//
// A maximum has no order, NaN above all: threads take rows, and what each found is folded at the end. Bytes
// moved per row: x.
#include <atomic>
#include <vector>

#include "backend/cpu/definitions.h"
#include "backend/cpu/float_rows.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"
#include "kernels/quantize_float.h"

namespace h3s::cpu {
namespace {

using kernels::AbsMaxArgs;

float rows_peak(const AbsMaxArgs& a, std::int64_t begin, std::int64_t end, float* scratch) {
  float peak = 0;
  dispatch_dtype<BF16, float>(a.x_dtype, "abs_max", [&]<typename T>() {
    for (std::int64_t m = begin; m < end; ++m) {
      widen_scaled(static_cast<const T*>(a.x) + m * a.x_stride, a.pre_scale, a.k, scratch);
      peak = larger_magnitude(peak, largest_magnitude(scratch, a.k));
    }
  });
  return peak;
}

}  // namespace

void abs_max_definition(const AbsMaxArgs& args) {
  std::vector<float> row(static_cast<std::size_t>(args.k));
  const float peak = rows_peak(args, 0, args.m, row.data());
  *args.peak = args.first ? peak : larger_magnitude(peak, *args.peak);
}

// ----------------------------------------------------------------------------------------------------

void abs_max(const AbsMaxArgs& args, Workers& workers) {
  std::atomic<float> largest = args.first ? 0.0f : *args.peak;
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch scratch) {
    const float peak = rows_peak(args, begin, end, scratch.take<float>(args.k));
    float seen = largest.load(std::memory_order_relaxed);
    while (!largest.compare_exchange_weak(seen, larger_magnitude(seen, peak), std::memory_order_relaxed)) {
    }
  });
  *args.peak = largest.load();
}

}  // namespace h3s::cpu
