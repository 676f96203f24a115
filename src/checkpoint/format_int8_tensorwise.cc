// int8_tensorwise: I8 codes with one F32 scale a row (or one for all), columns rotated in groups when
// `convrot` is set.
#include "checkpoint/formats.h"
#include "checkpoint/quantize_int8.h"

namespace h3s::checkpoint {
namespace {

std::span<const std::int8_t> row_codes(const StoredLayer& layer, std::int64_t row) {
  const auto k = static_cast<std::size_t>(layer.source.k);
  return {reinterpret_cast<const std::int8_t*>(layer.weight) + row * layer.source.k, k};
}

void codes(const StoredLayer& layer, std::int64_t row, std::int8_t* out) {
  const auto src = row_codes(layer, row);
  std::copy(src.begin(), src.end(), out);
}

void dequantize(const StoredLayer& layer, std::int64_t row, DType, float* out) {
  dequantize_int8_row(row_codes(layer, row), layer.row_scale(row), layer.source.rotate_group,
                      {out, static_cast<std::size_t>(layer.source.k)});
}

}  // namespace

constexpr RowCodec kInt8Rows{codes, nullptr, dequantize};

void bind_int8_tensorwise(const LayerContext& context, LinearSource& source) {
  require_dtype(context, "weight", *source.weight, DType::kI8);
  require_shape(context, "weight", *source.weight, {source.n, source.k});
  refuse_island(context);
  source.format = WeightFormat::kInt8Tensorwise;
  source.rotate_group = context.tag->convrot ? checked_rotate_group(context, source.k) : 0;
  source.scale = &checked_row_scales(context, "weight_scale", source.n);
  source.activation = context.tag->full_precision_matmul ? Activation::kNone : Activation::kInt8;
}

}  // namespace h3s::checkpoint
