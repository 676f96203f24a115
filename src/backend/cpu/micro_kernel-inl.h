// What feeds the inner product kernel of linear layers and attention (simd/micro_kernel-inl.h): rows packed
// into panels. All packed values are 32 bits: a float, two 16-bit or four 8-bit integers ("one step of k").
#if defined(H3S_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_MICRO_KERNEL_INL_H_
#undef H3S_CPU_MICRO_KERNEL_INL_H_
#else
#define H3S_CPU_MICRO_KERNEL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/transpose-inl.h"
#include "backend/cpu/vec-inl.h"
#include "base/dtype.h"
#include "hwy/cache_control.h"
#include "simd/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

// Rows of x are padded by a cache line so that the rows of one kernel call fall in different cache sets.
inline constexpr std::int64_t kRowPad = 16;

// ---- packing: what one 32-bit column of raw bytes becomes, `kSteps` vectors at distance `stride` ----

struct StoreRaw {
  static constexpr int kSteps = 1;
  static HWY_INLINE void store(U32 v, std::uint32_t* dst, std::int64_t) { hn::StoreU(v, U32Tag(), dst); }
};

struct StoreBf16 {
  static constexpr int kSteps = 2;
  static HWY_INLINE void store(U32 v, std::uint32_t* dst, std::int64_t stride) {
    hn::StoreU(hn::ShiftLeft<16>(v), U32Tag(), dst);
    hn::StoreU(hn::And(v, hn::Set(U32Tag(), 0xFFFF0000u)), U32Tag(), dst + stride);
  }
};

struct StoreF16 {
  static constexpr int kSteps = 2;
  static HWY_INLINE void store(U32 v, std::uint32_t* dst, std::int64_t stride) {
    hn::StoreU(widen_f16(hn::And(v, hn::Set(U32Tag(), 0xFFFF))), U32Tag(), dst);
    hn::StoreU(widen_f16(hn::ShiftRight<16>(v)), U32Tag(), dst + stride);
  }
};

// Up to 4 * kLanes bytes as a vector, zeros beyond; any alignment.
HWY_INLINE U32 load_bytes(const std::byte* p, std::int64_t bytes) {
  constexpr std::int64_t kAll = 4 * kLanes;
  const hn::Repartition<std::uint8_t, U32Tag> d8;
  if (HWY_LIKELY(bytes >= kAll))
    return hn::BitCast(U32Tag(), hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
  alignas(64) std::uint8_t part[kAll] = {};
  std::memcpy(part, p, static_cast<std::size_t>(bytes));
  return hn::BitCast(U32Tag(), hn::Load(d8, part));
}

// A panel is read as kLanes streams, more than the processor follows by itself. Found by measurement: 256 to
// 512 bytes ahead make products of few rows, which wait for memory, about a fifth faster.
inline constexpr std::int64_t kPrefetchBytes = 384;

// Turns `rows` <= kLanes rows of `bytes` bytes into steps: dst[step * dst_stride + row]. Missing rows are
// zero; the steps are filled up to a multiple of kLanes * kSteps, with zeros.
template <class Store>
HWY_NOINLINE void transpose_rows(const std::byte* src, std::int64_t row_bytes, std::int64_t rows,
                                 std::int64_t bytes, std::uint32_t* dst, std::int64_t dst_stride) {
  U32 square[kLanes];
  for (std::int64_t b = 0; b < bytes; b += 4 * kLanes) {
    for (int i = 0; i < rows; ++i) hwy::Prefetch(src + i * row_bytes + b + kPrefetchBytes);
    for (int i = 0; i < kLanes; ++i)
      square[i] = i < rows ? load_bytes(src + i * row_bytes + b, bytes - b) : hn::Zero(U32Tag());
    transpose(square);
    for (int i = 0; i < kLanes; ++i, dst += Store::kSteps * dst_stride)
      Store::store(square[i], dst, dst_stride);
  }
}

// One panel w[step][kMicroCols] from `rows` <= kMicroCols rows.
template <class Store>
HWY_INLINE void pack_panel(const std::byte* src, std::int64_t row_bytes, std::int64_t rows,
                           std::int64_t bytes, std::uint32_t* panel) {
  for (int v = 0; v < kMicroVecs; ++v) {
    const std::int64_t skip = v * kLanes;
    const std::int64_t left = rows <= skip ? 0 : (rows - skip < kLanes ? rows - skip : kLanes);
    const std::byte* first = left == 0 ? src : src + skip * row_bytes;
    transpose_rows<Store>(first, row_bytes, left, bytes, panel + skip, kMicroCols);
  }
}

// Calls fn<Store>() for the storage of floating-point weights.
template <class Fn>
HWY_INLINE void with_store(DType dtype, const Fn& fn) {
  if (dtype == DType::kBF16) return fn.template operator()<StoreBf16>();
  if (dtype == DType::kF16) return fn.template operator()<StoreF16>();
  fn.template operator()<StoreRaw>();
}

// A row of n values as floats.
template <typename T>
HWY_INLINE void widen_row(const T* src, std::int64_t n, float* dst) {
  for (std::int64_t c = 0; c < n; c += kLanes) store(load(src + c, n - c), dst + c, n - c);
}

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
