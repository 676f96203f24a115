#include "checkpoint/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/finite.h"
#include "base/parallel.h"
#include "checkpoint/draw.h"
#include "checkpoint/encode.h"
#include "checkpoint/formats.h"
#include "checkpoint/quantize_w4a8.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kLeastRows = 16;  // less is not worth a thread

float rounded(float v, bool to_bf16) {
  return to_bf16 ? round_to<BF16>(v) : v;
}

// Rows and columns of a tile of B . A whose sums stay in a first-level cache while rows of A pass, each
// widened once for all rows of the tile.
constexpr std::int64_t kTileRows = 8, kTileColumns = 768;

// Rows [first, first + count) of B . A, operands rounded to bf16 where asked for; sums in float, j ascending.
class Difference {
 public:
  Difference(const LoraPair& pair, std::int64_t first, std::int64_t count, bool bf16, std::int64_t k)
      : pair_(pair),
        k_(k),
        sums_(static_cast<std::size_t>(count * k)),
        factors_(static_cast<std::size_t>(count)) {
    for (std::int64_t i = 0; i < count; ++i)
      if (const std::int64_t up = pair.up_row(first + i); up >= 0) {
        std::vector<float>& factors = factors_[static_cast<std::size_t>(i)];
        factors.resize(static_cast<std::size_t>(pair.rank));
        pair.up.read(up * pair.rank, factors);
        for (float& v : factors) v = rounded(v, bf16);
      }
    for (std::int64_t c = 0; c < k; c += kTileColumns) sum_columns(c, std::min(kTileColumns, k - c), bf16);
  }

  // Row first + i; empty: the pair does not change it.
  std::span<const float> row(std::int64_t i) const {
    if (factors_[static_cast<std::size_t>(i)].empty()) return {};
    return std::span(sums_).subspan(static_cast<std::size_t>(i * k_), static_cast<std::size_t>(k_));
  }

 private:
  void sum_columns(std::int64_t column, std::int64_t count, bool bf16) {
    std::array<float, kTileColumns> a;
    const std::span<float> used(a.data(), static_cast<std::size_t>(count));
    for (std::int64_t j = 0; j < pair_.rank; ++j) {
      pair_.down.read(j * k_ + column, used);
      if (bf16 && pair_.down.dtype != DType::kBF16)
        for (float& v : used) v = round_to<BF16>(v);
      for (std::size_t i = 0; i < factors_.size(); ++i) {
        if (factors_[i].empty()) continue;
        const float factor = factors_[i][static_cast<std::size_t>(j)];
        float* sums = sums_.data() + static_cast<std::int64_t>(i) * k_ + column;
        for (std::int64_t c = 0; c < count; ++c) sums[c] += factor * a[static_cast<std::size_t>(c)];
      }
    }
  }

  const LoraPair& pair_;
  std::int64_t k_;
  std::vector<float> sums_;
  std::vector<std::vector<float>> factors_;  // of each row [rank]; empty: not changed
};

// fn(first, count) for tiles of rows of [begin, end).
template <typename Fn>
void for_tiles(std::int64_t begin, std::int64_t end, Fn fn) {
  for (std::int64_t i = begin; i < end; i += kTileRows) fn(i, std::min(kTileRows, end - i));
}

}  // namespace

MergedLayer::MergedLayer(const Checkpoint& checkpoint, const std::string& layer, int threads)
    : checkpoint_(checkpoint),
      source_(checkpoint.linear(layer)),
      lora_(*checkpoint.lora(layer)),
      seed_(draw_seed("diffusion_model." + layer + ".weight")) {
  if (!LayerEncoder::needs_largest(source_.format)) return;
  largest_ = find_largest(threads);
  const LayerEncoder encoder(source_.format, 1, source_.k, source_.rotate_group, largest_);
  tensor_scale_ = encoder.tensor_scale();
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

// fn(row, merged row) for rows [begin, end).
template <typename Fn>
void MergedLayer::for_merged_rows(std::int64_t begin, std::int64_t end, Fn fn) const {
  const auto k = static_cast<std::size_t>(source_.k);
  const StoredLayer stored(checkpoint_.file(), source_);
  std::vector<float> weight(k);
  std::vector<BF16> merged(k);
  for_tiles(begin, end, [&](std::int64_t first, std::int64_t count) {
    std::vector<Difference> differences;
    for (const LoraPair& pair : lora_.pairs)
      differences.emplace_back(pair, first, count, /*bf16=*/true, source_.k);
    for (std::int64_t i = 0; i < count; ++i) {
      format_row(source_.format).rows.dequantize(stored, first + i, DType::kBF16, weight.data());
      for (float& v : weight) v = round_to<BF16>(v);
      for (std::size_t p = 0; p < differences.size(); ++p) {
        const std::span<const float> difference = differences[p].row(i);
        for (std::size_t c = 0; c < difference.size(); ++c)
          weight[c] = round_to<BF16>(weight[c] +
                                     round_to<BF16>(lora_.pairs[p].scale * round_to<BF16>(difference[c])));
      }
      std::transform(weight.begin(), weight.end(), merged.begin(), to_bf16);
      check_merged(first + i, merged);
      fn(first + i, std::span<const BF16>(merged));
    }
  });
}

// There are no codes for anything else.
void MergedLayer::check_merged(std::int64_t row, std::span<const BF16> merged) const {
  if (find_non_finite(reinterpret_cast<const std::byte*>(merged.data()), DType::kBF16, std::ssize(merged)) >=
      0)
    fail(Status::kBadFile,
         "{}: {}: row {} holds a value that is no finite number once LoRAs are merged into it",
         checkpoint_.file().path(), io::printable(source_.key), row);
}

float MergedLayer::find_largest(int threads) const {
  std::mutex mutex;
  float largest = 0;
  in_slices(source_.n, kLeastRows, threads, [&](std::int64_t begin, std::int64_t end) {
    float mine = 0;
    for_merged_rows(begin, end, [&](std::int64_t, std::span<const BF16> row) {
      for (const BF16 v : row) mine = std::max(mine, std::fabs(to_float(v)));
    });
    const std::lock_guard lock(mutex);
    largest = std::max(largest, mine);
  });
  return largest;
}

// decode(layer of one row): the merged row as a file would store it.
template <typename Decode>
void MergedLayer::decode(std::int64_t row, std::span<const BF16> merged, Decode decode) const {
  const StoredLayer original(checkpoint_.file(), source_);
  LayerEncoder encoder(source_.format, 1, source_.k, source_.rotate_group, largest_);
  encoder.draw_codes(seed_, row);
  if (source_.format == WeightFormat::kAsymW4A8) {
    std::array<float, 16> levels;
    for (std::size_t i = 0; i < levels.size(); ++i)
      levels[i] = StoredLayer::scale_at(*source_.codebook, original.codebook, static_cast<std::int64_t>(i));
    encoder.use_levels(levels);
  }
  std::vector<std::byte> packed(static_cast<std::size_t>(encoder.row_bytes()));
  std::vector<float> scratch(merged.size());
  encoder.encode_row(0, merged, packed.data(), scratch);

  LinearSource source = source_;
  source.tensor_scale = tensor_scale_;
  io::TensorInfo relative{.name = "", .dtype = DType::kF8E4M3, .shape = {}, .begin = 0, .end = 0};
  StoredLayer stored(checkpoint_.file(), source);
  stored.weight = packed.data();
  const auto& companions = encoder.companions();
  if (source.format == WeightFormat::kAsymW4A8) {
    source.group_scale = &relative;
    stored.group_scale = companions[0].bytes.data();
    stored.scale = companions[1].bytes.data();
  } else if (source.scale != nullptr) {
    stored.scale = companions[0].bytes.data();
  }
  decode(stored);
}

void MergedLayer::codes(std::int64_t begin, std::int64_t end, std::int8_t* out, float* row_scales) const {
  for_merged_rows(begin, end, [&](std::int64_t row, std::span<const BF16> merged) {
    decode(row, merged, [&](const StoredLayer& stored) {
      format_row(source_.format).rows.codes(stored, 0, out + (row - begin) * source_.k);
      row_scales[row - begin] = stored.row_scale(0);
    });
  });
}

void MergedLayer::values(std::int64_t begin, std::int64_t end, BF16* out) const {
  for_merged_rows(begin, end, [&](std::int64_t row, std::span<const BF16> merged) {
    decode(row, merged, [&](const StoredLayer& stored) {
      format_row(source_.format).rows.values(stored, 0, out + (row - begin) * source_.k);
    });
  });
}

template <typename T>
void MergedLayer::dequantize(std::int64_t begin, std::int64_t end, T* out) const {
  constexpr DType kType = std::is_same_v<T, BF16> ? DType::kBF16 : DType::kF32;
  std::vector<float> exact(static_cast<std::size_t>(source_.k));
  for_merged_rows(begin, end, [&](std::int64_t row, std::span<const BF16> merged) {
    decode(row, merged, [&](const StoredLayer& stored) {
      format_row(source_.format).rows.dequantize(stored, 0, kType, exact.data());
      std::transform(exact.begin(), exact.end(), out + (row - begin) * source_.k, from_float<T>);
    });
  });
}
template void MergedLayer::dequantize(std::int64_t, std::int64_t, float*) const;
template void MergedLayer::dequantize(std::int64_t, std::int64_t, BF16*) const;

template <typename T>
void merged_plain_rows(const Checkpoint& checkpoint, const LinearSource& source, const LoraLayer& lora,
                       DType held, std::int64_t begin, std::int64_t end, T* out) {
  const bool bf16 = held == DType::kBF16;
  const LoraTensor stored{checkpoint.data(*source.weight), source.weight->dtype};
  std::vector<float> weight(static_cast<std::size_t>(source.k));
  for_tiles(begin, end, [&](std::int64_t first, std::int64_t count) {
    std::vector<Difference> differences;
    for (const LoraPair& pair : lora.pairs)
      differences.emplace_back(pair, first, count, /*bf16=*/false, source.k);
    for (std::int64_t i = 0; i < count; ++i) {
      stored.read((first + i) * source.k, weight);
      for (float& v : weight) v = rounded(v, bf16);
      for (std::size_t p = 0; p < differences.size(); ++p) {
        const std::span<const float> difference = differences[p].row(i);
        for (std::size_t c = 0; c < difference.size(); ++c) weight[c] += lora.pairs[p].scale * difference[c];
      }
      std::transform(weight.begin(), weight.end(), out + (first + i - begin) * source.k,
                     [=](float v) { return from_float<T>(rounded(v, bf16)); });
    }
  });
}
template void merged_plain_rows(const Checkpoint&, const LinearSource&, const LoraLayer&, DType, std::int64_t,
                                std::int64_t, float*);
template void merged_plain_rows(const Checkpoint&, const LinearSource&, const LoraLayer&, DType, std::int64_t,
                                std::int64_t, BF16*);

}  // namespace h3s::checkpoint
