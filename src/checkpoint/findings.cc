#include "checkpoint/findings.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/error.h"
#include "checkpoint/formats.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "checkpoint/row_order.h"
#include "checkpoint/value_checks.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using io::TensorInfo;

constexpr std::size_t kMaxListed = 5;          // keys named in one finding
constexpr std::uint64_t kSampleBytes = 4096;   // a page at the end of a tensor
constexpr std::uint64_t kLargeTensor = 65536;  // bytes; smaller ones may be zero for good reasons

// Keys of one kind of finding; named in it up to kMaxListed.
class KeyList {
 public:
  void add(const std::string& key) {
    if (count_++ < kMaxListed) named_ += (named_.empty() ? "" : ", ") + io::printable(key);
  }
  void report(Severity severity, const char* what, std::vector<Finding>& out) const {
    if (count_ == 0) return;
    out.push_back(
        {severity, fmt::format("{} {}: {}{}", count_, what, named_, count_ > kMaxListed ? ", ..." : "")});
  }

 private:
  std::size_t count_ = 0;
  std::string named_;
};

std::set<std::string> known_keys(const Examined& examined) {
  std::set<std::string> known{kLegacyFp8Key};
  for (const Part& part : model_parts(*examined.spec)) {
    known.insert(part.key());
    if (part.bias) known.insert(part.name + ".bias");
    if (!examined.tags.contains(examined.prefix + part.name)) continue;
    for (const char* suffix :
         {"comfy_quant", "weight_scale", "weight_scale_2", "weight_s_rel", "weight_s_channel",
          "weight_codebook", "weight_zeros", "input_scale", "pre_quant_scale", "scale_weight", "scale_input"})
      known.insert(part.name + "." + suffix);
  }
  return known;
}

bool is_attention_option(const std::string& key) {
  return key.ends_with(".to_gate_compress.weight") || key.ends_with("comfy_attention.config");
}

void unknown_keys(const Examined& examined, std::vector<Finding>& out) {
  KeyList outside, options, unknown;
  const std::set<std::string> known = examined.spec ? known_keys(examined) : std::set<std::string>();
  for (const TensorInfo& info : examined.file.tensors()) {
    if (!info.name.starts_with(examined.prefix))
      outside.add(info.name);
    else if (is_attention_option(info.name))
      options.add(info.name);
    else if (examined.spec && !known.contains(info.name.substr(examined.prefix.size())))
      unknown.add(info.name);
  }
  outside.report(Severity::kNote, "keys outside the prefix are ignored", out);
  options.report(Severity::kNote, "keys of attention options that the dense forward does not use", out);
  unknown.report(Severity::kWarning, "unknown keys are ignored", out);
}

// Why a scale cannot be used; empty when it can. Scales of groups and blocks are 0 where those are zeros.
std::string scale_trouble(const Examined& examined, const TensorInfo& info) {
  if (info.dtype == DType::kF32)
    return scale_problem(examined.file, info, info.name.ends_with(".weight_s_rel"));
  return scale_problem(examined.file, info, info.dtype == DType::kF8E8M0 ? kE8M0Scales : kE4M3Scales);
}

bool is_scale(const TensorInfo& info) {
  constexpr std::array<const char*, 7> kSuffixes{".weight_scale", ".weight_scale_2", ".weight_s_channel",
                                                 ".weight_s_rel", ".scale_weight",   ".input_scale",
                                                 ".scale_input"};
  const bool readable =
      info.dtype == DType::kF32 || info.dtype == DType::kF8E4M3 || info.dtype == DType::kF8E8M0;
  return readable && std::any_of(kSuffixes.begin(), kSuffixes.end(),
                                 [&](const char* suffix) { return info.name.ends_with(suffix); });
}

void bad_scales(const Examined& examined, std::vector<Finding>& out) {
  KeyList bad;
  for (const TensorInfo& info : examined.file.tensors())
    if (is_scale(info) && !scale_trouble(examined, info).empty()) bad.add(info.name);
  bad.report(Severity::kWarning, "scale tensors hold zero, negative, huge or non-finite values", out);
}

bool is_small_float(const TensorInfo& info) {
  return info.bytes() <= kCheckedBytes &&
         (info.dtype == DType::kF32 || info.dtype == DType::kF16 || info.dtype == DType::kBF16);
}

void bad_values(const Examined& examined, std::vector<Finding>& out) {
  KeyList bad;
  for (const TensorInfo& info : examined.file.tensors())
    if (info.name.starts_with(examined.prefix) && is_small_float(info) && !is_scale(info) &&
        !value_problem(examined.file, info).empty())
      bad.add(info.name);
  bad.report(Severity::kWarning, "tensors hold NaN or infinity", out);
}

// Rows and columns that mxfp8 and nvfp4 pad with are zeros at the end of a weight and of its scales.
std::uint64_t padding_bytes(const Examined& examined, const TensorInfo& info) {
  const auto tag = examined.tags.find(info.name.substr(0, info.name.rfind('.')));
  if (!examined.spec || tag == examined.tags.end() || info.shape.empty() || info.shape[0] == 0) return 0;
  if (tag->second.format != "mxfp8" && tag->second.format != "nvfp4") return 0;
  for (const Part& part : model_parts(*examined.spec))
    if (is_linear(part.kind) && examined.prefix + part.name == tag->first && part.shape[0] < info.shape[0])
      return info.bytes() / static_cast<std::uint64_t>(info.shape[0]) *
             static_cast<std::uint64_t>(info.shape[0] - part.shape[0]);
  return 0;
}

bool ends_in_zeros(const Examined& examined, const TensorInfo& info) {
  const std::uint64_t bytes = info.bytes() - padding_bytes(examined, info);
  if (bytes < kLargeTensor) return false;
  const std::byte* tail = examined.file.data(info) + bytes - kSampleBytes;
  return std::all_of(tail, tail + kSampleBytes, [](std::byte b) { return b == std::byte{0}; });
}

void zero_tails(const Examined& examined, std::vector<Finding>& out) {
  KeyList zero;
  for (const TensorInfo& info : examined.file.tensors())
    if (ends_in_zeros(examined, info)) zero.add(info.name);
  zero.report(Severity::kWarning, "tensors end in a page of zeros (an interrupted download looks like this)",
              out);
}

void rope_values(const Examined& examined, std::vector<Finding>& out) {
  const TensorInfo* rope = examined.file.find(examined.prefix + "rope.inv_freq");
  if (rope == nullptr || rope->dtype != DType::kF32 || rope->elements() != spec::kRopeFrequencies) return;
  std::vector<float> expected(spec::kRopeFrequencies);
  TensorGenerator::weight("rope.inv_freq", {spec::kRopeFrequencies}, 0)
      .values(0, spec::kRopeFrequencies, expected.data());
  if (std::memcmp(expected.data(), examined.file.data(*rope), rope->bytes()) != 0)
    out.push_back(
        {Severity::kWarning, "rope.inv_freq differs from 10000^(-i/16); the file's values are used"});
}

void metadata_entries(const Examined& examined, std::vector<Finding>& out) {
  if (examined.file.metadata().contains("config"))
    out.push_back({Severity::kNote, "metadata `config` is checked against the tensors; the tensors decide"});
  if (examined.file.metadata().contains(kQuantMetadataKey))
    out.push_back(
        {Severity::kNote, fmt::format("weight formats are also given in metadata `{}`", kQuantMetadataKey)});
}

}  // namespace

std::vector<Finding> find_suspicious(const Examined& examined) {
  std::vector<Finding> out;
  if (const std::uint64_t trailing = examined.file.trailing_bytes(); trailing > 0)
    out.push_back({Severity::kWarning, fmt::format("{} bytes follow the last tensor", trailing)});
  unknown_keys(examined, out);
  bad_scales(examined, out);
  bad_values(examined, out);
  zero_tails(examined, out);
  rope_values(examined, out);
  metadata_entries(examined, out);
  return out;
}

std::vector<Finding> quick_warnings(const Checkpoint& checkpoint) {
  constexpr int kBlocks = 2;
  const std::optional<spec::ModelSpec> spec = checkpoint.spec();
  const auto tags = read_tags(checkpoint.file(), checkpoint.prefix());
  std::vector<Finding> out = describe_row_orders(checkpoint, kBlocks);
  zero_tails({checkpoint.file(), checkpoint.prefix(), spec, tags}, out);
  std::erase_if(out, [](const Finding& finding) { return finding.severity != Severity::kWarning; });
  return out;
}

}  // namespace h3s::checkpoint
