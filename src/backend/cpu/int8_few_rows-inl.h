// int8 products of few rows: lanes along k, W read once in its own order and not packed. Integer sums are
// exact, so this order gives the same bits as the tiles of gemm-inl.h.
#if defined(H3S_CPU_INT8_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_INT8_FEW_ROWS_INL_H_
#undef H3S_CPU_INT8_FEW_ROWS_INL_H_
#else
#define H3S_CPU_INT8_FEW_ROWS_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/int8_step-inl.h"
#include "backend/cpu/workers.h"
#include "kernels/linear.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kFewRows = 4;  // more of them repay the packing of W

class Int8FewRows {
 public:
  explicit Int8FewRows(const kernels::LinearInt8Args& args)
      : a_(args), stride_((args.k + 4 * kLanes - 1) / (4 * kLanes) * kLanes + kRowPad) {}

  // Few rows, and all of them fit the scratch memory of a thread.
  bool applies() const { return a_.m <= kFewRows && a_.m * stride_ * 4 <= kScratchBytes; }

  // sums(m, n, sum) for every row m and each n in [begin, end).
  template <class Sums>
  HWY_INLINE void run(std::int64_t begin, std::int64_t end, Scratch scratch, const Sums& sums) const {
    auto* x = scratch.take<std::uint32_t>(a_.m * stride_);
    for (std::int64_t m = 0; m < a_.m; ++m) pack_row(m, x + m * stride_);
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t m = 0; m < a_.m; m += kMicroRows) {
        const std::int64_t rows = a_.m - m < kMicroRows ? a_.m - m : kMicroRows;
        some_rows<kMicroRows>(static_cast<int>(rows), x + m * stride_, m, n, sums);
      }
  }

 private:
  void pack_row(std::int64_t m, std::uint32_t* dst) const {
    const auto* src = reinterpret_cast<const std::byte*>(a_.x) + m * a_.k;
    for (std::int64_t k = 0; k < a_.k; k += 4 * kLanes, dst += kLanes)
      hn::Store(offset_codes(load_bytes(src + k, a_.k - k)), U32Tag(), dst);
  }

  template <int kRows, class Sums>
  HWY_INLINE void some_rows(int rows, const std::uint32_t* x, std::int64_t m, std::int64_t n,
                            const Sums& sums) const {
    if (rows == kRows) return dot_rows<kRows>(x, m, n, sums);
    if constexpr (kRows > 1) some_rows<kRows - 1>(rows, x, m, n, sums);
  }

  template <int kRows, class Sums>
  HWY_INLINE void dot_rows(const std::uint32_t* x, std::int64_t m, std::int64_t n, const Sums& sums) const {
    const I32Tag d;
    const auto* w = reinterpret_cast<const std::byte*>(a_.w) + n * a_.k;
    I32 acc[kRows], w_sum = hn::Zero(d);
    for (I32& sum : acc) sum = hn::Zero(d);
    for (std::int64_t k = 0; k < a_.k; k += 4 * kLanes, x += kLanes) {
      const U32 codes = load_bytes(w + k, a_.k - k);
      w_sum = add_codes(codes, w_sum);
      for (int r = 0; r < kRows; ++r) acc[r] = dot_codes(hn::Load(U32Tag(), x + r * stride_), codes, acc[r]);
    }
    for (int r = 0; r < kRows; ++r)
      sums(m + r, n, hn::GetLane(hn::SumOfLanes(d, without_offset(acc[r], w_sum))));
  }

  const kernels::LinearInt8Args& a_;
  std::int64_t stride_;  // of a packed row, in words of four codes
};

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
