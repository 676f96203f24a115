#include "checkpoint/report.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/detect.h"
#include "checkpoint/findings.h"
#include "checkpoint/parts.h"
#include "checkpoint/row_order.h"
#include "checkpoint/tags.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using io::SafetensorsReader;
using io::TensorInfo;

constexpr int kOrderBlocks = 8;  // sampled for the order of rows

// The layer of a key and what stands behind its last dot: "blocks.0.attn.qkv_proj", "weight".
std::pair<std::string, std::string> split_key(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  if (dot == key.npos) return {key, ""};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

struct KindRule {
  std::string_view ending;
  PartKind kind;
};
constexpr std::array<KindRule, 13> kKindRules{{
    {"norm", PartKind::kNorm},
    {"norm1", PartKind::kNorm},
    {"norm2", PartKind::kNorm},
    {"attn.qkv_proj", PartKind::kQkv},
    {"attn.out_proj", PartKind::kOut},
    {"mlp.fc1", PartKind::kFc1},
    {"mlp.fc2", PartKind::kFc2},
    {"adaln_proj.linear", PartKind::kAdaln},
    {"condition_proj", PartKind::kCondition},
    {"patch_proj", PartKind::kIsland},
    {"_out", PartKind::kIsland},
    {"time_embedder.proj_in", PartKind::kIsland},
    {"time_embedder.proj_out", PartKind::kIsland},
}};

// By name alone, so that it works on files whose geometry cannot be read.
const char* kind_of(std::string_view layer) {
  if (layer == "rope" || layer == "adaln_t_table") return part_kind_name(PartKind::kTable);
  for (const KindRule& rule : kKindRules) {
    if (!layer.ends_with(rule.ending)) continue;
    const bool refiner = layer.starts_with("token_refiner.") && rule.kind != PartKind::kNorm;
    return part_kind_name(refiner ? PartKind::kRefiner : rule.kind);
  }
  return "other";
}

// Position of a kind in the table of formats.
std::ptrdiff_t rank(const std::string& kind) {
  constexpr std::array<std::string_view, 11> kOrder{
      "qkv", "out", "fc1", "fc2", "adaln", "refiner", "island", "condition", "norm", "table", "other"};
  return std::find(kOrder.begin(), kOrder.end(), kind) - kOrder.begin();
}

std::string plain_format_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF32:
      return "fp32";
    default:
      return std::string(dtype_name(dtype));
  }
}

class Describer {
 public:
  Describer(const SafetensorsReader& file, Report& report) : file_(file), report_(report) {}

  void run() {
    report_.trailing_bytes = file_.trailing_bytes();
    report_.num_tensors = file_.tensors().size();
    report_.metadata = file_.metadata();
    attempt([&] { report_.prefix = detect_prefix(file_); });
    if (!report_.prefix) return;
    tags_ = readable_tags(file_, *report_.prefix);
    attempt([&] { tags_ = read_tags(file_, *report_.prefix); });
    attempt([&] { report_.spec = detect_spec(file_, *report_.prefix, tags_); });
    report_.quantised = !tags_.empty();
    count_formats();
    report_.findings = find_suspicious({file_, *report_.prefix, report_.spec, tags_});
  }

 private:
  // A part that cannot be read stays empty; the reason comes with the refusal.
  static void attempt(const std::function<void()>& step) {
    try {
      step();
    } catch (const Error&) {
    }
  }

  std::string without_prefix(const std::string& name) const { return name.substr(report_.prefix->size()); }

  std::string format_name(const TensorInfo& weight) const {
    const auto tag = tags_.find(split_key(weight.name).first);
    return tag != tags_.end() ? io::printable(tag->second.format) : plain_format_name(weight.dtype);
  }

  // Every tensor under the prefix counts to the layer it belongs to; a layer's format is that of its weight.
  void count_formats() {
    std::map<std::pair<std::string, std::string>, FormatCount> counts;
    for (const TensorInfo& info : file_.tensors()) {
      if (!info.name.starts_with(*report_.prefix)) continue;
      const std::string layer = split_key(without_prefix(info.name)).first;
      const TensorInfo* weight = file_.find(*report_.prefix + layer + ".weight");
      const std::string kind = kind_of(layer);
      const std::string format = format_name(weight != nullptr ? *weight : info);
      FormatCount& entry = counts[{kind, format}];
      entry.kind = kind;
      entry.format = format;
      entry.bytes += info.bytes();
      if (weight == nullptr || weight == &info) ++entry.count;
    }
    for (const auto& [key, entry] : counts) report_.formats.push_back(entry);
    std::stable_sort(report_.formats.begin(), report_.formats.end(),
                     [](const FormatCount& a, const FormatCount& b) { return rank(a.kind) < rank(b.kind); });
  }

  const SafetensorsReader& file_;
  Report& report_;
  std::map<std::string, QuantTag> tags_;
};

}  // namespace

Report describe(const std::string& path, const io::ReadOptions& options) {
  Report report;
  report.path = path;
  std::optional<Checkpoint> checkpoint;
  try {
    checkpoint = Checkpoint::open(path, options);
  } catch (const Error& e) {
    if (e.status() == Status::kIo) throw;
    report.refusal = e.what();
  }
  std::error_code no_size;  // a directory has none
  if (const auto bytes = std::filesystem::file_size(path, no_size); !no_size) report.file_bytes = bytes;
  try {
    const auto file = SafetensorsReader::open(path, {.allow_trailing_bytes = true});
    Describer(file, report).run();
  } catch (const Error& e) {
    if (!report.refusal) report.refusal = e.what();  // not readable at all
  }
  if (checkpoint) {
    const std::vector<Finding> orders = describe_row_orders(*checkpoint, kOrderBlocks);
    report.findings.insert(report.findings.begin(), orders.begin(), orders.end());
  }
  return report;
}

}  // namespace h3s::checkpoint
