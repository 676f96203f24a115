// The blocked loop of a linear layer: tiles over threads, K blocks, packed panels, micro-kernel.
//
// A tile is up to kTileRows x kTileCols of the result. For each K block it packs its piece of W (one panel
// for each kMicroCols columns), then block of rows by block of rows packs x and adds the block's sums to the
// accumulator tile. Nothing in the order of a sum depends on tiles, so they may be chosen for balance.
#if defined(H3S_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef H3S_CPU_GEMM_INL_H_
#undef H3S_CPU_GEMM_INL_H_
#else
#define H3S_CPU_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backend/cpu/micro_kernel-inl.h"
#include "backend/cpu/workers.h"

HWY_BEFORE_NAMESPACE();
namespace h3s::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kBlockSteps = 256;  // 32-bit steps of k in a block
inline constexpr std::int64_t kTileCols = 384;    // packed W: 384 KiB, which stays in a 1 MiB L2 ...
inline constexpr std::int64_t kBlockRows = 128;   // ... beside a packed block of x of 136 KiB
inline constexpr std::int64_t kTileRows = 512;  // how often a packed W is used; the accumulators are 768 KiB
inline constexpr std::int64_t kXStride = kBlockSteps + kRowPad;
static_assert(kTileCols % kMicroCols == 0);
static_assert(4 * (kTileCols * kBlockSteps + kBlockRows * kXStride + kTileRows * kTileCols + kTileCols) <=
              kScratchBytes);

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

template <class Step>
struct AddTo {
  typename Step::Lane* acc;
  HWY_INLINE void operator()(int row, int vec, typename Step::Vec sum) const {
    auto* p = acc + row * kTileCols + vec * kLanes;
    const hn::ScalableTag<typename Step::Lane> d;
    hn::Store(hn::Add(hn::Load(d, p), sum), d, p);
  }
};

// How a result of m x n is cut into tiles: the largest that leave at least four tiles a thread, where
// possible.
struct Tiling {
  std::int64_t m, n, rows, cols;

  Tiling(std::int64_t m_, std::int64_t n_, int num_threads) : m(m_), n(n_), rows(kTileRows), cols(kTileCols) {
    while (count() < 4 * num_threads && cols > kMicroCols)
      cols = (cols / 2 + kMicroCols - 1) / kMicroCols * kMicroCols;
    while (count() < 4 * num_threads && rows > 4 * kMicroRows && m > rows / 2) rows /= 2;
  }
  std::int64_t tiles_down() const { return (m + rows - 1) / rows; }
  std::int64_t count() const { return tiles_down() * ((n + cols - 1) / cols); }
  Range row_range(std::int64_t idx) const {
    const std::int64_t first = idx % tiles_down() * rows;
    return {first, std::min(m, first + rows)};
  }
  Range col_range(std::int64_t idx) const {
    const std::int64_t first = idx / tiles_down() * cols;
    return {first, std::min(n, first + cols)};
  }
};

// Problem gives: Step; kStepK, the elements of k in a step; steps(num_k), how many steps its packing makes of
// num_k elements; k(); pack_w(cols, ks, panel, tile column), pack_x(row, ks, dst), finish(row, cols,
// accumulators).
template <class Problem>
class TileLoop {
 public:
  using Step = typename Problem::Step;
  using Lane = typename Step::Lane;

  TileLoop(Problem& problem, Scratch scratch)
      : problem_(problem),
        panels_(scratch.take<Lane>(kTileCols * kBlockSteps)),
        x_(scratch.take<Lane>(kBlockRows * kXStride)),
        acc_(scratch.take<Lane>(kTileRows * kTileCols)) {}

  void run(Range rows, Range cols) {
    std::fill_n(acc_, rows.size() * kTileCols, Lane{0});
    constexpr std::int64_t kBlockK = kBlockSteps * Problem::kStepK;
    for (std::int64_t k0 = 0; k0 < problem_.k(); k0 += kBlockK)
      add_block(rows, cols, {k0, std::min(problem_.k(), k0 + kBlockK)});
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      problem_.finish(r, cols, acc_ + (r - rows.begin) * kTileCols);
  }

 private:
  void add_block(Range rows, Range cols, Range ks) {
    for (std::int64_t c = 0; c < cols.size(); c += kMicroCols)
      problem_.pack_w({cols.begin + c, std::min(cols.end, cols.begin + c + kMicroCols)}, ks,
                      reinterpret_cast<std::uint32_t*>(panels_ + c * kBlockSteps), c);
    for (std::int64_t r = rows.begin; r < rows.end; r += kBlockRows)
      add_rows({r, std::min(rows.end, r + kBlockRows)}, cols, ks, acc_ + (r - rows.begin) * kTileCols);
  }

  void add_rows(Range rows, Range cols, Range ks, Lane* acc) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      problem_.pack_x(r, ks, x_ + (r - rows.begin) * kXStride);
    const std::int64_t depth = Problem::steps(ks.size());
    for (std::int64_t c = 0; c < cols.size(); c += kMicroCols)
      micro_panel<Step>(x_, kXStride, rows.size(), panels_ + c * kBlockSteps, depth,
                        [&](std::int64_t r) HWY_ATTR { return AddTo<Step>{acc + r * kTileCols + c}; });
  }

  Problem& problem_;
  Lane* panels_;
  Lane* x_;
  Lane* acc_;
};

}  // namespace h3s::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
