// linear: y[m][n] = round(f(total x_scale[m]) + bias[n] (+ y[m][n])), total = sum over K blocks of the
// block's sum of x[m][k] w[n][k].
//
// Rounding: operands are exact in float; inside a block of kLinearKBlock one fused multiply-add chain from
// zero, k ascending; block sums added in order to a float total that starts at zero; the product with the
// row's scale, where there is one, rounds; bias added; what y held added, where asked for; one rounding to
// y_dtype. Equal to linear_definition bit for bit, hence under any slicing of rows or columns. Bytes moved: W
// once per 512 rows of x, x once per 384 columns of W, y once.
#include "kernels/linear.h"

#include <cmath>
#include <cstring>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/gemm-inl.h"

#if HWY_ONCE
namespace h3s::cpu {
namespace {

// Weights may lie unaligned in a mapped file.
template <typename T>
float read(const void* base, std::int64_t idx) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + idx * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return to_float(value);
}

template <typename TX, typename TW>
float linear_total(const kernels::LinearArgs& a, std::int64_t m, std::int64_t n) {
  float total = 0;
  for (std::int64_t k0 = 0; k0 < a.k; k0 += kernels::kLinearKBlock) {
    float sum = 0;
    for (std::int64_t k = k0; k < std::min(a.k, k0 + kernels::kLinearKBlock); ++k)
      sum = std::fma(read<TX>(a.x, m * a.x_stride + k), read<TW>(a.w, n * a.k + k), sum);
    total += sum;
  }
  if (a.x_scale != nullptr) total *= a.x_scale[m];
  return a.bias == nullptr ? total : total + a.bias[n];
}

}  // namespace

void linear_definition(const kernels::LinearArgs& a) {
  dispatch_dtype<BF16, F16, float>(a.x_dtype, "linear", [&]<typename TX>() {
    dispatch_dtype<BF16, F16, float>(a.w_dtype, "linear", [&]<typename TW>() {
      dispatch_dtype<BF16, F16, float>(a.y_dtype, "linear", [&]<typename TY>() {
        for (std::int64_t m = 0; m < a.m; ++m)
          for (std::int64_t n = 0; n < a.n; ++n) {
            TY& y = static_cast<TY*>(a.y)[m * a.y_stride + n];
            const float total = linear_total<TX, TW>(a, m, n);
            y = from_float<TY>(a.add ? total + to_float(y) : total);
          }
      });
    });
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

static_assert(kBlockSteps == kernels::kLinearKBlock);

struct FloatProblem {
  using Step = FloatStep;
  static constexpr std::int64_t kStepK = 1;
  static std::int64_t steps(std::int64_t num_k) { return num_k; }

  const kernels::LinearArgs& a;

  std::int64_t k() const { return a.k; }

  void pack_w(Range cols, Range ks, std::uint32_t* panel, std::int64_t) const {
    const auto size = static_cast<std::int64_t>(dtype_size(a.w_dtype));
    const std::byte* src = static_cast<const std::byte*>(a.w) + (cols.begin * a.k + ks.begin) * size;
    with_store(a.w_dtype, [&]<class Store>() HWY_ATTR {
      pack_panel<Store>(src, a.k * size, cols.size(), ks.size() * size, panel);
    });
  }

  void pack_x(std::int64_t row, Range ks, float* dst) const {
    const std::int64_t first = row * a.x_stride + ks.begin;
    dispatch_dtype<BF16, F16, float>(a.x_dtype, "linear", [&]<typename T>() HWY_ATTR {
      widen_row(static_cast<const T*>(a.x) + first, ks.size(), dst);
    });
  }

  void finish(std::int64_t row, Range cols, const float* acc) const {
    const std::int64_t first = row * a.y_stride + cols.begin;
    const float scale = a.x_scale == nullptr ? 1.0f : a.x_scale[row];
    dispatch_dtype<BF16, F16, float>(a.y_dtype, "linear", [&]<typename T>() HWY_ATTR {
      store_row(acc, scale, cols, static_cast<T*>(a.y) + first);
    });
  }

  template <typename T>
  void store_row(const float* acc, float scale, Range cols, T* y) const {
    const F32 x_scale = hn::Set(F32Tag(), scale);
    for (std::int64_t c = 0; c < cols.size(); c += kLanes) {
      const std::int64_t left = cols.size() - c;
      F32 v = hn::Mul(hn::Load(F32Tag(), acc + c), x_scale);
      if (a.bias != nullptr) v = hn::Add(v, load(a.bias + cols.begin + c, left));
      if (a.add) v = hn::Add(v, load(y + c, left));
      store(v, y + c, left);
    }
  }
};

void linear_tiles(const kernels::LinearArgs& args, Workers& workers) {
  const Tiling tiling(args.m, args.n, workers.count());
  workers.parallel_for(tiling.count(), [&](std::int64_t idx, Scratch scratch) HWY_ATTR {
    FloatProblem problem{args};
    TileLoop(problem, scratch).run(tiling.row_range(idx), tiling.col_range(idx));
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(linear_tiles);

void linear(const kernels::LinearArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(linear_tiles)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
