#include "checkpoint/encode_layer.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/parallel.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
// Below this a thread costs more than it saves.
constexpr std::int64_t kLeastElements = std::int64_t{1} << 16;

std::int64_t least_rows(std::int64_t k) {
  return std::max<std::int64_t>(1, kLeastElements / std::max<std::int64_t>(1, k));
}

}  // namespace

std::int64_t rows_a_thread(std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, row_bytes));
}

float largest_magnitude(std::int64_t n, std::int64_t k, int threads, const ReadRow& read) {
  std::atomic<std::uint16_t> largest = 0;  // magnitudes of bf16 order like their bits
  in_slices(n, least_rows(k), threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<BF16> row(static_cast<std::size_t>(k));
    std::uint16_t most = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      read(r, row);
      for (const BF16 v : row) most = std::max(most, static_cast<std::uint16_t>(v.bits & 0x7FFF));
    }
    std::uint16_t seen = largest.load();
    while (seen < most && !largest.compare_exchange_weak(seen, most)) {
    }
  });
  return to_float(BF16{largest.load()});
}

void encode_layer(LayerEncoder& encoder, std::int64_t n, std::int64_t k, int threads, const ReadRow& read,
                  const WriteBytes& write) {
  const std::int64_t row_bytes = encoder.row_bytes();
  const std::int64_t chunk = rows_a_thread(row_bytes) * threads;
  std::vector<std::byte> bytes;
  for (std::int64_t first = 0; first < encoder.stored_rows(); first += chunk) {
    const std::int64_t stored = std::min(chunk, encoder.stored_rows() - first);
    const std::int64_t rows = std::clamp<std::int64_t>(n - first, 0, stored);
    bytes.assign(static_cast<std::size_t>(stored * row_bytes), std::byte{0});
    in_slices(rows, least_rows(k), threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<BF16> row(static_cast<std::size_t>(k));
      std::vector<float> scratch(row.size());
      for (std::int64_t r = begin; r < end; ++r) {
        read(first + r, row);
        encoder.encode_row(first + r, row, bytes.data() + r * row_bytes, scratch);
      }
    });
    write(bytes.data(), bytes.size());
  }
  for (const LayerEncoder::Companion& c : encoder.companions()) write(c.bytes.data(), c.bytes.size());
  write(encoder.tag().data(), encoder.tag().size());
}

}  // namespace h3s::checkpoint
