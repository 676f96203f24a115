// bf16, fp16, fp32: the weight as it is.
#include "base/error.h"
#include "checkpoint/formats.h"

namespace h3s::checkpoint {

void bind_plain(const LayerContext& context, LinearSource& source) {
  require_shape(context, "weight", *source.weight, {source.n, source.k});
  switch (source.weight->dtype) {
    case DType::kBF16:
      source.format = WeightFormat::kBF16;
      break;
    case DType::kF16:
      source.format = WeightFormat::kF16;
      break;
    case DType::kF32:
      source.format = WeightFormat::kF32;
      break;
    default:
      refuse_layer(context, "weight", Status::kBadFile, "not a plain weight");
  }
  if (source.weight->bytes() <= kCheckedBytes) require_finite(context, "weight", *source.weight);
}

}  // namespace h3s::checkpoint
