#include "checkpoint/detect.h"

#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using io::SafetensorsReader;
using io::TensorInfo;
using spec::ModelSpec;

constexpr std::array<const char*, 3> kPrefixes{"", "model.diffusion_model.", "diffusion_model."};
constexpr std::int64_t kHeadDim = 128;
// Zero-size tensors may have any other dimension; the bound keeps products of sizes far from overflow.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
constexpr const char* kConfigKey = "config";

bool holds_model(const SafetensorsReader& file, const std::string& prefix) {
  return file.find(prefix + "video_patch_proj.weight") != nullptr &&
         file.find(prefix + "audio_patch_proj.weight") != nullptr;
}

// What a file without H3 keys probably is; empty when nothing is recognised.
const char* foreign_file_hint(const SafetensorsReader& file) {
  for (const TensorInfo& info : file.tensors()) {
    if (info.name.find("lora_A") != std::string::npos || info.name.find("lora_down") != std::string::npos)
      return " (its keys are those of a LoRA)";
    if (info.name.find("transformer_blocks.") != std::string::npos)
      return " (its keys have Diffusers names; convert it to the ComfyUI layout first)";
  }
  return "";
}

// The number in "blocks.12.norm1.weight" after "blocks."; empty for anything else, leading zeros included.
std::optional<std::int64_t> block_number(std::string_view key, std::string_view base) {
  if (key.substr(0, base.size()) != base) return std::nullopt;
  key.remove_prefix(base.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  const auto digits = static_cast<std::size_t>(end - key.data());
  if (error != std::errc{} || digits == key.size() || *end != '.') return std::nullopt;
  if (number < 0 || (digits > 1 && key.front() == '0')) return std::nullopt;
  return number;
}

using Tags = std::map<std::string, QuantTag>;

class Detector {
 public:
  Detector(const SafetensorsReader& file, const std::string& prefix, const Tags& tags)
      : file_(file), prefix_(prefix), tags_(tags) {}

  ModelSpec run() {
    streams();
    transformer();
    time();
    check_rope();
    return spec_;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(Status status, const std::string& key, fmt::format_string<Args...> format,
                           Args&&... args) const {
    fail(status, "{}: {}: {}", file_.path(), io::printable(prefix_ + key),
         fmt::format(format, std::forward<Args>(args)...));
  }

  std::int64_t dim(const std::string& key, std::size_t rank, std::size_t axis) const {
    const TensorInfo& info = file_.at(prefix_ + key);
    if (info.shape.size() != rank)
      refuse(Status::kBadFile, key, "expected {} dimensions, got {}", rank, info.shape.size());
    if (info.shape[axis] < 1 || info.shape[axis] > kMaxDim)
      refuse(Status::kBadFile, key, "dimension {} is {}, expected 1 to {}", axis, info.shape[axis], kMaxDim);
    return info.shape[axis];
  }
  std::int64_t rows(const std::string& key) const { return dim(key, 2, 0); }
  std::int64_t columns(const std::string& key) const { return dim(key, 2, 1); }

  // The one quantisable layer whose inputs no other tensor counts.
  std::int64_t columns_a_byte(const std::string& layer) const {
    const auto tag = tags_.find(prefix_ + layer);
    const FormatRow* format = tag == tags_.end() ? nullptr : find_format(tag->second.format);
    return format != nullptr && format->packed ? 2 : 1;
  }

  std::int64_t rows_divided(const std::string& key, std::int64_t divisor) const {
    if (rows(key) % divisor != 0)
      refuse(Status::kBadFile, key, "expected a multiple of {} rows, got {}", divisor, rows(key));
    return rows(key) / divisor;
  }

  std::int64_t count_blocks(const std::string& base) const {
    std::set<std::int64_t> numbers;
    for (const TensorInfo& info : file_.tensors())
      if (const auto number = block_number(info.name, prefix_ + base)) numbers.insert(*number);
    std::int64_t expected = 0;
    for (const std::int64_t number : numbers) {
      if (number != expected)
        refuse(Status::kBadFile, base + std::to_string(expected),
               "the block is missing, but block {} exists (a gap)", number);
      ++expected;
    }
    return expected;
  }

  void streams() {
    spec_.hidden = rows("video_patch_proj.weight");
    spec_.text_dim = columns("condition_proj.weight") * columns_a_byte("condition_proj");
    spec_.video_channels = rows_divided("final_layer.video_out.weight", spec::kPatch * spec::kPatch);
    spec_.audio_channels = rows("final_layer.audio_out.weight");
  }

  void transformer() {
    spec_.layers = count_blocks("blocks.");
    if (spec_.layers == 0) refuse(Status::kBadFile, "blocks.0", "the file has no blocks");
    spec_.refiner_layers = count_blocks("token_refiner.blocks.");
    spec_.head_dim = dim("blocks.0.attn.q_norm.weight", 1, 0);
    if (spec_.head_dim != kHeadDim)
      refuse(Status::kUnsupported, "blocks.0.attn.q_norm.weight", "head width must be {}, got {}", kHeadDim,
             spec_.head_dim);
    spec_.heads = rows_divided("blocks.0.attn.qkv_proj.weight", 3 * kHeadDim);
    spec_.ffn = rows_divided("blocks.0.mlp.fc1.weight", 2);
  }

  void time() {
    if (file_.find(prefix_ + "adaln_t_table") != nullptr) {
      spec_.curve_grid = rows("adaln_t_table");
      spec_.time_dim = columns("adaln_t_table");
      if (spec_.curve_grid < 2) refuse(Status::kBadFile, "adaln_t_table", "a curve needs at least 2 points");
      return;
    }
    spec_.curve_grid = 0;
    spec_.timestep_dim = columns("time_embedder.proj_in.weight");
    spec_.time_hidden = rows("time_embedder.proj_in.weight");
    spec_.time_dim = rows("time_embedder.proj_out.weight");
    if (spec_.timestep_dim % 2 != 0)
      refuse(Status::kUnsupported, "time_embedder.proj_in.weight", "an odd timestep width, {}",
             spec_.timestep_dim);
  }

  void check_rope() const {
    const std::int64_t frequencies = dim("rope.inv_freq", 1, 0);
    if (frequencies != spec::kRopeFrequencies)
      refuse(Status::kUnsupported, "rope.inv_freq", "expected {} frequencies, got {}", spec::kRopeFrequencies,
             frequencies);
  }

  const SafetensorsReader& file_;
  const std::string& prefix_;
  const Tags& tags_;
  ModelSpec spec_;
};

// Names of the stock constructor's arguments. Every one is also visible in the tensors.
struct ConfigField {
  const char* name;
  std::int64_t ModelSpec::*member;
};
constexpr std::array<ConfigField, 11> kConfigFields{{
    {"hidden_size", &ModelSpec::hidden},
    {"num_layers", &ModelSpec::layers},
    {"token_refiner_num_layers", &ModelSpec::refiner_layers},
    {"num_attention_heads", &ModelSpec::heads},
    {"attention_head_dim", &ModelSpec::head_dim},
    {"ffn_hidden_size", &ModelSpec::ffn},
    {"text_dim", &ModelSpec::text_dim},
    {"timestep_input_dim", &ModelSpec::timestep_dim},
    {"time_embed_hidden_size", &ModelSpec::time_hidden},
    {"time_embed_dim", &ModelSpec::time_dim},
    {"adaln_curve_grid", &ModelSpec::curve_grid},
}};

bool applies(const ConfigField& field, const ModelSpec& spec) {
  const bool full_only = field.member == &ModelSpec::timestep_dim || field.member == &ModelSpec::time_hidden;
  return !(spec.curve() && full_only);
}

void check_config(const SafetensorsReader& file, const ModelSpec& spec) {
  const auto entry = file.metadata().find(kConfigKey);
  if (entry == file.metadata().end()) return;
  const std::string where = fmt::format("{}: __metadata__.{}", file.path(), kConfigKey);
  const nlohmann::json config = io::parse_json_object(entry->second, where);
  const auto transformer = config.find("transformer");
  if (transformer == config.end()) return;
  if (!transformer->is_object())
    fail(Status::kBadFile, "{}: transformer: expected an object, got {}", where, transformer->type_name());
  for (const ConfigField& field : kConfigFields) {
    const auto value = transformer->find(field.name);
    if (value == transformer->end() || value->is_null() || !applies(field, spec)) continue;
    if (*value != spec.*field.member)
      fail(Status::kBadFile, "{}: transformer.{} is {}, but the tensors say {}", where, field.name,
           io::printable(value->dump()), spec.*field.member);
  }
}

}  // namespace

std::string detect_prefix(const SafetensorsReader& file) {
  std::vector<std::string> found;
  for (const char* prefix : kPrefixes)
    if (holds_model(file, prefix)) found.emplace_back(prefix);
  if (found.empty())
    fail(Status::kBadFile,
         "{}: video_patch_proj.weight, audio_patch_proj.weight: not both present: not a MiniMax-H3 "
         "checkpoint{}",
         file.path(), foreign_file_hint(file));
  if (found.size() > 1)
    fail(Status::kBadFile, "{}: video_patch_proj.weight: present under two prefixes, \"{}\" and \"{}\"",
         file.path(), found[0], found[1]);
  return found.front();
}

ModelSpec detect_spec(const SafetensorsReader& file, const std::string& prefix, const Tags& tags) {
  const ModelSpec spec = Detector(file, prefix, tags).run();
  check_config(file, spec);
  return spec;
}

}  // namespace h3s::checkpoint
