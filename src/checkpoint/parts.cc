#include "checkpoint/parts.h"

#include "base/error.h"

namespace h3s::checkpoint {
namespace {

using spec::ModelSpec;

class PartList {
 public:
  explicit PartList(const ModelSpec& spec) : spec_(spec) {}

  void linear(const std::string& name, PartKind kind, std::int64_t n, std::int64_t k, bool bias) {
    parts_.push_back({name, kind, {n, k}, bias});
  }
  void norm(const std::string& key, std::int64_t width) {
    parts_.push_back({key, PartKind::kNorm, {width}, false});
  }
  void table(const std::string& key, std::vector<std::int64_t> shape) {
    parts_.push_back({key, PartKind::kTable, std::move(shape), false});
  }

  void inputs() {
    linear("video_patch_proj", PartKind::kIsland, spec_.hidden, spec_.patch_width(), true);
    linear("audio_patch_proj", PartKind::kIsland, spec_.hidden, spec_.audio_channels, true);
    linear("condition_proj", PartKind::kCondition, spec_.hidden, spec_.text_dim, true);
    table("rope.inv_freq", {spec::kRopeFrequencies});
    if (spec_.curve()) return table("adaln_t_table", {spec_.curve_grid, spec_.time_dim});
    linear("time_embedder.proj_in", PartKind::kIsland, spec_.time_hidden, spec_.timestep_dim, true);
    linear("time_embedder.proj_out", PartKind::kIsland, spec_.time_dim, spec_.time_hidden, true);
  }

  void refiner() {
    for (std::int64_t i = 0; i < spec_.refiner_layers; ++i)
      block(fmt::format("token_refiner.blocks.{}.", i), true);
    norm("token_refiner.final_norm.weight", spec_.hidden);
  }

  void blocks() {
    for (std::int64_t i = 0; i < spec_.layers; ++i) {
      const std::string base = fmt::format("blocks.{}.", i);
      const std::int64_t rows = spec::kModalities * spec::kModulationParts * spec_.hidden;
      block(base, false);
      linear(base + "adaln_proj.linear", PartKind::kAdaln, rows, spec_.time_dim, true);
    }
  }

  void heads() {
    norm("final_layer.norm.weight", spec_.hidden);
    linear("final_layer.adaln_proj.linear", PartKind::kAdaln, 2 * spec_.hidden, spec_.time_dim, true);
    linear("final_layer.video_out", PartKind::kIsland, spec_.patch_width(), spec_.hidden, true);
    linear("final_layer.audio_out", PartKind::kIsland, spec_.audio_channels, spec_.hidden, true);
  }

  std::vector<Part> take() { return std::move(parts_); }

 private:
  void block(const std::string& base, bool refiner) {
    const auto kind = [&](PartKind in_block) { return refiner ? PartKind::kRefiner : in_block; };
    norm(base + "norm1.weight", spec_.hidden);
    linear(base + "attn.qkv_proj", kind(PartKind::kQkv), 3 * spec_.inner(), spec_.hidden, false);
    norm(base + "attn.q_norm.weight", spec_.head_dim);
    norm(base + "attn.k_norm.weight", spec_.head_dim);
    linear(base + "attn.out_proj", kind(PartKind::kOut), spec_.hidden, spec_.inner(), false);
    norm(base + "norm2.weight", spec_.hidden);
    linear(base + "mlp.fc1", kind(PartKind::kFc1), 2 * spec_.ffn, spec_.hidden, false);
    linear(base + "mlp.fc2", kind(PartKind::kFc2), spec_.hidden, spec_.ffn, false);
  }

  const ModelSpec& spec_;
  std::vector<Part> parts_;
};

}  // namespace

const char* part_kind_name(PartKind kind) {
  switch (kind) {
    case PartKind::kQkv:
      return "qkv";
    case PartKind::kOut:
      return "out";
    case PartKind::kFc1:
      return "fc1";
    case PartKind::kFc2:
      return "fc2";
    case PartKind::kAdaln:
      return "adaln";
    case PartKind::kRefiner:
      return "refiner";
    case PartKind::kCondition:
      return "condition";
    case PartKind::kIsland:
      return "island";
    case PartKind::kNorm:
      return "norm";
    case PartKind::kTable:
      return "table";
  }
  return "?";
}

bool is_linear(PartKind kind) {
  return kind != PartKind::kNorm && kind != PartKind::kTable;
}

std::vector<Part> model_parts(const ModelSpec& spec) {
  PartList list(spec);
  list.inputs();
  list.refiner();
  list.blocks();
  list.heads();
  return list.take();
}

}  // namespace h3s::checkpoint
