// linear_int8: y[m][n] = round(f(f(f(acc) x_scale[m]) w_scale[n]) + bias[n]), acc = sum of x[m][k] w[n][k].
//
// Rounding: acc is an exact int32 (k <= 131072), so its order is free; it is converted to float (one
// rounding), multiplied by the row's scale, then by the column's (a rounding each), bias is added (one), and
// the result is rounded to y_dtype. Equal to linear_int8_definition bit for bit, hence under any slicing of
// rows or columns. Up to four rows take a path of their own (int8_few_rows-inl.h).
// Bytes moved: W once per 512 rows of x, x once per 384 columns of W, y once.
#include <cstdint>

#include "backend/cpu/definitions.h"
#include "backend/cpu/int8_scale.h"
#include "backend/cpu/launchers.h"
#include "kernels/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear_int8.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/gemm-inl.h"
#include "backend/cpu/int8_few_rows-inl.h"

#if HWY_ONCE
namespace h3s::cpu {
namespace {

std::int32_t dot(const std::int8_t* x, const std::int8_t* w, std::int64_t k) {
  std::int32_t acc = 0;
  for (std::int64_t i = 0; i < k; ++i) acc += std::int32_t{x[i]} * std::int32_t{w[i]};
  return acc;
}

}  // namespace

void linear_int8_definition(const kernels::LinearInt8Args& a) {
  for (std::int64_t m = 0; m < a.m; ++m)
    for (std::int64_t n = 0; n < a.n; ++n) store_scaled(a, m, n, dot(a.x + m * a.k, a.w + n * a.k, a.k));
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

struct Int8Problem {
  using Step = Int8Step;
  static constexpr std::int64_t kStepK = kInt8StepK;
  // Whole words of four codes; the missing ones are zero in W.
  static std::int64_t steps(std::int64_t num_k) { return (num_k + 3) / 4 * (4 / kStepK); }

  const kernels::LinearInt8Args& a;
  std::int32_t* column_sums;  // [kTileCols] of the tile's columns of W, over the K blocks packed so far

  std::int64_t k() const { return a.k; }

  void pack_w(Range cols, Range ks, std::uint32_t* panel, std::int64_t tile_col) const {
    const auto* src = reinterpret_cast<const std::byte*>(a.w) + cols.begin * a.k + ks.begin;
    pack_panel<StoreW>(src, a.k, cols.size(), ks.size(), panel);
    if constexpr (kXHasOffset) sum_columns(ks, panel, tile_col);
  }

  void sum_columns(Range ks, const std::uint32_t* panel, std::int64_t tile_col) const {
    const I32Tag d;
    for (int v = 0; v < kMicroVecs; ++v) {
      std::int32_t* total = column_sums + tile_col + v * kLanes;
      const std::uint32_t* w = panel + v * kLanes;
      I32 sum = ks.begin == 0 ? hn::Zero(d) : hn::Load(d, total);
      for (std::int64_t i = 0; i < steps(ks.size()); ++i, w += kMicroCols)
        sum = add_codes(hn::Load(U32Tag(), w), sum);
      hn::Store(sum, d, total);
    }
  }

  void pack_x(std::int64_t row, Range ks, std::int32_t* dst) const {
    const auto* src = reinterpret_cast<const std::byte*>(a.x) + row * a.k + ks.begin;
    for (std::int64_t k = 0; k < ks.size(); k += 4 * kLanes, dst += 4 * kLanes / kStepK)
      store_x(load_bytes(src + k, ks.size() - k), dst);
  }

  void finish(std::int64_t row, Range cols, const std::int32_t* acc) const {
    const std::int64_t first = row * a.y_stride + cols.begin;
    if (a.y_dtype == DType::kBF16) return store_row(acc, row, cols, static_cast<BF16*>(a.y) + first);
    store_row(acc, row, cols, static_cast<float*>(a.y) + first);
  }

  template <typename T>
  void store_row(const std::int32_t* acc, std::int64_t row, Range cols, T* y) const {
    const F32Tag d;
    const F32 x_scale = hn::Set(d, a.x_scale[row]);
    for (std::int64_t c = 0; c < cols.size(); c += kLanes) {
      const std::int64_t left = cols.size() - c;
      F32 v = hn::ConvertTo(d, exact_sum(acc + c, c));
      v = hn::Mul(hn::Mul(v, x_scale), load(a.w_scale + cols.begin + c, left));
      if (a.bias != nullptr) v = hn::Add(v, load(a.bias + cols.begin + c, left));
      store(v, y + c, left);
    }
  }

  HWY_INLINE I32 exact_sum(const std::int32_t* acc, std::int64_t tile_col) const {
    const I32Tag d;
    if constexpr (!kXHasOffset) return hn::Load(d, acc);
    return without_offset(hn::Load(d, acc), hn::Load(d, column_sums + tile_col));
  }
};

void few_rows(const kernels::LinearInt8Args& args, const Int8FewRows& product, Workers& workers) {
  workers.parallel_rows(args.n, [&](std::int64_t begin, std::int64_t end, Scratch scratch) HWY_ATTR {
    product.run(begin, end, scratch,
                [&](std::int64_t m, std::int64_t n, std::int32_t acc) { store_scaled(args, m, n, acc); });
  });
}

void linear_int8_tiles(const kernels::LinearInt8Args& args, Workers& workers) {
  if (const Int8FewRows product(args); product.applies()) return few_rows(args, product, workers);
  const Tiling tiling(args.m, args.n, workers.count());
  workers.parallel_for(tiling.count(), [&](std::int64_t idx, Scratch scratch) HWY_ATTR {
    Int8Problem problem{args, scratch.take<std::int32_t>(kTileCols)};
    TileLoop(problem, scratch).run(tiling.row_range(idx), tiling.col_range(idx));
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(linear_int8_tiles);

void linear_int8(const kernels::LinearInt8Args& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(linear_int8_tiles)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
