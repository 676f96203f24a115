// qkv_norm_rope: projected q, k, v rows to the attention layout, q and k normalised per head and rotated.
//
// Source [m, heads * 128], destination [heads][...][128], both in the compute type. Per head of q and k:
//   v = round((x r) w), r over the 128 values as in rms_norm.cc;
//   y_i = round(fma(c, v_i, -f(s v_{i+48}))), y_{i+48} = round(fma(c, v_{i+48}, f(s v_i))) for i < 48;
//   dimensions 96 .. 127 keep v.
// v rows are copied. Equal to qkv_norm_rope_definition bit for bit, hence under any chunking of rows or
// heads. Bytes moved per row: 3 x heads x 256 in and out (bf16), 192 of the rope table.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cpu/definitions.h"
#include "backend/cpu/launchers.h"
#include "base/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/qkv_norm_rope.cc"
#include "simd/targets.h"

#include "hwy/foreach_target.h"

#include "backend/cpu/reduce-inl.h"

#if HWY_ONCE
namespace h3s::cpu {
namespace {

using kernels::kHeadDim;
using kernels::kRopePairs;

template <typename T>
void norm_rope_definition(const T* x, const float* weight, const T* rope, T* y) {
  const float r = rms_scale(sum_of_squares(x, kHeadDim), kHeadDim);
  float v[kHeadDim];
  for (std::int64_t i = 0; i < kHeadDim; ++i) v[i] = round_to<T>((to_float(x[i]) * r) * weight[i]);
  for (std::int64_t i = 0; i < kRopePairs && rope != nullptr; ++i) {
    const float c = to_float(rope[i]), s = to_float(rope[kRopePairs + i]);
    const float first = v[i], second = v[i + kRopePairs];
    v[i] = std::fma(c, first, -(s * second));
    v[i + kRopePairs] = std::fma(c, second, s * first);
  }
  for (std::int64_t i = 0; i < kHeadDim; ++i) y[i] = from_float<T>(v[i]);
}

template <typename T>
void part_definition(const kernels::QkvArgs& a, const kernels::QkvArgs::Part& part, const float* weight) {
  for (std::int64_t m = 0; m < a.m && part.src != nullptr; ++m)
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const T* x = static_cast<const T*>(part.src) + m * a.src_stride + h * kHeadDim;
      T* y = static_cast<T*>(part.dst) + h * part.dst_head_stride + m * kHeadDim;
      const T* rope = a.rope == nullptr ? nullptr : static_cast<const T*>(a.rope) + m * 2 * kRopePairs;
      if (weight == nullptr)
        std::memcpy(y, x, kHeadDim * sizeof(T));
      else
        norm_rope_definition(x, weight, rope, y);
    }
}

}  // namespace

void qkv_norm_rope_definition(const kernels::QkvArgs& a) {
  dispatch_dtype<BF16, float>(a.dtype, "qkv_norm_rope", [&]<typename T>() {
    part_definition<T>(a, a.q, a.q_weight);
    part_definition<T>(a, a.k, a.k_weight);
    part_definition<T>(a, a.v, nullptr);
  });
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE

// ----------------------------------------------------------------------------------------------------

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {
namespace {

using kernels::kHeadDim;
using kernels::kRopePairs;
static_assert(kHeadDim % kLanes == 0 && kRopePairs % kLanes == 0, "heads and rotations are whole vectors");

template <typename T>
HWY_INLINE F32 normalised(const T* x, F32 r, const float* weight, std::int64_t i) {
  return round_vec<T>(hn::Mul(hn::Mul(load_vec(x + i), r), load_vec(weight + i)));
}

template <typename T>
void norm_rope_head(const T* x, const float* weight, const T* rope, T* y) {
  const F32 r = hn::Set(F32Tag(), rms_scale(sum_of_squares_vec(x, kHeadDim), kHeadDim));
  std::int64_t i = 0;
  for (; i < kRopePairs && rope != nullptr; i += kLanes) {
    const F32 c = load_vec(rope + i), s = load_vec(rope + kRopePairs + i);
    const F32 first = normalised(x, r, weight, i), second = normalised(x, r, weight, i + kRopePairs);
    store_vec(hn::MulSub(c, first, hn::Mul(s, second)), y + i);
    store_vec(hn::MulAdd(c, second, hn::Mul(s, first)), y + i + kRopePairs);
  }
  for (i = rope != nullptr ? 2 * kRopePairs : 0; i < kHeadDim; i += kLanes)
    store_vec(normalised(x, r, weight, i), y + i);
}

template <typename T>
void part_row(const kernels::QkvArgs& a, const kernels::QkvArgs::Part& part, const float* weight,
              std::int64_t m) {
  if (part.src == nullptr) return;
  const T* rope = a.rope == nullptr ? nullptr : static_cast<const T*>(a.rope) + m * 2 * kRopePairs;
  for (std::int64_t h = 0; h < a.heads; ++h) {
    const T* x = static_cast<const T*>(part.src) + m * a.src_stride + h * kHeadDim;
    T* y = static_cast<T*>(part.dst) + h * part.dst_head_stride + m * kHeadDim;
    if (weight == nullptr)
      std::memcpy(y, x, kHeadDim * sizeof(T));
    else
      norm_rope_head(x, weight, rope, y);
  }
}

void qkv_rows(const kernels::QkvArgs& args, Workers& workers) {
  workers.parallel_rows(args.m, [&](std::int64_t begin, std::int64_t end, Scratch) HWY_ATTR {
    dispatch_dtype<BF16, float>(args.dtype, "qkv_norm_rope", [&]<typename T>() HWY_ATTR {
      for (std::int64_t m = begin; m < end; ++m) {
        part_row<T>(args, args.q, args.q_weight, m);
        part_row<T>(args, args.k, args.k_weight, m);
        part_row<T>(args, args.v, nullptr, m);
      }
    });
  });
}

}  // namespace
}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace h3s::cpu {

HWY_EXPORT(qkv_rows);

void qkv_norm_rope(const kernels::QkvArgs& args, Workers& workers) {
  HWY_DYNAMIC_DISPATCH(qkv_rows)(args, workers);
}

}  // namespace h3s::cpu
#endif  // HWY_ONCE
