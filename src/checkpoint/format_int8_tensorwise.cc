// int8_tensorwise: I8 codes with one F32 scale a row (or one for all), columns rotated in groups when
// `convrot` is set.
#include "base/error.h"
#include "checkpoint/formats.h"

namespace h3s::checkpoint {
namespace {

constexpr const char* kScale = "weight_scale";
constexpr std::int64_t kMaxRotateGroup =
    1024;  // stock writes 256; the bound keeps the rotation in registers and L1

bool is_power_of_4(std::int64_t value) {
  const bool power_of_2 = value > 0 && (value & (value - 1)) == 0;
  return power_of_2 && (value & 0x5555555555555555) != 0;
}

void check_options(const LayerContext& context) {
  if (context.part->kind == PartKind::kIsland)
    refuse_layer(context, "weight", Status::kUnsupported,
                 "this build cannot run int8 weights in an fp32 island");
  if (context.tag->full_precision_matmul)
    refuse_layer(context, "weight", Status::kUnsupported, "this build cannot run full_precision_matrix_mult");
}

std::int64_t rotate_group(const LayerContext& context, std::int64_t k) {
  if (!context.tag->convrot) return 0;
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

// [], [1], [1,1], [n] and [n,1] occur.
bool scale_shape_fits(const std::vector<std::int64_t>& shape, std::int64_t n) {
  if (shape.size() > 2 || (shape.size() == 2 && shape[1] != 1)) return false;
  return shape.empty() || shape[0] == 1 || shape[0] == n;
}

const io::TensorInfo& checked_scale(const LayerContext& context, std::int64_t n) {
  const io::TensorInfo& scale = context.companion(kScale);
  if (scale.dtype != DType::kF32)
    refuse_layer(context, kScale, Status::kBadFile,
                 fmt::format("dtype must be F32, got {}", dtype_name(scale.dtype)));
  if (!scale_shape_fits(scale.shape, n))
    refuse_layer(context, kScale, Status::kBadFile,
                 fmt::format("expected 1 or {} values, got shape [{}]", n, fmt::join(scale.shape, ",")));
  if (const std::string problem = scale_problem(*context.file, scale); !problem.empty())
    refuse_layer(context, kScale, Status::kBadFile, problem);
  return scale;
}

}  // namespace

void bind_int8_tensorwise(const LayerContext& context, LinearSource& source) {
  if (source.weight->dtype != DType::kI8)
    refuse_layer(context, "weight", Status::kBadFile,
                 fmt::format("dtype must be I8 as its tag says, got {}", dtype_name(source.weight->dtype)));
  check_options(context);
  source.format = WeightFormat::kInt8Tensorwise;
  source.rotate_group = rotate_group(context, source.k);
  source.scale = &checked_scale(context, source.n);
}

}  // namespace h3s::checkpoint
