// A checkpoint as a table of tensors: shapes, formats and sizes, no values.
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"

namespace h3s::checkpoint {
namespace {

LinearSource source_of(const io::SafetensorsReader& file, const Part& part, WeightFormat format) {
  LinearSource source{.key = part.key(),
                      .n = part.shape[0],
                      .k = part.shape[1],
                      .weight = &file.at(part.key()),
                      .bias = part.bias ? &file.at(part.name + ".bias") : nullptr};
  if (stored_quantised(part.kind, format)) {
    source.format = format;
    source.scale = &file.at(part.name + ".weight_scale");
    source.rotate_group = synthetic_rotate_group(source.k);
    source.activation = Activation::kInt8;
  } else {
    source.format = source.weight->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBF16;
  }
  return source;
}

}  // namespace

Checkpoint Checkpoint::without_data(const spec::ModelSpec& spec, WeightFormat format) {
  Checkpoint checkpoint(io::SafetensorsReader::without_data(
      fmt::format("a {} checkpoint", weight_format_name(format)), checkpoint_tensors(spec, format)));
  checkpoint.spec_ = spec;
  checkpoint.quantised_ = format != WeightFormat::kBF16;
  for (const Part& part : model_parts(spec))
    if (is_linear(part.kind))
      checkpoint.linears_.emplace(part.name, source_of(checkpoint.file_, part, format));
  return checkpoint;
}

}  // namespace h3s::checkpoint
