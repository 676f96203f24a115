#include "checkpoint/lora.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/dispatch.h"
#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lora_alpha.h"
#include "checkpoint/merge.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

[[noreturn]] void refuse(const io::SafetensorsReader& file, const std::string& key, Status status,
                         std::string_view reason) {
  fail(status, "{}: {}: {}", file.path(), io::printable(key), reason);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// The tensors of one module of a file.
struct Entry {
  const io::TensorInfo *down = nullptr, *up = nullptr, *alpha = nullptr, *bias = nullptr;
};

class FileReading {
 public:
  FileReading(const io::SafetensorsReader& file, const Checkpoint& base, const LoraTargets& targets,
              const LoraRequest& request)
      : file_(file),
        base_(base),
        targets_(targets),
        alphas_(file),
        report_{request.path, request.strength, 0, 0, {}} {}

  LoraReport read(std::map<std::string, LoraLayer>& layers) {
    collect();
    for (const auto& [module, entry] : entries_) {
      if (entry.down != nullptr || entry.up != nullptr)
        add_pair(module, entry, layers);
      else if (entry.alpha != nullptr)
        skip(entry.alpha->name, "alpha of no pair");
      if (entry.bias != nullptr) add_bias(module, *entry.bias, layers);
    }
    if (report_.applied == 0)
      fail(Status::kBadFile, "{}: nothing of this LoRA applies to {}: {}", file_.path(), base_.file().path(),
           report_.skipped.empty() ? "no pairs"
                                   : fmt::format("{}: {}", io::printable(report_.skipped.front().key),
                                                 report_.skipped.front().reason));
    return std::move(report_);
  }

 private:
  void skip(const std::string& key, std::string reason) {
    ++report_.total;
    report_.skipped.push_back({key, std::move(reason)});
  }

  void collect() {
    for (const io::TensorInfo& tensor : file_.tensors())
      if (const std::string_view kind = refused_lora_kind(tensor.name); !kind.empty())
        refuse(file_, tensor.name, Status::kUnsupported, kind);
    for (const io::TensorInfo& tensor : file_.tensors()) {
      const std::optional<LoraKey> key = parse_lora_key(tensor.name);
      if (!key) {
        skip(tensor.name, "no part of a LoRA that is known");
        continue;
      }
      Entry& entry = entries_[key->module];
      const io::TensorInfo*& slot = key->role == LoraRole::kDown    ? entry.down
                                    : key->role == LoraRole::kUp    ? entry.up
                                    : key->role == LoraRole::kAlpha ? entry.alpha
                                                                    : entry.bias;
      if (slot != nullptr)
        refuse(file_, tensor.name, Status::kBadFile,
               fmt::format("given twice, also as {}", io::printable(slot->name)));
      slot = &tensor;
    }
  }

  LoraTensor floats(const io::TensorInfo& info) const {
    if (info.dtype != DType::kBF16 && info.dtype != DType::kF16 && info.dtype != DType::kF32)
      refuse(file_, info.name, Status::kUnsupported,
             fmt::format("dtype must be BF16, F16 or F32, got {}", dtype_name(info.dtype)));
    return {file_.data(info), info.dtype};
  }

  // The floats of a tensor that is to be applied: one that is no number would spoil every row it meets, and
  // has no code to be merged into.
  LoraTensor finite_floats(const io::TensorInfo& info) const {
    constexpr std::int64_t kPiece = 1 << 14;
    const LoraTensor tensor = floats(info);
    std::vector<float> piece;
    for (std::int64_t first = 0; first < info.elements(); first += kPiece) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, info.elements() - first)));
      tensor.read(first, piece);
      if (!all_finite(piece)) refuse_element(info, first, piece);
    }
    return tensor;
  }

  // On the bits: no float is as large as infinity, and an integer maximum compiles to vector code.
  static bool all_finite(std::span<const float> values) {
    std::uint32_t largest = 0;
    for (const float v : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu);
    return largest < 0x7F800000u;
  }

  [[noreturn]] void refuse_element(const io::TensorInfo& info, std::int64_t first,
                                   std::span<const float> values) const {
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    refuse(file_, info.name, Status::kBadFile,
           fmt::format("element {} must be finite, got {}", first + (bad - values.begin()), *bad));
  }

  void check_matrix(const io::TensorInfo& info) const {
    floats(info);
    if (info.shape.size() != 2 || info.elements() == 0)
      refuse(file_, info.name, Status::kBadFile,
             fmt::format("expected a matrix, got shape {}", shape_text(info.shape)));
  }

  float scale_of(const std::string& module, const Entry& entry, std::int64_t rank) const {
    const std::optional<LoraAlphas::Alpha> alpha = alphas_.of(module, entry.alpha);
    if (!alpha) return report_.strength;
    const double over =
        alphas_.over_root() ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
    const auto scale = static_cast<float>(report_.strength * alpha->value / over);
    if (!std::isfinite(scale))
      refuse(file_, alpha->key, Status::kBadFile,
             fmt::format("strength {} times alpha {} over rank {} must be finite", report_.strength,
                         alpha->value, rank));
    return scale;
  }

  void add_pair(const std::string& module, const Entry& entry, std::map<std::string, LoraLayer>& layers) {
    if (entry.up == nullptr) refuse(file_, entry.down->name, Status::kBadFile, "A of a pair without its B");
    if (entry.down == nullptr) refuse(file_, entry.up->name, Status::kBadFile, "B of a pair without its A");
    const io::TensorInfo &down = *entry.down, &up = *entry.up;
    check_matrix(down);
    check_matrix(up);
    const std::int64_t rank = down.shape[0];
    if (up.shape[1] != rank)
      refuse(file_, up.name, Status::kBadFile, fmt::format("B has rank {}, A {}", up.shape[1], rank));
    const float scale = scale_of(module, entry, rank);
    const LoraTarget* target = targets_.find(module);
    if (target == nullptr) return skip(module, "no linear layer of this network");
    const std::int64_t k = base_.linear(target->layer).k;
    if (down.shape[1] != k) return skip(module, wrong_inputs(down.shape[1], *target, k));
    if (up.shape[0] != target->rows)
      return skip(module, fmt::format("{} outputs, the layer has {}", up.shape[0], target->rows));
    claim(pairs_, down.name, *target);
    layers[target->layer].pairs.push_back({finite_floats(down), finite_floats(up), rank, scale, *target});
    count_applied();
  }

  // What a pruned file has in place of the time embedding does not say what the embedding was: a full-width
  // pair cannot be carried over from it.
  std::string wrong_inputs(std::int64_t inputs, const LoraTarget& target, std::int64_t k) const {
    if (target.layer.ends_with("adaln_proj.linear") && base_.spec().curve() && inputs > k)
      return fmt::format("made for the full time embedding of {}, this checkpoint is pruned to {}", inputs,
                         k);
    return fmt::format("{} inputs, the layer has {}", inputs, k);
  }

  void add_bias(const std::string& module, const io::TensorInfo& info,
                std::map<std::string, LoraLayer>& layers) {
    floats(info);
    const LoraTarget* target = targets_.find(module);
    if (target == nullptr) return skip(info.name, "no linear layer of this network");
    if (base_.linear(target->layer).bias == nullptr) return skip(info.name, "the layer has no bias");
    if (info.shape != std::vector<std::int64_t>{target->rows})
      return skip(info.name,
                  fmt::format("shape {}, the bias has [{}]", shape_text(info.shape), target->rows));
    claim(biases_, info.name, *target);
    layers[target->layer].biases.push_back({finite_floats(info), report_.strength, *target});
    count_applied();
  }

  struct Claim {
    std::string key;
    LoraTarget target;
  };
  // Which tensors of the file change which rows. The same layer in two spellings, or whole and in parts, is
  // one difference written twice: their sum would be too strong, and which of them is meant is not known.
  void claim(std::vector<Claim>& claims, const std::string& key, const LoraTarget& target) const {
    for (const auto& [other, t] : claims)
      if (t.layer == target.layer && t.first_row < target.first_row + target.rows &&
          target.first_row < t.first_row + t.rows)
        refuse(file_, key, Status::kBadFile,
               fmt::format("changes the same rows of {} as {}", target.layer, io::printable(other)));
    claims.push_back({key, target});
  }

  void count_applied() {
    ++report_.total;
    ++report_.applied;
  }

  const io::SafetensorsReader& file_;
  const Checkpoint& base_;
  const LoraTargets& targets_;
  const LoraAlphas alphas_;
  LoraReport report_;
  std::map<std::string, Entry> entries_;
  std::vector<Claim> pairs_, biases_;  // a few hundred
};

}  // namespace

const char* lora_mode_name(LoraMode mode) {
  return mode == LoraMode::kRuntime ? "runtime" : "merge";
}

void LoraTensor::read(std::int64_t first, std::span<float> out) const {
  dispatch_dtype<float, BF16, F16>(dtype, "LoRA", [&]<typename T>() {
    const std::byte* src = data + first * static_cast<std::int64_t>(sizeof(T));
    for (std::size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, src + i * sizeof value, sizeof value);
      out[i] = to_float(value);
    }
  });
}

std::int64_t LoraPair::up_row(std::int64_t row) const {
  const std::int64_t within = row - target.first_row;
  if (within < 0 || within >= target.rows) return -1;
  return (within + target.rows - target.shift) % target.rows;
}

std::int64_t LoraLayer::rank() const {
  std::int64_t sum = 0;
  for (const LoraPair& pair : pairs) sum += pair.rank;
  return sum;
}

void LoraLayer::down_row(std::int64_t rank_idx, std::span<float> out) const {
  for (const LoraPair& pair : pairs) {
    if (rank_idx < pair.rank) {
      pair.down.read(rank_idx * std::ssize(out), out);
      for (float& v : out) v *= pair.scale;
      return;
    }
    rank_idx -= pair.rank;
  }
  std::fill(out.begin(), out.end(), 0.0f);
}

void LoraLayer::up_row(std::int64_t row, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  for (std::size_t first = 0; const LoraPair& pair : pairs) {
    const auto rank = static_cast<std::size_t>(pair.rank);
    if (const std::int64_t up = pair.up_row(row); up >= 0)
      pair.up.read(up * pair.rank, out.subspan(first, rank));
    first += rank;
  }
}

void LoraLayer::add_to_bias(std::span<float> bias) const {
  for (const LoraBias& difference : biases) {
    const LoraTarget& t = difference.target;
    std::vector<float> values(static_cast<std::size_t>(t.rows));
    difference.values.read(0, values);
    for (std::int64_t i = 0; i < t.rows; ++i)
      bias[static_cast<std::size_t>(t.first_row + (i + t.shift) % t.rows)] +=
          difference.strength * values[static_cast<std::size_t>(i)];
  }
}

std::string LoraReport::text() const {
  std::string out = fmt::format("{}: {} of {} applied, strength {}", path, applied, total, strength);
  for (const Skipped& s : skipped)
    out +=
        fmt::format("{}{} ({})", &s == &skipped.front() ? "; not: " : ", ", io::printable(s.key), s.reason);
  return out;
}

std::shared_ptr<const LoraSet> LoraSet::open(const Checkpoint& base, std::span<const LoraRequest> requests,
                                             LoraMode mode) {
  auto set = std::make_shared<LoraSet>();
  set->mode_ = mode;
  const LoraTargets targets(base.spec());
  for (const LoraRequest& request : requests) {
    if (!std::isfinite(request.strength))
      fail(Status::kInvalidArgument, "[lora] strength of {} must be finite, got {}", request.path,
           request.strength);
    const auto file = io::SafetensorsReader::open(request.path);
    set->files_.push_back(file);
    set->reports_.push_back(FileReading(file, base, targets, request).read(set->layers_));
  }
  if (mode == LoraMode::kMerge) set->prepare_merging(base);
  return set;
}

void LoraSet::prepare_merging(const Checkpoint& base) {
  for (const auto& [layer, lora] : layers_) {
    if (lora.pairs.empty()) continue;
    const LinearSource source = base.linear(layer);
    if (const std::string problem = MergedLayer::problem(source); !problem.empty())
      fail(Status::kUnsupported, "{}: {}: {}; runtime mode takes it", base.file().path(),
           io::printable(source.key), problem);
    merge_part_bytes_ = std::max(merge_part_bytes_, MergedLayer::part_bytes(source, lora));
  }
}

const LoraLayer* LoraSet::find(const std::string& layer) const {
  const auto found = layers_.find(layer);
  return found == layers_.end() ? nullptr : &found->second;
}

}  // namespace h3s::checkpoint
