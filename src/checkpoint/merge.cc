#include "checkpoint/merge.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "checkpoint/draw.h"
#include "checkpoint/encode.h"
#include "checkpoint/formats.h"
#include "checkpoint/quantize_w4a8.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kLeastRows = 16;  // less is not worth a thread

float rounded(float v, bool to_bf16) {
  return to_bf16 ? round_to<BF16>(v) : v;
}

// out = sum over j of B[row][j] A[j], operands rounded to bf16 where asked for. False: the pair leaves the
// row.
bool difference_row(const LoraPair& pair, std::int64_t row, bool bf16, std::span<float> out) {
  const std::int64_t up = pair.up_row(row);
  if (up < 0) return false;
  std::vector<float> b(static_cast<std::size_t>(pair.rank)), a(out.size());
  pair.up.read(up * pair.rank, b);
  std::fill(out.begin(), out.end(), 0.0f);
  for (std::int64_t j = 0; j < pair.rank; ++j) {
    pair.down.read(j * std::ssize(out), a);
    const float factor = rounded(b[static_cast<std::size_t>(j)], bf16);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += factor * rounded(a[i], bf16);
  }
  return true;
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

void MergedLayer::merged_row(std::int64_t row, std::span<BF16> out) const {
  std::vector<float> weight(out.size()), difference(out.size());
  format_row(source_.format)
      .rows.dequantize(StoredLayer(checkpoint_.file(), source_), row, DType::kBF16, weight.data());
  for (float& v : weight) v = round_to<BF16>(v);
  for (const LoraPair& pair : lora_.pairs) {
    if (!difference_row(pair, row, /*bf16=*/true, difference)) continue;
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] = round_to<BF16>(weight[i] + round_to<BF16>(pair.scale * round_to<BF16>(difference[i])));
  }
  std::transform(weight.begin(), weight.end(), out.begin(), to_bf16);
}

float MergedLayer::find_largest(int threads) const {
  std::mutex mutex;
  float largest = 0;
  in_slices(source_.n, kLeastRows, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<BF16> row(static_cast<std::size_t>(source_.k));
    float mine = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      merged_row(i, row);
      for (const BF16 v : row) mine = std::max(mine, std::fabs(to_float(v)));
    }
    const std::lock_guard lock(mutex);
    largest = std::max(largest, mine);
  });
  return largest;
}

// decode(layer of one row): the merged row as a file would store it.
template <typename Decode>
void MergedLayer::decode(std::int64_t row, Decode decode) const {
  std::vector<BF16> merged(static_cast<std::size_t>(source_.k));
  merged_row(row, merged);
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

void MergedLayer::codes(std::int64_t row, std::int8_t* out, float* row_scale) const {
  decode(row, [&](const StoredLayer& stored) {
    format_row(source_.format).rows.codes(stored, 0, out);
    *row_scale = stored.row_scale(0);
  });
}

void MergedLayer::values(std::int64_t row, BF16* out) const {
  decode(row, [&](const StoredLayer& stored) { format_row(source_.format).rows.values(stored, 0, out); });
}

void MergedLayer::dequantize(std::int64_t row, DType type, float* out) const {
  decode(row, [&](const StoredLayer& stored) {
    format_row(source_.format).rows.dequantize(stored, 0, type, out);
  });
}

void merged_plain_row(const Checkpoint& checkpoint, const LinearSource& source, const LoraLayer& lora,
                      std::int64_t row, DType held, std::span<float> out) {
  const bool bf16 = held == DType::kBF16;
  LoraTensor{checkpoint.data(*source.weight), source.weight->dtype}.read(row * source.k, out);
  for (float& v : out) v = rounded(v, bf16);
  std::vector<float> difference(out.size());
  for (const LoraPair& pair : lora.pairs) {
    if (!difference_row(pair, row, /*bf16=*/false, difference)) continue;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += pair.scale * difference[i];
  }
  for (float& v : out) v = rounded(v, bf16);
}

}  // namespace h3s::checkpoint
