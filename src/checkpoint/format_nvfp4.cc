// nvfp4: e2m1 numbers, the even column in the high half of a byte; an e4m3 scale for every 16 columns and one
// scale for the whole weight; rows and columns padded to 16.
#include "base/float8.h"
#include "checkpoint/code_table.h"
#include "checkpoint/formats.h"
#include "checkpoint/swizzle.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kPadding = 16;

// out[i] = code * factor(block scale)
template <typename T, typename Factor, typename Convert>
void decode(const StoredLayer& layer, std::int64_t row, T* out, Factor factor, Convert convert) {
  const std::int64_t k = layer.source.k, columns = layer.source.scale->shape[1];
  const std::byte* packed = layer.weight + row * round_up(k, kPadding) / 2;
  const auto& numbers = value_table<e2m1_value, 16>();
  const auto& scales = value_table<e4m3_value, 256>();
  for (std::int64_t i = 0; i < k; i += kBlock) {
    const float scale =
        factor(scales[std::to_integer<std::size_t>(layer.scale[swizzled_offset(row, i / kBlock, columns)])]);
    std::array<T, 16> scaled;  // what each code is in this block
    for (std::size_t code = 0; code < scaled.size(); ++code) scaled[code] = convert(numbers[code] * scale);
    for (std::int64_t j = i; j < std::min(k, i + kBlock); ++j) {
      const auto byte = std::to_integer<std::size_t>(packed[j / 2]);
      out[j] = scaled[j % 2 == 0 ? byte >> 4 : byte & 0xF];
    }
  }
}

void values(const StoredLayer& layer, std::int64_t row, BF16* out) {
  decode(
      layer, row, out, [](float s) { return s; }, to_bf16);
}

// The fp32 kernels' form: scales are multiplied first, nothing is rounded to bf16 before the end.
void dequantize(const StoredLayer& layer, std::int64_t row, DType, float* out) {
  decode(
      layer, row, out, [&](float s) { return layer.source.tensor_scale * s; }, [](float v) { return v; });
}

}  // namespace

constexpr RowCodec kNvfp4Rows{nullptr, values, dequantize};

void bind_nvfp4(const LayerContext& context, LinearSource& source) {
  constexpr const char* kScale = "weight_scale";
  require_dtype(context, "weight", *source.weight, DType::kU8);
  require_shape(context, "weight", *source.weight,
                {round_up(source.n, kPadding), round_up(source.k, kPadding) / 2});
  refuse_island(context);
  const io::TensorInfo& scale = context.companion(kScale);
  if (scale.dtype != DType::kU8) require_dtype(context, kScale, scale, DType::kF8E4M3);
  source.format = WeightFormat::kNvfp4;
  source.scale = &checked_block_scales(context, source.n, round_up(source.k, kPadding) / kBlock, kE4M3Scales);
  source.tensor_scale = scalar_scale(context, "weight_scale_2");
  source.input_scale = input_scale_or(context, 0.0f);
  source.pre_scale = checked_pre_scale(context, source.k);
  if (!context.tag->full_precision_matmul) source.activation = Activation::kNvfp4;
}

}  // namespace h3s::checkpoint
