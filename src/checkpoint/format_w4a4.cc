// convrot_w4a4: signed 4-bit codes, the even column in the low half of a byte, one scale a row; always
// rotated. `linear_dtype` says whether activations have four bits or eight.
#include "checkpoint/formats.h"
#include "checkpoint/quantize_int8.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kColumnGroup = 64;  // the format's quantiser works on groups of these

void codes(const StoredLayer& layer, std::int64_t row, std::int8_t* out) {
  const std::byte* packed = layer.weight + row * layer.source.k / 2;
  for (std::int64_t i = 0; i < layer.source.k; ++i) {
    const auto byte = std::to_integer<unsigned>(packed[i / 2]);
    const unsigned nibble = i % 2 == 0 ? byte & 0xFu : byte >> 4;
    out[i] = static_cast<std::int8_t>(static_cast<int>(nibble ^ 8u) - 8);  // two's complement
  }
}

void dequantize(const StoredLayer& layer, std::int64_t row, DType, float* out) {
  const auto k = static_cast<std::size_t>(layer.source.k);
  std::vector<std::int8_t> decoded(k);
  codes(layer, row, decoded.data());
  dequantize_int8_row(decoded, layer.row_scale(row), layer.source.rotate_group, {out, k});
}

Activation activation(const LayerContext& context) {
  if (context.tag->full_precision_matmul) return Activation::kNone;
  if (context.tag->linear_dtype == "int4") return Activation::kInt4;
  if (context.tag->linear_dtype == "int8") return Activation::kInt8;
  refuse_layer(context, "weight", Status::kBadFile,
               fmt::format("linear_dtype must be int4 or int8, got \"{}\"", context.tag->linear_dtype));
}

}  // namespace

constexpr RowCodec kW4A4Rows{codes, nullptr, dequantize};

void bind_w4a4(const LayerContext& context, LinearSource& source) {
  require_dtype(context, "weight", *source.weight, DType::kI8);
  require_shape(context, "weight", *source.weight, {source.n, source.k / 2});
  refuse_island(context);
  if (source.k % kColumnGroup != 0)
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("{} must divide the {} columns", kColumnGroup, source.k));
  source.format = WeightFormat::kConvrotW4A4;
  source.rotate_group = checked_rotate_group(context, source.k);
  source.scale = &checked_row_scales(context, "weight_scale", source.n);
  source.activation = activation(context);
}

}  // namespace h3s::checkpoint
