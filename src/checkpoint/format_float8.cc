// float8_e4m3fn, float8_e5m2: eight-bit floats with one scale for the whole weight.
#include "base/float8.h"
#include "checkpoint/code_table.h"
#include "checkpoint/formats.h"

namespace h3s::checkpoint {
namespace {

template <float (*kValue)(std::uint8_t)>
void values(const StoredLayer& layer, std::int64_t row, BF16* out) {
  const auto& table = value_table<kValue, 256, BF16>();
  const std::byte* codes = layer.weight + row * layer.source.k;
  for (std::int64_t i = 0; i < layer.source.k; ++i) out[i] = table[std::to_integer<std::size_t>(codes[i])];
}

// The GPU's form: the scale is not rounded.
template <float (*kValue)(std::uint8_t)>
void dequantize(const StoredLayer& layer, std::int64_t row, DType, float* out) {
  const auto& table = value_table<kValue, 256>();
  const std::byte* codes = layer.weight + row * layer.source.k;
  for (std::int64_t i = 0; i < layer.source.k; ++i)
    out[i] = table[std::to_integer<std::size_t>(codes[i])] * layer.source.tensor_scale;
}

}  // namespace

constexpr RowCodec kE4M3Rows{nullptr, values<e4m3_value>, dequantize<e4m3_value>};
constexpr RowCodec kE5M2Rows{nullptr, values<e5m2_value>, dequantize<e5m2_value>};

void bind_float8(const LayerContext& context, LinearSource& source) {
  const bool e4m3 = context.tag->format == "float8_e4m3fn";
  require_dtype(context, "weight", *source.weight, e4m3 ? DType::kF8E4M3 : DType::kF8E5M2);
  require_shape(context, "weight", *source.weight, {source.n, source.k});
  refuse_island(context);
  source.format = e4m3 ? WeightFormat::kFloat8E4M3 : WeightFormat::kFloat8E5M2;
  source.tensor_scale = scalar_scale(context, "weight_scale");
  source.input_scale = input_scale_or(context, 1.0f);
  source.pre_scale = checked_pre_scale(context, source.k);
  if (!context.tag->full_precision_matmul) source.activation = e4m3 ? Activation::kE4M3 : Activation::kE5M2;
}

}  // namespace h3s::checkpoint
