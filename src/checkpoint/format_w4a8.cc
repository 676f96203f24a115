// asym_w4a8_int8: unsigned 4-bit codes, the even column in the low half of a byte; a relative scale for every
// group of columns and a scale for every row; always rotated. Decodes to the int8 codes of int8_tensorwise.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/float8.h"
#include "checkpoint/formats.h"
#include "checkpoint/quantize_int8.h"

namespace h3s::checkpoint {
namespace {

constexpr const char* kRelative = "weight_s_rel";
constexpr const char* kChannel = "weight_s_channel";
constexpr const char* kCodebook = "weight_codebook";
constexpr std::int64_t kLevels = 16;
using Levels = std::array<float, kLevels>;

Levels levels(const StoredLayer& layer) {
  Levels out;
  for (std::int64_t i = 0; i < kLevels; ++i)
    out[static_cast<std::size_t>(i)] = layer.codebook == nullptr
                                           ? static_cast<float>(i - kLevels / 2)
                                           : StoredLayer::scale_at(*layer.source.codebook, layer.codebook, i);
  return out;
}

float relative_scale(const StoredLayer& layer, std::int64_t idx) {
  const io::TensorInfo& info = *layer.source.group_scale;
  return info.dtype == DType::kF32 ? StoredLayer::scale_at(info, layer.group_scale, idx)
                                   : e4m3_value(std::to_integer<std::uint8_t>(layer.group_scale[idx]));
}

void codes(const StoredLayer& layer, std::int64_t row, std::int8_t* out) {
  const std::int64_t k = layer.source.k, group = layer.source.scale_group;
  const Levels level = levels(layer);
  const std::byte* packed = layer.weight + row * k / 2;
  for (std::int64_t first = 0; first < k; first += group) {
    const float scale = relative_scale(layer, row * (k / group) + first / group);
    std::array<std::int8_t, kLevels> code;
    for (std::size_t c = 0; c < level.size(); ++c)
      code[c] = static_cast<std::int8_t>(std::clamp(std::nearbyint(level[c] * scale), -127.0f, 127.0f));
    for (std::int64_t i = first; i < first + group; ++i) {
      const auto byte = std::to_integer<std::size_t>(packed[i / 2]);
      out[i] = code[i % 2 == 0 ? byte & 0xF : byte >> 4];
    }
  }
}

// Stock's bf16 dequantisation rounds the product before the rotation.
void dequantize(const StoredLayer& layer, std::int64_t row, DType type, float* out) {
  const auto k = static_cast<std::size_t>(layer.source.k);
  std::vector<std::int8_t> decoded(k);
  codes(layer, row, decoded.data());
  const float scale = layer.row_scale(row);
  for (std::size_t i = 0; i < k; ++i) {
    const float v = static_cast<float>(decoded[i]) * scale;
    out[i] = type == DType::kBF16 ? round_to<BF16>(v) : v;
  }
  rotate_row({out, k}, layer.source.rotate_group);
}

std::int64_t checked_group(const LayerContext& context, std::int64_t k) {
  const std::int64_t group = context.tag->group_size;
  if (group < 4 || (kLevels % group != 0 && group % kLevels != 0))
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("group_size must be 4, 8 or a multiple of 16, got {}", group));
  if (k % group != 0 || k % kLevels != 0)
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("group_size {} and 16 must divide the {} columns", group, k));
  return group;
}

const io::TensorInfo& checked_relative_scales(const LayerContext& context, std::int64_t n,
                                              std::int64_t groups) {
  const io::TensorInfo& scale = context.companion(kRelative);
  require_shape(context, kRelative, scale, {n, groups});
  if (scale.dtype != DType::kF32 && scale.dtype != DType::kU8)
    require_dtype(context, kRelative, scale, DType::kF8E4M3);
  refuse_problem(context, kRelative,
                 scale.dtype == DType::kF32 ? scale_problem(*context.file, scale, true)
                                            : scale_problem(*context.file, scale, kE4M3Scales));
  return scale;
}

const io::TensorInfo* checked_codebook(const LayerContext& context) {
  const io::TensorInfo* codebook = context.find(kCodebook);
  if (codebook == nullptr) return nullptr;
  require_dtype(context, kCodebook, *codebook, DType::kF32);
  require_shape(context, kCodebook, *codebook, {kLevels});
  require_finite(context, kCodebook, *codebook);
  return codebook;
}

}  // namespace

constexpr RowCodec kW4A8Rows{codes, nullptr, dequantize};

void bind_w4a8(const LayerContext& context, LinearSource& source) {
  require_dtype(context, "weight", *source.weight, DType::kI8);
  require_shape(context, "weight", *source.weight, {source.n, source.k / 2});
  refuse_island(context);
  source.format = WeightFormat::kAsymW4A8;
  source.scale_group = checked_group(context, source.k);
  source.rotate_group = checked_rotate_group(context, source.k);
  source.group_scale = &checked_relative_scales(context, source.n, source.k / source.scale_group);
  source.scale = &checked_row_scales(context, kChannel, source.n);
  source.codebook = checked_codebook(context);
  source.activation = context.tag->full_precision_matmul ? Activation::kNone : Activation::kInt8;
}

}  // namespace h3s::checkpoint
