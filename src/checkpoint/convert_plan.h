// What a conversion does with each part of a checkpoint.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/encode.h"
#include "checkpoint/parts.h"
#include "checkpoint/row_map.h"

namespace h3s::checkpoint {

// Suffixes of the tensors of a quantised layer, beside weight, tag and bias.
inline constexpr std::array<const char*, 7> kCompanionSuffixes{
    "weight_scale",    "weight_scale_2", "weight_s_rel",   "weight_s_channel",
    "weight_codebook", "input_scale",    "pre_quant_scale"};

// A tensor copied under a name that may be new.
struct KeptTensor {
  const io::TensorInfo* info;
  std::string name;
  bool by_rows = false;  // rows of the weight, or of scales that follow them
};

// What becomes of one part of the network.
struct PartTask {
  enum class Action { kKeep, kPlain, kEncode };

  const Part* part = nullptr;
  Action action = Action::kKeep;
  WeightFormat format = WeightFormat::kBF16;  // of the result, for linears
  bool full_precision = false;
  LinearSource source;  // for linears
  RowMap map;
  std::vector<KeptTensor> kept;  // kKeep: weight and companions
  std::string tag;               // kKeep: empty for a plain layer

  // kPlain: the dtype that weight and bias get.
  DType plain_dtype() const;
  // kEncode: the quantiser, `largest` as there. An error names the layer.
  LayerEncoder encoder(float largest) const;
};

struct PartTasks {
  std::vector<Part> parts;  // what the tasks point to
  std::vector<PartTask> tasks;
};

// In the order of the network. Throws as convert_checkpoint() for rules.
PartTasks plan_parts(const Checkpoint& input, const ConvertOptions& options);

}  // namespace h3s::checkpoint
