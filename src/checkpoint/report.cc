#include "checkpoint/report.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/detect.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "checkpoint/tags.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using io::SafetensorsReader;
using io::TensorInfo;

constexpr std::size_t kMaxListed = 5;          // keys named in one finding
constexpr std::uint64_t kSampleBytes = 4096;   // a page at the end of a tensor
constexpr std::uint64_t kLargeTensor = 65536;  // smaller ones may be zero for good reasons

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

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
    if (!ends_with(layer, rule.ending)) continue;
    const bool refiner = starts_with(layer, "token_refiner.") && rule.kind != PartKind::kNorm;
    return part_kind_name(refiner ? PartKind::kRefiner : rule.kind);
  }
  return "other";
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
    report_.file_bytes = file_.file_bytes();
    report_.trailing_bytes = file_.trailing_bytes();
    report_.num_tensors = file_.tensors().size();
    report_.metadata = file_.metadata();
    attempt([&] { report_.prefix = detect_prefix(file_); });
    if (!report_.prefix) return;
    attempt([&] { tags_ = read_tags(file_, *report_.prefix); });
    attempt([&] { report_.spec = detect_spec(file_, *report_.prefix); });
    report_.quantised = !tags_.empty();
    count_formats();
    find_suspicious();
  }

 private:
  // A part that cannot be read stays empty; the reason comes with the refusal.
  static void attempt(const std::function<void()>& step) {
    try {
      step();
    } catch (const Error&) {
    }
  }

  void add(Severity severity, std::string text) { report_.findings.push_back({severity, std::move(text)}); }

  void add_keys(Severity severity, const std::vector<std::string>& keys, const std::string& what) {
    if (keys.empty()) return;
    std::string text = fmt::format("{} {}: ", keys.size(), what);
    for (std::size_t i = 0; i < std::min(keys.size(), kMaxListed); ++i)
      text += (i == 0 ? "" : ", ") + io::printable(keys[i]);
    add(severity, keys.size() > kMaxListed ? text + ", ..." : text);
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
      if (!starts_with(info.name, *report_.prefix)) continue;
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
    const auto rank = [](const FormatCount& entry) {
      constexpr std::array<std::string_view, 11> kOrder{
          "qkv", "out", "fc1", "fc2", "adaln", "refiner", "island", "condition", "norm", "table", "other"};
      return std::find(kOrder.begin(), kOrder.end(), entry.kind) - kOrder.begin();
    };
    std::stable_sort(report_.formats.begin(), report_.formats.end(),
                     [&](const FormatCount& a, const FormatCount& b) { return rank(a) < rank(b); });
  }

  void find_suspicious() {
    add(Severity::kNote,
        "rows of qkv_proj are taken as [all q, all k, all v]; the original shards interleave them per head "
        "with the "
        "same keys and shapes, which no check can tell apart: trust the file's origin");
    if (report_.trailing_bytes > 0)
      add(Severity::kWarning, fmt::format("{} bytes follow the last tensor", report_.trailing_bytes));
    unknown_keys();
    bad_scales();
    zero_tails();
    rope_values();
    metadata_entries();
  }

  std::set<std::string> known_keys() const {
    std::set<std::string> known;
    for (const Part& part : model_parts(*report_.spec)) {
      known.insert(part.key());
      if (part.bias) known.insert(part.name + ".bias");
      if (tags_.count(*report_.prefix + part.name) == 0) continue;
      for (const char* suffix :
           {"comfy_quant", "weight_scale", "weight_scale_2", "weight_s_rel", "weight_s_channel",
            "weight_codebook", "weight_zeros", "input_scale", "pre_quant_scale"})
        known.insert(part.name + "." + suffix);
    }
    return known;
  }

  void unknown_keys() {
    std::vector<std::string> outside, unknown, options;
    const std::set<std::string> known = report_.spec ? known_keys() : std::set<std::string>();
    for (const TensorInfo& info : file_.tensors()) {
      if (!starts_with(info.name, *report_.prefix))
        outside.push_back(info.name);
      else if (ends_with(info.name, ".to_gate_compress.weight") ||
               ends_with(info.name, "comfy_attention.config"))
        options.push_back(info.name);
      else if (report_.spec && known.count(without_prefix(info.name)) == 0)
        unknown.push_back(info.name);
    }
    add_keys(Severity::kNote, outside, "keys outside the prefix are ignored");
    add_keys(Severity::kNote, options, "keys of attention options that the dense forward does not use");
    add_keys(Severity::kWarning, unknown, "unknown keys are ignored");
  }

  void bad_scales() {
    std::vector<std::string> bad;
    for (const TensorInfo& info : file_.tensors())
      if (ends_with(info.name, ".weight_scale") && info.dtype == DType::kF32 &&
          !scale_problem(file_, info).empty())
        bad.push_back(info.name);
    add_keys(Severity::kWarning, bad, "scale tensors hold zero, negative or non-finite values");
  }

  void zero_tails() {
    std::vector<std::string> zero;
    for (const TensorInfo& info : file_.tensors()) {
      if (info.bytes() < kLargeTensor) continue;
      const std::byte* tail = file_.data(info) + info.bytes() - kSampleBytes;
      if (std::all_of(tail, tail + kSampleBytes, [](std::byte b) { return b == std::byte{0}; }))
        zero.push_back(info.name);
    }
    add_keys(Severity::kWarning, zero,
             "tensors end in a page of zeros (an interrupted download looks like this)");
  }

  void rope_values() {
    const TensorInfo* rope = file_.find(*report_.prefix + "rope.inv_freq");
    if (rope == nullptr || rope->dtype != DType::kF32 || rope->shape.size() != 1) return;
    const std::int64_t count = rope->shape[0];
    if (count > spec::kRopeFrequencies) return;
    std::vector<float> expected(static_cast<std::size_t>(count));
    TensorGenerator::weight("rope.inv_freq", rope->shape, 0).values(0, count, expected.data());
    if (std::memcmp(expected.data(), file_.data(*rope), rope->bytes()) != 0)
      add(Severity::kWarning, "rope.inv_freq differs from 10000^(-i/16); the file's values are used");
  }

  void metadata_entries() {
    if (report_.metadata.count("config") != 0)
      add(Severity::kNote, "metadata `config` is checked against the tensors; the tensors decide");
    if (report_.metadata.count(kQuantMetadataKey) != 0)
      add(Severity::kNote, fmt::format("weight formats are also given in metadata `{}`", kQuantMetadataKey));
  }

  const SafetensorsReader& file_;
  Report& report_;
  std::map<std::string, QuantTag> tags_;
};

}  // namespace

Report describe(const std::string& path, const io::ReadOptions& options) {
  Report report;
  report.path = path;
  try {
    Checkpoint::open(path, options);
  } catch (const Error& e) {
    if (e.status() == Status::kIo) throw;
    report.refusal = e.what();
  }
  try {
    const auto file = SafetensorsReader::open(path, {.allow_trailing_bytes = true});
    Describer(file, report).run();
  } catch (const Error& e) {
    if (!report.refusal) report.refusal = e.what();  // not readable at all
  }
  return report;
}

}  // namespace h3s::checkpoint
