// Every tensor of an H3 network, in the order the network uses them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace h3s::checkpoint {

enum class PartKind {
  kQkv,
  kOut,
  kFc1,
  kFc2,        // the four large linears of a DiT block
  kAdaln,      // modulation linears of the blocks and of the final layer
  kRefiner,    // linears of the token refiner
  kCondition,  // condition_proj
  kIsland,     // linears the network declares fp32: patch projections, heads, time embedder
  kNorm,       // weight vectors of norms
  kTable,      // rope.inv_freq, adaln_t_table
};
const char* part_kind_name(PartKind kind);  // "qkv", "out", ...
bool is_linear(PartKind kind);

struct Part {
  // Without prefix. Linear: the layer, whose tensors are NAME.weight and, with `bias`, NAME.bias. Else: the
  // whole key.
  std::string name;
  PartKind kind = PartKind::kNorm;
  std::vector<std::int64_t> shape;  // linear: [outputs, inputs] of the weight
  bool bias = false;                // [outputs]

  std::string key() const { return is_linear(kind) ? name + ".weight" : name; }
};

std::vector<Part> model_parts(const spec::ModelSpec& spec);

}  // namespace h3s::checkpoint
