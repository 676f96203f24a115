#include "checkpoint/formats.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

constexpr std::array<FormatRow, 11> kFormats{{
    {"bf16", "BF16 [N,K]", "", "", bind_plain, false},
    {"fp16", "F16 [N,K]", "", "rounded to bf16 in bf16 compute", bind_plain, false},
    {"fp32", "F32 [N,K]", "", "rounded to bf16 in bf16 compute, the fp32 islands apart", bind_plain, false},
    {"int8_tensorwise", "I8 [N,K]", "weight_scale F32, 1 or N values", "with or without ConvRot rotation",
     bind_int8_tensorwise, true},
    {"asym_w4a8_int8", "I8 [N,K/2]", "weight_s_rel, weight_s_channel, optional weight_codebook", "4 bit",
     nullptr, true},
    {"convrot_w4a4", "I8 [N,K/2]", "weight_scale", "4 bit", nullptr, true},
    {"nvfp4", "U8 [N,K/2]", "weight_scale, weight_scale_2", "4 bit, block scales", nullptr, true},
    {"float8_e4m3fn", "F8_E4M3 [N,K]", "weight_scale, optional input_scale", "", nullptr, true},
    {"float8_e5m2", "F8_E5M2 [N,K]", "weight_scale, optional input_scale", "", nullptr, true},
    {"mxfp8", "F8_E4M3 [N,K]", "weight_scale", "block scales", nullptr, true},
    {"awq_w4a16", "I8 [N,K/2]", "weight_scale, weight_zeros", "4 bit", nullptr, true},
}};

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
      return *find_format("bf16");
    case DType::kF16:
      return *find_format("fp16");
    case DType::kF32:
      return *find_format("fp32");
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
  return kFormats;
}

const FormatRow* find_format(std::string_view name) {
  for (const FormatRow& row : kFormats)
    if (name == row.name) return &row;
  return nullptr;
}

const FormatRow& format_of(const LayerContext& context, const io::TensorInfo& weight) {
  return context.tag != nullptr ? tagged_format(context) : untagged_format(context, weight);
}

const io::TensorInfo& LayerContext::companion(std::string_view suffix) const {
  return file->at(fmt::format("{}.{}", layer, suffix));
}

void refuse_layer(const LayerContext& context, std::string_view suffix, Status status,
                  const std::string& reason) {
  fail(status, "{}: {}.{}: {}", context.file->path(), io::printable(context.layer), suffix, reason);
}

std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& scale) {
  const std::byte* bytes = file.data(scale);
  for (std::int64_t i = 0; i < scale.elements(); ++i) {
    float value = 0;
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof value,
                sizeof value);  // may be unaligned
    if (!std::isfinite(value) || value <= 0)
      return fmt::format("scale {} is {}, expected a finite number above 0", i, value);
  }
  return "";
}

}  // namespace h3s::checkpoint
