// Where the scale of a block lies: tiles of 128 rows x 4 columns, 512 bytes each, in the order that
// block-scaled tensor cores read.
#pragma once

#include <cstdint>

namespace h3s::checkpoint {

inline constexpr std::int64_t kScaleTileRows = 128;
inline constexpr std::int64_t kScaleTileColumns = 4;

// Scale (row, column) of a tensor [rows rounded up to 128, `columns` a multiple of 4], bytes from its start.
inline std::int64_t swizzled_offset(std::int64_t row, std::int64_t column, std::int64_t columns) {
  const std::int64_t tile = row / kScaleTileRows * (columns / kScaleTileColumns) + column / kScaleTileColumns;
  return tile * kScaleTileRows * kScaleTileColumns + row % 32 * 16 + row % kScaleTileRows / 32 * 4 +
         column % kScaleTileColumns;
}

}  // namespace h3s::checkpoint
