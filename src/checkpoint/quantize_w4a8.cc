#include "checkpoint/quantize_w4a8.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/float8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "checkpoint/quantize_w4a8.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "checkpoint/draw-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::checkpoint::HWY_NAMESPACE {
namespace {

constexpr float kSmallest = kSmallestW4A8Scale;
constexpr int kRefinements = 2;
constexpr int kGroup = static_cast<int>(kW4A8Group), kLevels = 16;
constexpr int kVectors = kGroup / kLanes;
static_assert(kGroup % kLanes == 0);

// The values of a group, a level each, or what is made of them.
struct Values {
  F32 v[kVectors];
};

template <class Fn>
HWY_INLINE Values each(const Values& a, const Fn& fn) {
  Values out;
  for (int i = 0; i < kVectors; ++i) out.v[i] = fn(a.v[i]);
  return out;
}

HWY_INLINE Values load_group(const float* p) {
  Values out;
  for (int i = 0; i < kVectors; ++i) out.v[i] = hn::LoadU(F32Tag(), p + i * kLanes);
  return out;
}

HWY_INLINE Values quotients(const Values& w, float divisor) {
  const F32 d = hn::Set(F32Tag(), divisor);
  return each(w, [&](F32 v) HWY_ATTR { return hn::Div(v, d); });
}

HWY_INLINE float largest_of(const Values& a) {
  F32 largest = hn::Abs(a.v[0]);
  for (int i = 1; i < kVectors; ++i) largest = hn::Max(largest, hn::Abs(a.v[i]));
  return hn::GetLane(hn::MaxOfLanes(F32Tag(), largest));
}

// Halves of the group are added, then the eight sums in order.
HWY_INLINE float group_dot(const Values& a, const Values& b) {
  alignas(64) float products[kGroup];
  for (int i = 0; i < kVectors; ++i) hn::Store(hn::Mul(a.v[i], b.v[i]), F32Tag(), products + i * kLanes);
  float sum = 0;
  for (int j = 0; j < kGroup / 2; ++j) sum += products[j] + products[j + kGroup / 2];
  return sum;
}

// The nearest of the levels; of two the lower.
HWY_INLINE F32 nearest(const float* levels, F32 x) {
  const F32Tag d;
  F32 best = hn::Set(d, levels[0]), least = hn::Abs(hn::Sub(x, best));
  for (int i = 1; i < kLevels; ++i) {
    const F32 level = hn::Set(d, levels[i]), distance = hn::Abs(hn::Sub(x, level));
    const auto closer = hn::Lt(distance, least);
    least = hn::IfThenElse(closer, distance, least);
    best = hn::IfThenElse(closer, level, best);
  }
  return best;
}

// The neighbour of x that u chooses: the upper one if x is above lower + u (upper - lower).
HWY_INLINE F32 drawn(const float* levels, F32 x, F32 u) {
  const F32Tag d;
  F32 lower = hn::Set(d, levels[0]), upper = hn::Set(d, levels[kLevels - 1]);
  for (int i = 0; i < kLevels; ++i) {
    const F32 level = hn::Set(d, levels[i]);
    lower = hn::IfThenElse(hn::Le(level, x), level, lower);
  }
  for (int i = kLevels - 1; i >= 0; --i) {
    const F32 level = hn::Set(d, levels[i]);
    upper = hn::IfThenElse(hn::Gt(level, x), level, upper);
  }
  return hn::IfThenElse(hn::Gt(x, hn::Add(lower, hn::Mul(u, hn::Sub(upper, lower)))), upper, lower);
}

// The code of a level: of equal ones the first.
HWY_INLINE void store_codes(const float* levels, F32 chosen, std::int8_t* codes) {
  const F32Tag d;
  const hn::Rebind<std::int8_t, F32Tag> d8;
  F32 code = hn::Zero(d);
  for (int i = 0; i < kLevels; ++i)
    code = hn::Add(code, hn::IfThenElseZero(hn::Lt(hn::Set(d, levels[i]), chosen), hn::Set(d, 1)));
  hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(I32Tag(), code)), d8, codes);
}

// The scale that fits the codes of a group best, and the largest of its products with their levels.
struct Fit {
  float scale, largest;
};

HWY_INLINE Fit fit(const float* codebook, const Values& w) {
  float scale = std::max(largest_of(w), kSmallest);
  const auto assign = [&]() HWY_ATTR {
    return each(quotients(w, scale), [&](F32 x) HWY_ATTR { return nearest(codebook, x); });
  };
  Values levels = assign();
  for (int r = 0; r < kRefinements; ++r) {
    const float square = std::max(group_dot(levels, levels), kSmallest);
    scale = std::max(group_dot(w, levels) / square, kSmallest);
    levels = assign();
  }
  const F32 factor = hn::Set(F32Tag(), scale);
  return {scale, largest_of(each(levels, [&](F32 v) HWY_ATTR { return hn::Mul(v, factor); }))};
}

// What decoding will make of the codes.
HWY_INLINE void int8_levels(const float* codebook, float scale, float* levels) {
  const F32Tag d;
  const F32 factor = hn::Set(d, scale);
  for (int i = 0; i < kLevels; i += kLanes) {
    const F32 level = hn::Round(hn::Mul(hn::LoadU(d, codebook + i), factor));
    hn::StoreU(hn::Min(hn::Max(level, hn::Set(d, -127.0f)), hn::Set(d, 127.0f)), d, levels + i);
  }
}

void fit_row(const float* codebook, const float* row, std::size_t groups, float* scales, float* largest) {
  *largest = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    const Fit group = fit(codebook, load_group(row + g * kGroup));
    scales[g] = group.scale;
    *largest = std::max(*largest, group.largest);
  }
}

// Codes of the levels that each group's relative scale makes.
void encode_row(const float* codebook, std::span<const float> relative, float channel, const float* row,
                const W4A8Draw& draw, std::int8_t* codes) {
  std::uint64_t counter = draw.first_idx + draw.seed;
  for (const float scale : relative) {
    alignas(64) float levels[kLevels];
    int8_levels(codebook, scale, levels);
    const Values x = quotients(load_group(row), channel);
    for (int i = 0; i < kVectors; ++i, codes += kLanes, counter += kLanes)
      store_codes(levels, draw.seed == 0 ? nearest(levels, x.v[i]) : drawn(levels, x.v[i], draw_vec(counter)),
                  codes);
    row += kGroup;
  }
}

}  // namespace
}  // namespace h3s::checkpoint::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::checkpoint {

HWY_EXPORT(fit_row);
HWY_EXPORT(encode_row);

float quantize_w4a8_row(std::span<const float> row, std::span<std::int8_t> codes,
                        std::span<std::uint8_t> relative, const std::array<float, 16>& codebook,
                        const W4A8Draw& draw) {
  H3S_ASSERT(codes.size() == row.size() && relative.size() * kW4A8Group == row.size());
  std::vector<float> scales(relative.size());
  float largest = 0;
  HWY_DYNAMIC_DISPATCH(fit_row)(codebook.data(), row.data(), scales.size(), scales.data(), &largest);
  const float channel = std::max(largest / 127.0f, kSmallestW4A8Scale);
  for (std::size_t g = 0; g < scales.size(); ++g) {
    scales[g] = round_small<E4M3>(scales[g] / channel);
    relative[g] = small_code<E4M3>(scales[g]);
  }
  HWY_DYNAMIC_DISPATCH(encode_row)(codebook.data(), scales, channel, row.data(), draw, codes.data());
  return channel;
}

}  // namespace h3s::checkpoint
#endif  // HWY_ONCE
