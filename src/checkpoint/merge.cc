#include "checkpoint/merge.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/magnitude.h"
#include "base/parallel.h"
#include "checkpoint/draw.h"
#include "checkpoint/encode.h"
#include "checkpoint/formats.h"
#include "checkpoint/merge_rows.h"
#include "checkpoint/quantize_w4a8.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

// Rows that are changed at a time: a panel of A is widened once for all of them, a tenth of their products'
// time, and the tile of the widest layer, 0.9 MiB, fits a second-level cache.
constexpr std::int64_t kTileRows = 32;
constexpr std::int64_t kPieceAlignment = 64;

std::int64_t largest_rank(const LoraLayer& lora) {
  std::int64_t largest = 0;
  for (const LoraPair& pair : lora.pairs) largest = std::max(largest, pair.rank);
  return largest;
}

// Of an encoder of one row.
std::int64_t companion_bytes(const LinearSource& source) {
  const LayerEncoder encoder(source.format, 1, source.k, source.rotate_group, 0);
  std::int64_t bytes = 0;
  for (const LayerEncoder::Companion& c : encoder.companions())
    bytes += round_up(std::ssize(c.bytes), kPieceAlignment);
  return bytes;
}

}  // namespace

// What a thread works in.
class MergedLayer::Part {
 public:
  // `data` null: only measures.
  Part(std::byte* data, std::int64_t bytes, const LinearSource& source, const LoraLayer& lora) : data_(data) {
    const auto k = source.k;
    row = take<float>(k);
    panel = take<float>(largest_rank(lora) * kMergePanelColumns).data();
    cells = take<float>(kTileRows * kMergePanelColumns).data();
    up = take<float>(kTileRows * lora.rank());
    if (source.plain()) return;
    bf16_row = take<BF16>(k);
    packed = take<std::byte>(round_up(k, kPieceAlignment));
    if (source.int8_product()) tile = take<BF16>(kTileRows * k);
    companions = take<std::byte>(data == nullptr ? companion_bytes(source) : bytes - used_);
  }
  std::int64_t bytes() const { return used_; }

  std::span<float> row;                      // [k]
  float *panel = nullptr, *cells = nullptr;  // TileArgs
  std::span<float> up;                       // of all pairs, one after another
  std::span<BF16> bf16_row, tile;            // [k], [kTileRows, k]
  std::span<std::byte> packed, companions;   // an encoded row and what goes with it

 private:
  template <typename T>
  std::span<T> take(std::int64_t count) {
    const std::int64_t offset = used_;
    used_ += round_up(count * std::int64_t{sizeof(T)}, kPieceAlignment);
    if (data_ == nullptr) return {};
    return {reinterpret_cast<T*>(data_ + offset), static_cast<std::size_t>(count)};
  }
  std::byte* data_;
  std::int64_t used_ = 0;
};

// One merged row at a time as a file would store it.
class MergedLayer::Requantizer {
 public:
  Requantizer(const MergedLayer& layer, Part& part, float largest)
      : layer_(layer),
        part_(part),
        memory_(part.companions.data(), part.companions.size(), std::pmr::null_memory_resource()),
        encoder_(layer.source_.format, 1, layer.source_.k, layer.source_.rotate_group, largest,
                 /*full_precision=*/false, &memory_),
        source_(layer.source_),
        stored_(layer.checkpoint_.file(), source_) {
    if (source_.format == WeightFormat::kAsymW4A8) encoder_.use_levels(stored_levels());
    source_.tensor_scale = encoder_.tensor_scale();
    stored_.weight = part.packed.data();
    const auto& companions = encoder_.companions();
    if (source_.format == WeightFormat::kAsymW4A8) {
      source_.group_scale = &relative_;
      stored_.group_scale = companions[0].bytes.data();
      stored_.scale = companions[1].bytes.data();
    } else if (source_.scale != nullptr) {
      stored_.scale = companions[0].bytes.data();
    }
  }

  // Row 0 of the layer that is returned.
  const StoredLayer& encode(std::int64_t row, std::span<const BF16> merged) {
    encoder_.draw_codes(layer_.seed_, row);
    const std::span<std::byte> packed = part_.packed.first(static_cast<std::size_t>(encoder_.row_bytes()));
    std::fill(packed.begin(), packed.end(), std::byte{0});
    encoder_.encode_row(0, merged, packed.data(), part_.row);
    return stored_;
  }
  float tensor_scale() const { return source_.tensor_scale; }

 private:
  std::array<float, 16> stored_levels() const {
    std::array<float, 16> levels;
    for (std::size_t i = 0; i < levels.size(); ++i)
      levels[i] = StoredLayer::scale_at(*source_.codebook, stored_.codebook, static_cast<std::int64_t>(i));
    return levels;
  }

  const MergedLayer& layer_;
  Part& part_;
  std::pmr::monotonic_buffer_resource memory_;
  LayerEncoder encoder_;
  io::TensorInfo relative_{.name = "", .dtype = DType::kF8E4M3, .shape = {}, .begin = 0, .end = 0};
  LinearSource source_;
  StoredLayer stored_;
};

MergedLayer::MergedLayer(const Checkpoint& checkpoint, const std::string& layer,
                         const MergeWorkspace& workspace)
    : checkpoint_(checkpoint),
      layer_(layer),
      source_(checkpoint.linear(layer)),
      lora_(*checkpoint.lora(layer)),
      workspace_(workspace),
      seed_(draw_seed("diffusion_model." + layer + ".weight")) {
  H3S_ASSERT(workspace.data != nullptr);
}

std::string MergedLayer::problem(const LinearSource& source) {
  if (source.plain()) return "";
  if (source.pre_scale != nullptr)
    return "the input has factors (pre_quant_scale), under which merging is not defined";
  if (source.format != WeightFormat::kAsymW4A8) return "";
  if (source.codebook == nullptr) return "a W4A8 layer without weight_codebook cannot be merged into";
  if (source.scale_group != kW4A8Group)
    return fmt::format("a W4A8 layer with groups of {} cannot be merged into, only of {}", source.scale_group,
                       kW4A8Group);
  return "";
}

std::int64_t MergedLayer::part_bytes(const LinearSource& source, const LoraLayer& lora) {
  return Part(nullptr, 0, source, lora).bytes();
}

// fn(part, begin, end) for slices of the layer's rows, beside each other.
template <typename Fn>
void MergedLayer::for_parts(Fn fn) const {
  const std::int64_t slices = std::min<std::int64_t>(workspace_.threads, source_.n);
  in_slices(slices, 1, workspace_.threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      Part part(workspace_.data + i * workspace_.part_bytes, workspace_.part_bytes, source_, lora_);
      fn(part, source_.n * i / slices, source_.n * (i + 1) / slices);
    }
  });
}

// A rotation doubles a value at most with each of its stages, of which the largest group has five, and once
// more on the way.
void MergedLayer::require_finite(std::int64_t row, float largest) const {
  constexpr float kRotationGrowth = 64;
  if (!std::isfinite(source_.rotate_group > 0 ? largest * kRotationGrowth : largest))
    fail(Status::kInvalidArgument,
         "{}: {}: row {} is not finite with the LoRA merged in: its strength is too large, or the row was "
         "broken",
         checkpoint_.file().path(), io::printable(source_.key), row);
}

namespace {

// Rows [first, first + rows) of a layer, `weights` row 0 of them.
void add_lora(const LoraLayer& lora, std::int64_t first, TileArgs tile, std::span<float> up) {
  std::vector<TilePair> pairs;
  for (const LoraPair& pair : lora.pairs) {
    const std::int64_t begin = std::max(first, pair.target.first_row);
    const std::int64_t end = std::min(first + tile.rows, pair.target.first_row + pair.target.rows);
    if (begin >= end) continue;
    const auto rank = static_cast<std::size_t>(pair.rank);
    pairs.push_back(
        {pair.down.data, pair.down.dtype, up.data(), pair.rank, pair.scale, begin - first, end - first});
    for (std::int64_t row = begin; row < end; ++row, up = up.subspan(rank)) {
      pair.up.read(pair.up_row(row) * pair.rank, up.first(rank));
      if (tile.bf16_steps)
        for (float& v : up.first(rank)) v = round_to<BF16>(v);
    }
  }
  tile.pairs = pairs;
  add_pairs(tile);
}

// fn(first, count) for tiles of rows of [begin, end).
template <typename Fn>
void for_tiles(std::int64_t begin, std::int64_t end, Fn fn) {
  for (std::int64_t i = begin; i < end; i += kTileRows) fn(i, std::min(kTileRows, end - i));
}

// The stored row as stock's bf16 weight.
void dequantized_row(const StoredLayer& stored, std::int64_t row, std::span<BF16> out,
                     std::span<float> scratch) {
  const LinearSource& source = stored.source;
  if (source.format == WeightFormat::kInt8Tensorwise) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(stored.weight) + row * source.k;
    return dequantize_int8_row_fast({codes, out.size()}, stored.row_scale(row), source.rotate_group, out,
                                    scratch);
  }
  format_row(source.format).rows.dequantize(stored, row, DType::kBF16, scratch.data());
  std::transform(scratch.begin(), scratch.begin() + std::ssize(out), out.begin(), to_bf16);
}

}  // namespace

void MergedLayer::codes(std::int8_t* out, float* row_scales) const {
  const auto k = static_cast<std::size_t>(source_.k);
  const StoredLayer stored(checkpoint_.file(), source_);
  for_parts([&](Part& part, std::int64_t begin, std::int64_t end) {
    Requantizer requantizer(*this, part, 0);
    const auto tile_row = [&](std::int64_t i) {
      return part.tile.subspan(static_cast<std::size_t>(i) * k, k);
    };
    for_tiles(begin, end, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) dequantized_row(stored, first + i, tile_row(i), part.row);
      add_lora(lora_, first,
               {.weights = part.tile.data(),
                .dtype = DType::kBF16,
                .rows = count,
                .k = source_.k,
                .stride = source_.k,
                .bf16_steps = true,
                .panel = part.panel,
                .cells = part.cells},
               part.up);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = first + i;
        require_finite(row, to_float(largest_bf16(tile_row(i))));
        std::int8_t* row_codes = out + row * source_.k;
        if (source_.format == WeightFormat::kInt8Tensorwise) {
          row_scales[row] =
              draw_int8_row(tile_row(i), source_.rotate_group, seed_,
                            static_cast<std::uint64_t>(row * source_.k), {row_codes, k}, part.row);
          continue;
        }
        const StoredLayer& encoded = requantizer.encode(row, tile_row(i));
        format_row(source_.format).rows.codes(encoded, 0, row_codes);
        row_scales[row] = encoded.row_scale(0);
      }
    });
  });
}

// The merged rows wait as bf16 in the rows that they will become: the scale of formats that have one for the
// whole weight is known when all are there. decode(layer of one row, out row).
template <typename Decode, typename T>
float MergedLayer::requantize(T* out, Decode decode) const {
  static_assert(sizeof(T) % sizeof(BF16) == 0);
  const auto k = static_cast<std::size_t>(source_.k);
  const std::int64_t stride = source_.k * std::int64_t{sizeof(T) / sizeof(BF16)};
  auto* merged = reinterpret_cast<BF16*>(out);
  const StoredLayer stored(checkpoint_.file(), source_);
  std::atomic<std::uint16_t> largest = 0;
  for_parts([&](Part& part, std::int64_t begin, std::int64_t end) {
    std::uint16_t most = 0;
    for_tiles(begin, end, [&](std::int64_t first, std::int64_t count) {
      BF16* tile = merged + first * stride;
      for (std::int64_t i = 0; i < count; ++i)
        dequantized_row(stored, first + i, {tile + i * stride, k}, part.row);
      add_lora(lora_, first,
               {.weights = tile,
                .dtype = DType::kBF16,
                .rows = count,
                .k = source_.k,
                .stride = stride,
                .bf16_steps = true,
                .panel = part.panel,
                .cells = part.cells},
               part.up);
      for (std::int64_t i = 0; i < count; ++i) {
        const BF16 largest_of_row = largest_bf16({tile + i * stride, k});
        require_finite(first + i, to_float(largest_of_row));
        most = std::max(most, largest_of_row.bits);
      }
    });
    std::uint16_t seen = largest.load();
    while (seen < most && !largest.compare_exchange_weak(seen, most)) {
    }
  });
  const float peak = to_float(BF16{largest.load()});
  float scale = 1;
  for_parts([&](Part& part, std::int64_t begin, std::int64_t end) {
    Requantizer requantizer(*this, part, peak);
    if (begin == 0 && LayerEncoder::needs_largest(source_.format)) scale = requantizer.tensor_scale();
    for (std::int64_t row = begin; row < end; ++row) {
      std::copy_n(merged + row * stride, k, part.bf16_row.begin());
      decode(requantizer.encode(row, part.bf16_row), part, out + row * source_.k);
    }
  });
  return scale;
}

float MergedLayer::values(BF16* out) const {
  return requantize(out, [this](const StoredLayer& stored, Part&, BF16* row) {
    format_row(source_.format).rows.values(stored, 0, row);
  });
}

template <typename T>
void MergedLayer::dequantize(T* out) const {
  constexpr DType kType = std::is_same_v<T, BF16> ? DType::kBF16 : DType::kF32;
  requantize(out, [this](const StoredLayer& stored, Part& part, T* row) {
    format_row(source_.format).rows.dequantize(stored, 0, kType, part.row.data());
    std::transform(part.row.begin(), part.row.end(), row, from_float<T>);
  });
}
template void MergedLayer::dequantize(float*) const;
template void MergedLayer::dequantize(BF16*) const;

namespace {

// A stored row in the type it is held in.
template <typename T>
void held_row(const LoraTensor& stored, std::int64_t row, bool bf16, std::span<T> out,
              std::span<float> scratch) {
  const auto k = std::ssize(out);
  if (std::is_same_v<T, BF16> && stored.dtype == DType::kBF16) {
    std::memcpy(out.data(), stored.data + row * k * std::int64_t{sizeof(T)}, out.size_bytes());
    return;
  }
  stored.read(row * k, scratch);
  std::transform(scratch.begin(), scratch.end(), out.begin(),
                 [=](float v) { return from_float<T>(bf16 ? round_to<BF16>(v) : v); });
}

float largest_magnitude(std::span<const BF16> row) {
  return to_float(largest_bf16(row));
}
float largest_magnitude(std::span<const float> row) {
  return h3s::largest_magnitude(row.data(), std::ssize(row));
}

}  // namespace

template <typename T>
void MergedLayer::plain(DType held, T* out) const {
  const bool bf16 = held == DType::kBF16;
  const LoraTensor stored{checkpoint_.data(*source_.weight), source_.weight->dtype};
  for_parts([&](Part& part, std::int64_t begin, std::int64_t end) {
    for_tiles(begin, end, [&](std::int64_t first, std::int64_t count) {
      T* tile = out + first * source_.k;
      const auto tile_row = [&](std::int64_t i) {
        return std::span<T>(tile + i * source_.k, static_cast<std::size_t>(source_.k));
      };
      for (std::int64_t i = 0; i < count; ++i) held_row(stored, first + i, bf16, tile_row(i), part.row);
      add_lora(lora_, first,
               {.weights = tile,
                .dtype = std::is_same_v<T, BF16> ? DType::kBF16 : DType::kF32,
                .rows = count,
                .k = source_.k,
                .stride = source_.k,
                .bf16_result = bf16,
                .panel = part.panel,
                .cells = part.cells},
               part.up);
      for (std::int64_t i = 0; i < count; ++i)
        require_finite(first + i, largest_magnitude(std::span<const T>(tile_row(i))));
    });
  });
}
template void MergedLayer::plain(DType, float*) const;
template void MergedLayer::plain(DType, BF16*) const;

}  // namespace h3s::checkpoint
