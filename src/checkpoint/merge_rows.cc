#include "checkpoint/merge_rows.h"

#include <algorithm>

#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/merge_rows.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "checkpoint/draw-inl.h"
#include "simd/micro_kernel-inl.h"
#include "simd/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::checkpoint::HWY_NAMESPACE {
namespace {

using namespace h3s::simd::HWY_NAMESPACE;

static_assert(kMicroCols <= kMergePanelColumns);

// Columns [column, column + kMicroCols) of A as floats, [rank][kMicroCols]; missing ones are zeros.
template <typename T>
void pack_panel(const TilePair& pair, std::int64_t k, std::int64_t column, bool bf16, float* panel) {
  const T* row = reinterpret_cast<const T*>(pair.down) + column;
  const std::int64_t left = k - column;
  for (std::int64_t j = 0; j < pair.rank; ++j, row += k, panel += kMicroCols)
    for (int v = 0; v < kMicroVecs; ++v) {
      const std::int64_t skip = v * kLanes;
      F32 a = left > skip ? load(row + skip, left - skip) : hn::Zero(F32Tag());
      if (bf16 && !std::is_same_v<T, BF16>) a = round_vec<BF16>(a);
      hn::Store(a, F32Tag(), panel + skip);
    }
}

// What is done with the sums of some rows of a panel.
struct AddSums {
  float* cells;  // [rows][kMicroCols]
  F32 scale;
  bool bf16;

  HWY_INLINE void operator()(int row, int vec, F32 sum) const {
    float* cell = cells + row * kMicroCols + vec * kLanes;
    const F32 weight = hn::Load(F32Tag(), cell);
    const F32 changed =
        bf16 ? round_vec<BF16>(hn::Add(weight, round_vec<BF16>(hn::Mul(scale, round_vec<BF16>(sum)))))
             : hn::Add(weight, hn::Mul(scale, sum));
    hn::Store(changed, F32Tag(), cell);
  }
};

void add_pair(const TileArgs& a, const TilePair& pair, std::int64_t column) {
  dispatch_dtype<BF16, F16, float>(pair.down_dtype, "merge", [&]<typename T>() HWY_ATTR {
    pack_panel<T>(pair, a.k, column, a.bf16_steps, a.panel);
  });
  const F32 scale = hn::Set(F32Tag(), pair.scale);
  float* first = a.cells + pair.begin * kMicroCols;
  micro_panel<FloatStep>(pair.up, pair.rank, pair.end - pair.begin, a.panel, pair.rank,
                         [&](std::int64_t row) HWY_ATTR {
                           return AddSums{first + row * kMicroCols, scale, a.bf16_steps};
                         });
}

// fn(weight, cell, columns left) for every vector of a panel of the tile.
template <typename T, class Fn>
HWY_INLINE void for_vectors(const TileArgs& a, std::int64_t column, const Fn& fn) {
  T* weights = static_cast<T*>(a.weights) + column;
  const std::int64_t left = a.k - column;
  for (std::int64_t r = 0; r < a.rows; ++r)
    for (std::int64_t c = 0; c < std::min<std::int64_t>(kMicroCols, left); c += kLanes)
      fn(weights + r * a.stride + c, a.cells + r * kMicroCols + c, left - c);
}

template <typename T>
void add_panel(const TileArgs& a, std::int64_t column) {
  for_vectors<T>(a, column, [](const T* weight, float* cell, std::int64_t left) HWY_ATTR {
    hn::Store(load(weight, left), F32Tag(), cell);
  });
  for (const TilePair& pair : a.pairs) add_pair(a, pair, column);
  for_vectors<T>(a, column, [&](T* weight, const float* cell, std::int64_t left) HWY_ATTR {
    const F32 v = hn::Load(F32Tag(), cell);
    store(a.bf16_result ? round_vec<BF16>(v) : v, weight, left);
  });
}

void add_all_pairs(const TileArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "merge", [&]<typename T>() HWY_ATTR {
    for (std::int64_t c = 0; c < a.k; c += kMicroCols) add_panel<T>(a, c);
  });
}

std::uint16_t largest_bits(const std::uint16_t* row, std::int64_t k) {
  const hn::ScalableTag<std::uint16_t> d;
  constexpr std::int64_t kWide = 2 * kLanes;
  const auto magnitude = hn::Set(d, 0x7FFF);
  auto largest = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kWide <= k; i += kWide) largest = hn::Max(largest, hn::And(hn::LoadU(d, row + i), magnitude));
  alignas(64) std::uint16_t lanes[kWide];
  hn::Store(largest, d, lanes);
  std::uint16_t most = *std::max_element(lanes, lanes + kWide);
  for (; i < k; ++i) most = std::max<std::uint16_t>(most, row[i] & 0x7FFF);
  return most;
}

// ---- int8_tensorwise ----

HWY_INLINE F32 load_codes(const std::int8_t* codes, std::int64_t left) {
  const hn::Rebind<std::int8_t, F32Tag> d8;
  alignas(64) std::int8_t part[kLanes] = {};
  if (left < kLanes) codes = std::copy_n(codes, left, part) - left;
  return hn::ConvertTo(F32Tag(), hn::PromoteTo(I32Tag(), hn::LoadU(d8, codes)));
}

void dequantize_int8(const std::int8_t* codes, float scale, std::int64_t group, BF16* out, float* scratch,
                     std::int64_t k) {
  const F32 factor = hn::Set(F32Tag(), scale);
  for (std::int64_t i = 0; i < k; i += kLanes)
    store(hn::Mul(load_codes(codes + i, k - i), factor), scratch + i, k - i);
  rotate_row_vec(scratch, k, group);
  for (std::int64_t i = 0; i < k; i += kLanes) store(load(scratch + i, k - i), out + i, k - i);
}

// `divisor` is a bf16 number, v as well.
HWY_INLINE void draw_codes(const float* v, std::int64_t left, F32 divisor, std::uint64_t counter,
                           std::int8_t* codes) {
  const F32Tag d;
  const hn::Rebind<std::int8_t, F32Tag> d8;
  const F32 quotient = round_vec<BF16>(hn::Div(load(v, left), divisor));
  const F32 drawn = hn::Floor(round_vec<BF16>(hn::Add(quotient, round_vec<BF16>(draw_vec(counter)))));
  const F32 bounded = hn::Min(hn::Max(drawn, hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
  const auto bytes = hn::DemoteTo(d8, hn::ConvertTo(I32Tag(), bounded));
  if (HWY_LIKELY(left >= kLanes)) return hn::StoreU(bytes, d8, codes);
  alignas(64) std::int8_t part[kLanes];
  hn::Store(bytes, d8, part);
  std::copy_n(part, left, codes);
}

float draw_int8(const BF16* row, std::int64_t group, std::uint64_t counter, std::int8_t* codes,
                float* scratch, std::int64_t k) {
  constexpr float kSmallestScale = 1e-30f;
  for (std::int64_t i = 0; i < k; i += kLanes) store(load(row + i, k - i), scratch + i, k - i);
  rotate_row_vec(scratch, k, group);
  for (std::int64_t i = 0; i < k; i += kLanes)
    store(round_vec<BF16>(load(scratch + i, k - i)), scratch + i, k - i);
  const float scale = std::max(largest_magnitude_vec(scratch, k) / 127.0f, kSmallestScale);
  const F32 divisor = hn::Set(F32Tag(), round_to<BF16>(scale));
  for (std::int64_t i = 0; i < k; i += kLanes)
    draw_codes(scratch + i, k - i, divisor, counter + static_cast<std::uint64_t>(i), codes + i);
  return scale;
}

}  // namespace
}  // namespace h3s::checkpoint::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::checkpoint {

HWY_EXPORT(add_all_pairs);
HWY_EXPORT(largest_bits);
HWY_EXPORT(dequantize_int8);
HWY_EXPORT(draw_int8);

void add_pairs(const TileArgs& args) {
  HWY_DYNAMIC_DISPATCH(add_all_pairs)(args);
}

BF16 largest_bf16(std::span<const BF16> row) {
  return {HWY_DYNAMIC_DISPATCH(largest_bits)(reinterpret_cast<const std::uint16_t*>(row.data()),
                                             std::ssize(row))};
}

void dequantize_int8_row_fast(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                              std::span<BF16> out, std::span<float> scratch) {
  HWY_DYNAMIC_DISPATCH(dequantize_int8)
  (codes.data(), scale, group, out.data(), scratch.data(), std::ssize(codes));
}

float draw_int8_row(std::span<const BF16> row, std::int64_t group, std::uint32_t draw_seed,
                    std::uint64_t first_idx, std::span<std::int8_t> codes, std::span<float> scratch) {
  return HWY_DYNAMIC_DISPATCH(draw_int8)(row.data(), group, first_idx + draw_seed, codes.data(),
                                         scratch.data(), std::ssize(row));
}

}  // namespace h3s::checkpoint
#endif  // HWY_ONCE
