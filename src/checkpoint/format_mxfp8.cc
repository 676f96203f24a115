// mxfp8: e4m3 numbers with a power of two for every 32 columns; rows and columns padded to 32.
#include "base/float8.h"
#include "checkpoint/code_table.h"
#include "checkpoint/formats.h"
#include "checkpoint/swizzle.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kPadding = 32;

template <typename T, typename Convert>
void decode(const StoredLayer& layer, std::int64_t row, T* out, Convert convert) {
  const std::int64_t k = layer.source.k, columns = layer.source.scale->shape[1];
  const std::byte* codes = layer.weight + row * round_up(k, kPadding);
  const auto& numbers = value_table<e4m3_value, 256>();
  for (std::int64_t i = 0; i < k; i += kBlock) {
    const float scale =
        e8m0_value(std::to_integer<std::uint8_t>(layer.scale[swizzled_offset(row, i / kBlock, columns)]));
    for (std::int64_t j = i; j < std::min(k, i + kBlock); ++j)
      out[j] = convert(numbers[std::to_integer<std::size_t>(codes[j])] * scale);
  }
}

void dequantize(const StoredLayer& layer, std::int64_t row, DType, float* out) {
  decode(layer, row, out, [](float v) { return v; });
}

void values(const StoredLayer& layer, std::int64_t row, BF16* out) {
  decode(layer, row, out, to_bf16);
}

}  // namespace

constexpr RowCodec kMxfp8Rows{nullptr, values, dequantize};

void bind_mxfp8(const LayerContext& context, LinearSource& source) {
  constexpr const char* kScale = "weight_scale";
  require_dtype(context, "weight", *source.weight, DType::kF8E4M3);
  require_shape(context, "weight", *source.weight,
                {round_up(source.n, kPadding), round_up(source.k, kPadding)});
  refuse_island(context);
  const io::TensorInfo& scale = context.companion(kScale);
  if (scale.dtype != DType::kU8) require_dtype(context, kScale, scale, DType::kF8E8M0);
  source.format = WeightFormat::kMxfp8;
  source.scale = &checked_block_scales(context, source.n, round_up(source.k, kPadding) / kBlock, kE8M0Scales);
  source.pre_scale = checked_pre_scale(context, source.k);
  if (!context.tag->full_precision_matmul) source.activation = Activation::kMxfp8;
}

}  // namespace h3s::checkpoint
