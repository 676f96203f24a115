// The arithmetic of a merge on rows in memory, on vectors. merge.h has the rounding contract; here is who
// rounds what. Every function is pure, and gives a row the same bits whatever rows come with it.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/float16.h"

namespace h3s::checkpoint {

// Columns of a panel at most: what a kernel call takes at a time on the widest vectors.
inline constexpr std::int64_t kMergePanelColumns = 48;

// A pair and the rows of a tile that it changes.
struct TilePair {
  const std::byte* down = nullptr;  // A [rank, k], may be unaligned
  DType down_dtype = DType::kBF16;  // bf16, f16 or f32
  const float* up = nullptr;        // [end - begin, rank]: B of those rows, rounded to bf16 with bf16_steps
  std::int64_t rank = 0;
  float scale = 1;
  std::int64_t begin = 0, end = 0;  // rows of the tile
};

struct TileArgs {
  void* weights = nullptr;     // [rows, k] of `dtype`, row stride `stride` elements: changed in place
  DType dtype = DType::kBF16;  // bf16 or f32
  std::int64_t rows = 0, k = 0, stride = 0;
  std::span<const TilePair> pairs;
  bool bf16_steps = false;   // A, the sum, its product with the scale and the sum with W are rounded to bf16
  bool bf16_result = false;  // the changed weight is rounded to bf16
  float* panel = nullptr;    // [largest rank, kMergePanelColumns], aligned to 64 bytes
  float* cells = nullptr;    // [rows, kMergePanelColumns], aligned to 64 bytes
};

// For each pair, in order: W += scale . sum_j B[n][j] A[j][k]; the sum in float, one fused multiply-add chain
// from zero, j ascending.
void add_pairs(const TileArgs& args);

// The largest magnitude of a row; NaN where there is one: magnitudes order like their bits, NaN last.
BF16 largest_bf16(std::span<const BF16> row);

// As dequantize_int8_row and quantize_int8_row (quantize_int8.h), bit for bit. `scratch` [k].
void dequantize_int8_row_fast(std::span<const std::int8_t> codes, float scale, std::int64_t group,
                              std::span<BF16> out, std::span<float> scratch);
// Codes are drawn; returns the scale.
float draw_int8_row(std::span<const BF16> row, std::int64_t group, std::uint32_t draw_seed,
                    std::uint64_t first_idx, std::span<std::int8_t> codes, std::span<float> scratch);

}  // namespace h3s::checkpoint
