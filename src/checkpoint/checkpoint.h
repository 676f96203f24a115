// H3 checkpoints: which keys, which form, which weight format, and where the bytes are.
//
// Opening reads the header, the `.comfy_quant` tags, the scales and small plain tensors; matrices stay
// untouched on disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/lora.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

// How the weight of one linear layer is stored. One row a format in formats.cc; a new format is a new row and
// file.
enum class WeightFormat {
  kBF16,
  kF16,
  kF32,
  kInt8Tensorwise,
  kFloat8E4M3,
  kFloat8E5M2,
  kMxfp8,
  kNvfp4,
  kAsymW4A8,
  kConvrotW4A4
};
const char* weight_format_name(WeightFormat format);  // as in tags: "bf16", "int8_tensorwise", "nvfp4", ...

// What the input of a layer goes through before the product, computing in bf16.
enum class Activation { kNone, kInt8, kInt4, kE4M3, kE5M2, kMxfp8, kNvfp4 };

// A linear layer as stored. The pointers live as long as any copy of the Checkpoint; data may be unaligned.
struct LinearSource {
  std::string key;  // full key of the weight in the file
  WeightFormat format = WeightFormat::kBF16;
  std::int64_t n = 0, k = 0;  // outputs, inputs
  const io::TensorInfo* weight = nullptr;
  const io::TensorInfo* bias = nullptr;         // null: none
  const io::TensorInfo* scale = nullptr;        // int8, W4A4, W4A8: F32 rows, 1 or n; mxfp8, nvfp4: blocks
  const io::TensorInfo* group_scale = nullptr;  // W4A8: relative scales of groups
  const io::TensorInfo* codebook = nullptr;     // W4A8: 16 F32 levels; null: code - 8
  const io::TensorInfo* pre_scale = nullptr;    // factors of the input's columns; null: none
  std::int64_t rotate_group = 0;                // ConvRot group; 0: not rotated
  std::int64_t scale_group = 0;                 // W4A8: columns of a group
  float tensor_scale = 1;                       // fp8, nvfp4: of the whole weight
  float input_scale = 0;  // fp8, nvfp4: of the whole input; 0 (nvfp4): from the input's largest magnitude
  Activation activation = Activation::kNone;

  bool plain() const { return format <= WeightFormat::kF32; }
  // Of int8 by int8; floating-point numbers otherwise.
  bool int8_product() const { return activation == Activation::kInt8 || activation == Activation::kInt4; }
};

// Copyable (copies share the mapping); thread-safe.
class Checkpoint {
 public:
  // Throws Error(kBadFile / kUnsupported) naming file, key and reason: missing keys, gaps in block numbers,
  // wrong shapes or dtypes, broken tags, missing, zero or NaN scales, NaN in a plain tensor of up to 16 MiB
  // (value_checks.h), formats this build cannot run. Keys the network does not have are ignored as stock does
  // (`inspect` lists them), but for scales and tags that belong to no layer.
  static Checkpoint open(const std::string& path, const io::ReadOptions& options = {});

  // The table of a checkpoint that does not exist, of the key layout that `h3stream synth` writes: for
  // planning. `format` is kBF16 or a quantised one; otherwise throws Error(kInvalidArgument).
  static Checkpoint without_data(const spec::ModelSpec& spec, WeightFormat format);

  // This checkpoint with LoRAs, which a session then applies; this one stays without. Throws as
  // LoraSet::open.
  Checkpoint with_loras(std::span<const LoraRequest> requests, LoraMode mode) const;
  const LoraSet* loras() const { return loras_.get(); }  // null: none
  // Null: nothing changes the layer.
  const LoraLayer* lora(const std::string& layer) const {
    return loras_ == nullptr ? nullptr : loras_->find(layer);
  }

  bool has_data() const { return file_.has_data(); }
  const io::SafetensorsReader& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }  // "", "model.diffusion_model." or "diffusion_model."
  const spec::ModelSpec& spec() const { return spec_; }
  // True when any `.comfy_quant` tag is present: stock then holds the fp32 islands in bf16.
  bool quantised() const { return quantised_; }

  // `layer` without prefix and suffix, for instance "blocks.0.attn.qkv_proj" or "video_patch_proj".
  LinearSource linear(const std::string& layer) const;
  // A plain tensor by its key without prefix, for instance "blocks.0.norm1.weight".
  const io::TensorInfo& tensor(const std::string& key) const;
  const std::byte* data(const io::TensorInfo& info) const { return file_.data(info); }

 private:
  explicit Checkpoint(io::SafetensorsReader file) : file_(std::move(file)) {}
  io::SafetensorsReader file_;
  std::string prefix_;
  spec::ModelSpec spec_;
  bool quantised_ = false;
  std::map<std::string, LinearSource> linears_;  // by layer, every one checked at open()
  std::shared_ptr<const LoraSet> loras_;
};

}  // namespace h3s::checkpoint
