#include "checkpoint/convert_plan.h"

#include <map>

#include "base/error.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "checkpoint/swizzle.h"
#include "checkpoint/tags.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using io::TensorInfo;

class Planner {
 public:
  Planner(const Checkpoint& input, const ConvertOptions& options)
      : input_(input),
        options_(options),
        tags_(read_tags(input.file(), input.prefix())),
        parts_(model_parts(input.spec())),
        used_(options.rules.size()) {}

  PartTasks run() {
    std::vector<PartTask> tasks;
    for (const Part& part : parts_) tasks.push_back(is_linear(part.kind) ? linear(part) : other(part));
    for (std::size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        fail(Status::kInvalidArgument, "[convert] no layer of {} matches \"{}\"", input_.file().path(),
             options_.rules[i].pattern);
    return {std::move(parts_), std::move(tasks)};
  }

 private:
  PartTask other(const Part& part) const {
    PartTask task{.part = &part};
    task.kept = {{&input_.tensor(part.key()), input_.prefix() + part.key()}};
    return task;
  }

  PartTask linear(const Part& part) {
    PartTask task{.part = &part, .source = input_.linear(part.name)};
    task.map = row_map(part.name, input_.spec(), options_.stored);
    task.format = task.source.format;
    if (options_.decode_others && !task.source.plain()) task.format = *options_.decode_others;
    for (std::size_t i = 0; i < options_.rules.size(); ++i) {
      if (!options_.rules[i].matches(part.name)) continue;
      used_[i] = true;
      task.format = options_.rules[i].format;
      task.full_precision = options_.rules[i].full_precision;
    }
    if (task.format == task.source.format)
      keep(task);
    else
      check_change(task);
    return task;
  }

  void check_change(PartTask& task) const {
    task.action = task.format <= WeightFormat::kF32 ? PartTask::Action::kPlain : PartTask::Action::kEncode;
    if (task.action == PartTask::Action::kEncode && task.part->kind == PartKind::kIsland)
      fail(Status::kInvalidArgument, "[convert] {}: an fp32 island cannot be stored in {}", task.part->name,
           weight_format_name(task.format));
    if (task.source.pre_scale != nullptr)
      fail(Status::kUnsupported, "{}: {}: a layer whose input is scaled cannot be stored in another format",
           input_.file().path(), io::printable(task.source.pre_scale->name));
  }

  void keep(PartTask& task) const {
    const std::string layer = input_.prefix() + task.part->name;
    task.kept.push_back({task.source.weight, layer + ".weight", true});
    const auto tag = tags_.find(layer);
    if (tag == tags_.end()) return;
    const LayerContext context{
        .file = &input_.file(), .part = task.part, .layer = layer, .tag = &tag->second};
    for (const char* suffix : kCompanionSuffixes)
      if (const TensorInfo* info = context.find(suffix))
        task.kept.push_back({info, fmt::format("{}.{}", layer, suffix), follows_rows(suffix, *info)});
    task.tag = tag_text_of(layer, tag->second);
    check_repacking(task);
  }

  static bool follows_rows(std::string_view suffix, const TensorInfo& info) {
    return info.elements() > 1 &&
           (suffix == "weight_scale" || suffix == "weight_s_rel" || suffix == "weight_s_channel");
  }

  std::string tag_text_of(const std::string& layer, const QuantTag& tag) const {
    const TensorInfo* info = input_.file().find(layer + kTagSuffix);
    if (info == nullptr) return tag_text(tag);
    return {reinterpret_cast<const char*>(input_.file().data(*info)), info->bytes()};
  }

  // Whole groups of rows change places, so those of swizzled scales must be whole tiles.
  void check_repacking(const PartTask& task) const {
    if (task.map.identity()) return;
    const bool tiles = task.format == WeightFormat::kMxfp8 || task.format == WeightFormat::kNvfp4;
    for (const KeptTensor& kept : task.kept)
      if (kept.by_rows &&
          (kept.info->shape[0] != task.source.n || (tiles && task.map.group_rows % kScaleTileRows != 0)))
        fail(Status::kUnsupported,
             "{}: {}: padded or tiled rows cannot be repacked: convert the layer to a plain format first",
             input_.file().path(), io::printable(kept.info->name));
  }

  const Checkpoint& input_;
  const ConvertOptions& options_;
  std::map<std::string, QuantTag> tags_;
  std::vector<Part> parts_;
  std::vector<bool> used_;  // rules that matched
};

}  // namespace

DType PartTask::plain_dtype() const {
  if (format == WeightFormat::kF32) return DType::kF32;
  return format == WeightFormat::kF16 ? DType::kF16 : DType::kBF16;
}

LayerEncoder PartTask::encoder(float largest) const {
  try {
    return {format, source.n, source.k, synthetic_rotate_group(source.k), largest, full_precision};
  } catch (const Error& e) {
    throw Error(e.status(), fmt::format("{}: {}", part->name, e.what()));
  }
}

PartTasks plan_parts(const Checkpoint& input, const ConvertOptions& options) {
  return Planner(input, options).run();
}

}  // namespace h3s::checkpoint
