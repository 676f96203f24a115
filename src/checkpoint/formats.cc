#include "checkpoint/formats.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

constexpr RowCodec kNoRows{nullptr, nullptr, nullptr};

const std::array<FormatRow, 11>& table() {
  static const std::array<FormatRow, 11> rows{{
      {"bf16", "BF16 [N,K]", "", "", bind_plain, false, kNoRows, false},
      {"fp16", "F16 [N,K]", "", "rounded to bf16 in bf16 compute", bind_plain, false, kNoRows, false},
      {"fp32", "F32 [N,K]", "", "rounded to bf16 in bf16 compute, the fp32 islands apart", bind_plain, false,
       kNoRows, false},
      {"int8_tensorwise", "I8 [N,K]", "weight_scale F32, 1 or N values", "with or without ConvRot rotation",
       bind_int8_tensorwise, true, kInt8Rows, false},
      {"float8_e4m3fn", "F8_E4M3 [N,K]", "weight_scale, optional input_scale", "one scale", bind_float8, true,
       kE4M3Rows, false},
      {"float8_e5m2", "F8_E5M2 [N,K]", "weight_scale, optional input_scale", "one scale", bind_float8, true,
       kE5M2Rows, false},
      {"mxfp8", "F8_E4M3 [N,K]", "weight_scale", "blocks of 32", bind_mxfp8, true, kMxfp8Rows, false},
      {"nvfp4", "U8 [N,K/2]", "weight_scale, weight_scale_2, optional input_scale, pre_quant_scale",
       "4 bit, blocks of 16", bind_nvfp4, true, kNvfp4Rows, true},
      {"asym_w4a8_int8", "I8 [N,K/2]", "weight_s_rel, weight_s_channel, optional weight_codebook",
       "4 bit, ConvRot", bind_w4a8, true, kW4A8Rows, true},
      {"convrot_w4a4", "I8 [N,K/2]", "weight_scale F32, 1 or N values", "4 bit, ConvRot", bind_w4a4, true,
       kW4A4Rows, true},
      {"awq_w4a16", "I8 [N,K/2]", "weight_scale, weight_zeros", "4 bit", nullptr, true, kNoRows, true},
  }};
  return rows;
}

const FormatRow& tagged_format(const LayerContext& context) {
  const FormatRow* row = find_format(context.tag->format);
  const auto refuse = [&](Status status, const char* reason) {
    fail(status, "{}: {}: {} \"{}\"{}", context.file->path(), io::printable(context.layer), reason,
         io::printable(context.tag->format),
         io::printable(context.tag->key == context.layer + kTagSuffix ? "" : " (" + context.tag->key + ")"));
  };
  if (row == nullptr || !row->tagged) refuse(Status::kBadFile, "unknown weight format");
  if (row->bind == nullptr) refuse(Status::kUnsupported, "this build cannot run weight format");
  return *row;
}

const FormatRow& untagged_format(const LayerContext& context, const io::TensorInfo& weight) {
  switch (weight.dtype) {
    case DType::kBF16:
      return format_row(WeightFormat::kBF16);
    case DType::kF16:
      return format_row(WeightFormat::kF16);
    case DType::kF32:
      return format_row(WeightFormat::kF32);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      refuse_layer(context, "weight", Status::kUnsupported,
                   "this build cannot run an fp8 weight without a tag");
    case DType::kI8:
      refuse_layer(context, "weight", Status::kBadFile,
                   fmt::format("I8 weight without the tag {}{}", io::printable(context.layer), kTagSuffix));
    default:
      refuse_layer(
          context, "weight", Status::kBadFile,
          fmt::format("dtype must be BF16, F16, F32 or a tagged format, got {}", dtype_name(weight.dtype)));
  }
}

}  // namespace

std::span<const FormatRow> formats() {
  return table();
}

const FormatRow* find_format(std::string_view name) {
  for (const FormatRow& row : table())
    if (name == row.name) return &row;
  return nullptr;
}

const FormatRow& format_row(WeightFormat format) {
  return table()[static_cast<std::size_t>(format)];
}

const char* weight_format_name(WeightFormat format) {
  return format_row(format).name;
}

const FormatRow& format_of(const LayerContext& context, const io::TensorInfo& weight) {
  return context.tag != nullptr ? tagged_format(context) : untagged_format(context, weight);
}

std::string LayerContext::key(std::string_view suffix) const {
  if (tag != nullptr && tag->legacy) {
    if (suffix == "weight_scale") suffix = "scale_weight";
    if (suffix == "input_scale") suffix = "scale_input";
  }
  return fmt::format("{}.{}", layer, suffix);
}

const io::TensorInfo* LayerContext::find(std::string_view suffix) const {
  return file->find(key(suffix));
}

const io::TensorInfo& LayerContext::companion(std::string_view suffix) const {
  return file->at(key(suffix));
}

StoredLayer::StoredLayer(const io::SafetensorsReader& file, const LinearSource& layer) : source(layer) {
  const auto data = [&](const io::TensorInfo* info) { return info == nullptr ? nullptr : file.data(*info); };
  weight = data(layer.weight);
  scale = data(layer.scale);
  group_scale = data(layer.group_scale);
  codebook = data(layer.codebook);
}

float StoredLayer::scale_at(const io::TensorInfo& info, const std::byte* data, std::int64_t idx) {
  float value;
  std::memcpy(&value, data + (info.elements() == 1 ? 0 : idx) * static_cast<std::int64_t>(sizeof value),
              sizeof value);
  return value;
}

}  // namespace h3s::checkpoint
