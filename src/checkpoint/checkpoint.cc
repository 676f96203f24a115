#include "checkpoint/checkpoint.h"

#include <array>

#include "base/error.h"
#include "checkpoint/detect.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "checkpoint/tags.h"
#include "checkpoint/value_checks.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using Tags = std::map<std::string, QuantTag>;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

void check_shape(const io::SafetensorsReader& file, const io::TensorInfo& info,
                 const std::vector<std::int64_t>& expected) {
  if (info.shape != expected)
    fail(Status::kBadFile, "{}: {}: shape must be {}, got {}", file.path(), io::printable(info.name),
         shape_text(expected), shape_text(info.shape));
}

void check_finite(const io::SafetensorsReader& file, const io::TensorInfo& info) {
  if (const std::string problem = value_problem(file, info); !problem.empty())
    fail(Status::kBadFile, "{}: {}: {}", file.path(), io::printable(info.name), problem);
}

// The buffers stay fp32 in stock whatever the file's format, so nothing else is accepted.
void check_table(const io::SafetensorsReader& file, const io::TensorInfo& info) {
  if (info.dtype != DType::kF32)
    fail(Status::kBadFile, "{}: {}: dtype must be F32, got {}", file.path(), io::printable(info.name),
         dtype_name(info.dtype));
}

void check_float(const io::SafetensorsReader& file, const io::TensorInfo& info) {
  if (info.dtype != DType::kBF16 && info.dtype != DType::kF16 && info.dtype != DType::kF32)
    fail(Status::kBadFile, "{}: {}: dtype must be BF16, F16 or F32, got {}", file.path(),
         io::printable(info.name), dtype_name(info.dtype));
}

void check_plain_part(const io::SafetensorsReader& file, const std::string& prefix, const Part& part) {
  const io::TensorInfo& info = file.at(prefix + part.key());
  check_shape(file, info, part.shape);
  if (part.kind == PartKind::kTable)
    check_table(file, info);
  else
    check_float(file, info);
  check_finite(file, info);
}

const io::TensorInfo* checked_bias(const LayerContext& context) {
  if (!context.part->bias) return nullptr;
  const io::TensorInfo& bias = context.companion("bias");
  check_shape(*context.file, bias, {context.part->shape[0]});
  check_float(*context.file, bias);
  check_finite(*context.file, bias);
  return &bias;
}

LinearSource bind_linear(const io::SafetensorsReader& file, const std::string& prefix, const Part& part,
                         const Tags& tags) {
  LayerContext context{.file = &file, .part = &part, .layer = prefix + part.name};
  if (const auto tag = tags.find(context.layer); tag != tags.end()) context.tag = &tag->second;
  const io::TensorInfo& weight = context.companion("weight");
  const FormatRow& format = format_of(context, weight);
  LinearSource source{.key = weight.name,
                      .n = part.shape[0],
                      .k = part.shape[1],
                      .weight = &weight,
                      .bias = checked_bias(context)};
  format.bind(context, source);
  return source;
}

// Every linear layer of the network; its other tensors are checked.
std::map<std::string, LinearSource> bind_parts(const io::SafetensorsReader& file, const std::string& prefix,
                                               const spec::ModelSpec& spec, const Tags& tags) {
  std::map<std::string, LinearSource> linears;
  for (const Part& part : model_parts(spec)) {
    if (is_linear(part.kind))
      linears.emplace(part.name, bind_linear(file, prefix, part, tags));
    else
      check_plain_part(file, prefix, part);
  }
  return linears;
}

// Before any geometry: the format is what the user has to hear about.
void refuse_unusable_tags(const io::SafetensorsReader& file, const Tags& tags) {
  for (const auto& [layer, tag] : tags) {
    const LayerContext context{.file = &file, .layer = layer, .tag = &tag};
    format_of(context, context.companion("weight"));
  }
}

// Weights of other tools lie under other keys; the key says whose.
struct ForeignWeight {
  const char* suffix;
  const char* reason;
};
constexpr std::array<ForeignWeight, 3> kForeignWeights{{
    {".qweight", "a packed weight as SVDQuant, GPTQ and AutoAWQ write it"},
    {".weight_packed", "a packed weight as compressed-tensors writes it"},
    {".weight.absmax", "a scale as bitsandbytes writes it"},
}};

void refuse_foreign_weights(const io::SafetensorsReader& file, const std::string& prefix) {
  for (const io::TensorInfo& info : file.tensors())
    for (const ForeignWeight& foreign : kForeignWeights)
      if (info.name.starts_with(prefix) && info.name.ends_with(foreign.suffix))
        fail(Status::kUnsupported, "{}: {}: {}, which this build cannot run", file.path(),
             io::printable(info.name), foreign.reason);
}

// A scale beside a weight that is taken as it is means the tag was lost: the weight would be wrong by that
// scale.
void refuse_stray_scales(const io::SafetensorsReader& file,
                         const std::map<std::string, LinearSource>& linears, const std::string& prefix) {
  constexpr std::array<const char*, 4> kScales{"weight_scale", "weight_scale_2", "scale_weight",
                                               "weight_s_channel"};
  for (const auto& [layer, source] : linears) {
    if (!source.plain()) continue;
    for (const char* suffix : kScales)
      if (const io::TensorInfo* scale = file.find(fmt::format("{}{}.{}", prefix, layer, suffix)))
        fail(Status::kBadFile, "{}: {}: a scale, but the layer has no {} tag", file.path(),
             io::printable(scale->name), kTagSuffix);
  }
}

void refuse_stray_tags(const io::SafetensorsReader& file, const std::map<std::string, LinearSource>& linears,
                       const std::string& prefix, const Tags& tags) {
  for (const auto& [layer, tag] : tags)
    if (linears.count(layer.substr(std::min(prefix.size(), layer.size()))) == 0)
      fail(Status::kBadFile, "{}: {}: tags a layer that the network does not have", file.path(),
           io::printable(tag.key));
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path, const io::ReadOptions& options) {
  Checkpoint checkpoint(io::SafetensorsReader::open(path, options));
  const io::SafetensorsReader& file = checkpoint.file_;
  const std::string& prefix = checkpoint.prefix_ = detect_prefix(file);
  const Tags tags = read_tags(file, prefix);
  refuse_unusable_tags(file, tags);
  refuse_foreign_weights(file, prefix);
  checkpoint.quantised_ = !tags.empty();
  checkpoint.spec_ = detect_spec(file, prefix, tags);
  checkpoint.linears_ = bind_parts(file, prefix, checkpoint.spec_, tags);
  refuse_stray_scales(file, checkpoint.linears_, prefix);
  refuse_stray_tags(file, checkpoint.linears_, prefix, tags);
  return checkpoint;
}

Checkpoint Checkpoint::without_data(const spec::ModelSpec& spec, WeightFormat format) {
  Checkpoint checkpoint(io::SafetensorsReader::without_data(
      fmt::format("a {} checkpoint", weight_format_name(format)), checkpoint_tensors(spec, format)));
  const Tags tags = checkpoint_tags(spec, format);
  checkpoint.quantised_ = !tags.empty();
  checkpoint.spec_ = spec;
  checkpoint.linears_ = bind_parts(checkpoint.file_, checkpoint.prefix_, spec, tags);
  return checkpoint;
}

Checkpoint Checkpoint::with_loras(std::span<const LoraRequest> requests, LoraMode mode) const {
  Checkpoint checkpoint = *this;
  checkpoint.loras_ = LoraSet::open(*this, requests, mode);
  return checkpoint;
}

LinearSource Checkpoint::linear(const std::string& layer) const {
  const auto found = linears_.find(layer);
  if (found == linears_.end()) fail(Status::kInvalidArgument, "{}: {}: no such layer", file_.path(), layer);
  return found->second;
}

const io::TensorInfo& Checkpoint::tensor(const std::string& key) const {
  return file_.at(prefix_ + key);
}

}  // namespace h3s::checkpoint
