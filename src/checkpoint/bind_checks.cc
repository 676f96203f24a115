// What the bind functions of the formats check alike.
#include <bit>

#include "checkpoint/formats.h"
#include "checkpoint/swizzle.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

// Stock writes 256; the bound keeps the rotation in registers and L1.
constexpr std::int64_t kMaxRotateGroup = 1024;

bool is_power_of_4(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return value > 0 && std::has_single_bit(bits) && std::countr_zero(bits) % 2 == 0;
}

// [], [1], [1,1], [n] and [n,1] occur.
bool scale_shape_fits(const std::vector<std::int64_t>& shape, std::int64_t n) {
  if (shape.size() > 2 || (shape.size() == 2 && shape[1] != 1)) return false;
  return shape.empty() || shape[0] == 1 || shape[0] == n;
}

}  // namespace

void refuse_layer(const LayerContext& context, std::string_view suffix, Status status,
                  const std::string& reason) {
  fail(status, "{}: {}: {}", context.file->path(), io::printable(context.key(suffix)), reason);
}

void require_dtype(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info,
                   DType dtype) {
  if (info.dtype == dtype) return;
  const char* why = suffix == "weight" ? " as its tag says" : "";
  refuse_layer(context, suffix, Status::kBadFile,
               fmt::format("dtype must be {}{}, got {}", dtype_name(dtype), why, dtype_name(info.dtype)));
}

void require_shape(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info,
                   const std::vector<std::int64_t>& shape) {
  if (info.shape != shape)
    refuse_layer(
        context, suffix, Status::kBadFile,
        fmt::format("shape must be [{}], got [{}]", fmt::join(shape, ","), fmt::join(info.shape, ",")));
}

void refuse_island(const LayerContext& context) {
  if (context.part->kind == PartKind::kIsland)
    refuse_layer(context, "weight", Status::kUnsupported,
                 "this build cannot run quantised weights in an fp32 island");
}

std::int64_t checked_rotate_group(const LayerContext& context, std::int64_t k) {
  const std::int64_t group = context.tag->convrot_group;
  if (group < 4 || !is_power_of_4(group))
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("convrot_groupsize must be a power of 4 from 4 on, got {}", group));
  if (k % group != 0)
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("convrot_groupsize {} does not divide the {} columns", group, k));
  if (group > kMaxRotateGroup)
    refuse_layer(
        context, "weight", Status::kUnsupported,
        fmt::format("this build rotates groups of at most {} columns, got {}", kMaxRotateGroup, group));
  return group;
}

void refuse_problem(const LayerContext& context, std::string_view suffix, const std::string& problem) {
  if (!problem.empty()) refuse_layer(context, suffix, Status::kBadFile, problem);
}

void require_finite(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info) {
  refuse_problem(context, suffix, value_problem(*context.file, info));
}

const io::TensorInfo& checked_row_scales(const LayerContext& context, std::string_view suffix,
                                         std::int64_t n) {
  const io::TensorInfo& scale = context.companion(suffix);
  require_dtype(context, suffix, scale, DType::kF32);
  if (!scale_shape_fits(scale.shape, n))
    refuse_layer(context, suffix, Status::kBadFile,
                 fmt::format("expected 1 or {} values, got shape [{}]", n, fmt::join(scale.shape, ",")));
  refuse_problem(context, suffix, scale_problem(*context.file, scale, false));
  return scale;
}

float scalar_scale(const LayerContext& context, std::string_view suffix) {
  const io::TensorInfo& scale = checked_row_scales(context, suffix, 1);
  if (!context.file->has_data()) return 1;
  return StoredLayer::scale_at(scale, context.file->data(scale), 0);
}

float input_scale_or(const LayerContext& context, float absent) {
  return context.find("input_scale") == nullptr ? absent : scalar_scale(context, "input_scale");
}

const io::TensorInfo* checked_pre_scale(const LayerContext& context, std::int64_t k) {
  constexpr const char* kSuffix = "pre_quant_scale";
  const io::TensorInfo* scale = context.find(kSuffix);
  if (scale == nullptr) return nullptr;
  require_shape(context, kSuffix, *scale, {k});
  if (scale->dtype != DType::kF32 && scale->dtype != DType::kBF16 && scale->dtype != DType::kF16)
    refuse_layer(context, kSuffix, Status::kBadFile,
                 fmt::format("dtype must be BF16, F16 or F32, got {}", dtype_name(scale->dtype)));
  require_finite(context, kSuffix, *scale);
  if (context.tag->full_precision_matmul)
    refuse_layer(context, kSuffix, Status::kUnsupported,
                 "this build cannot scale the input of a full_precision_matrix_mult");
  return scale;
}

const io::TensorInfo& checked_block_scales(const LayerContext& context, std::int64_t n, std::int64_t columns,
                                           const CodeScales& scales) {
  constexpr const char* kSuffix = "weight_scale";
  const io::TensorInfo& scale = context.companion(kSuffix);
  require_shape(context, kSuffix, scale, {round_up(n, kScaleTileRows), round_up(columns, kScaleTileColumns)});
  refuse_problem(context, kSuffix, scale_problem(*context.file, scale, scales));
  return scale;
}

}  // namespace h3s::checkpoint
